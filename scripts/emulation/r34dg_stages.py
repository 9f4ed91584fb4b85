"""R-34-DG as it was profiled on the phone, and the same stages played by the emulated one."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import mean

from nnstretch.errors import BrokenFile
from nnstretch.schedule import StaticPlacement, ThreadExecutor, VirtualExecutor, run_tasks
from nnstretch.schedule.meeting_waits import meeting_waits
from nnstretch.soc import Processor, Soc
from nnstretch.task import Task
from nnstretch.trace import Span, Trace

DATA = Path(__file__).parents[2] / "tests/data/nn_stretch/kernels_r34dg.csv"
TIMED = ("timed1", "timed2")
STEM_US = 3640.0 + 180.0
"""Stem convolution and pooling, by the phone's profiler."""
HEAD_US = 490.0 + 3140.0 + 100.0
"""Mean over pixels, fully connected layer (mean of two runs), quantization."""
HOST = "cpu"
Times = dict[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class Stage:
    """One meeting point, mean of the timed runs, microseconds."""

    push_us: float
    """Handing over to the DSP's helper thread."""
    enqueue_us: float
    """Handing over to the GPU's queue, on the main thread."""
    gpu_us: float
    """Input unmapped until output mapped: launch gap, kernels, output gap."""
    dsp_us: float
    """An estimate made from the main thread's wait."""
    merge_us: float
    """Concatenation without the waits inside it."""
    dsp_first: bool
    """Whether the DSP was handed over before the GPU."""
    gpu_wait_us: float
    dsp_wait_us: float
    host_us: float
    """The whole stage on the main thread."""


@dataclass(frozen=True, slots=True)
class Played:
    """One stage of an emulated run, microseconds."""

    gpu_wait_us: float
    dsp_wait_us: float
    host_us: float
    last: str
    """The branch that the other one waits for."""


@dataclass(frozen=True, slots=True)
class Emulation:
    """Everything that both clocks need."""

    tasks: tuple[Task, ...]
    durations_us: Times
    handovers_us: Times
    processors: tuple[Processor, ...]
    policy: StaticPlacement
    finish_us: float
    """Waking the host when the GPU has ended; inside the merges' durations."""

    def virtual(self) -> Trace:
        return run_tasks(
            self.tasks,
            self.policy,
            VirtualExecutor(self.processors, self.durations_us, handovers_us=self.handovers_us),
        )

    def real(self, runs: int, tell: Callable[[int], None] = lambda done: None) -> list[Trace]:
        """On threads that sleep their times, so many inferences one after another."""
        found = []
        work = lambda task: None  # noqa: E731
        with ThreadExecutor(
            self.processors, work, self.durations_us, caller=HOST, handovers_us=self.handovers_us
        ) as threads:
            for number in range(runs):
                threads.restart()
                found.append(run_tasks(self.tasks, self.policy, threads))
                tell(number + 1)
        return found

    def played(self, trace: Trace) -> tuple[Played, ...]:
        """Its four meeting points."""
        spans = trace.spans_by_task()
        found: list[Played] = []
        before = spans[self.tasks[0].name]
        for meeting in (task for task in self.tasks if len(task.needs) > 1):
            by = {wait.processor: wait for wait in meeting_waits((meeting,), trace)}
            end = spans[meeting.name]
            last = max(by.values(), key=lambda wait: wait.host_us).processor
            found.append(
                Played(
                    by["gpu"].host_us + self.finish_us,
                    by["dsp"].host_us,
                    end.end_us - before.end_us,
                    last,
                )
            )
            before = end
        return tuple(found)

    def hand_overs(self, trace: Trace) -> tuple[Span, ...]:
        """What the host does between stages, for pictures.

        One span for each branch that it hands over.
        """
        held = {
            (task.name, task.processor or ""): self.handovers_us.get(
                (task.work, task.processor or ""), 0.0
            )
            for task in self.tasks
        }
        return tuple(
            Span(
                span.handed_us - held[span.task.name, span.processor],
                span.handed_us,
                replace(span.task, name=f"hand over {span.task.name}"),
                HOST,
            )
            for span in trace.spans
            if span.handed_us is not None and held[span.task.name, span.processor]
        )


def stages(path: Path = DATA) -> tuple[Stage, ...]:
    """The profile, its two timed runs averaged. Raises BrokenFile."""
    try:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        each = [{run: stage_of(one(rows, run, number)) for run in TIMED} for number in "1234"]
    except (OSError, KeyError, ValueError, StopIteration) as error:
        raise BrokenFile(f"cannot read {path}, profile of R-34-DG, {error!r}") from error
    numbers = [field.name for field in fields(Stage) if field.name != "dsp_first"]
    return tuple(
        replace(
            runs[TIMED[0]],
            **{name: mean(getattr(run, name) for run in runs.values()) for name in numbers},
        )
        for runs in each
    )


def one(rows: Sequence[Mapping[str, str]], run: str, number: str) -> Mapping[str, str]:
    """Columns of a stage repeat on each of its kernels; any will do."""
    return next(row for row in rows if (row["run"], row["stage"]) == (run, number))


def stage_of(row: Mapping[str, str]) -> Stage:
    at = {name: float(text) for name, text in row.items() if name.endswith("_us") and text}
    return Stage(
        push_us=at["dsp_push_us"],
        enqueue_us=at["gpu_push_us"],
        gpu_us=at["launch_gap_us"] + at["kernel_span_us"] + at["out_gap_us"],
        dsp_us=at["dsp_branch_est_us"],
        merge_us=at["concat_minus_wait_us"],
        dsp_first=at["dsp_branch_est_us"] > at["dsp_wait_us"],
        gpu_wait_us=at["gpu_wait_us"],
        dsp_wait_us=at["dsp_wait_us"],
        host_us=at["host_stage_us"],
    )


def published(
    profile: Sequence[Stage], soc: Soc, planned: Sequence[Task], asynchronous_first: bool = False
) -> Emulation:
    """The plan's tasks with the profile's times.

    What waking the host costs is the chip's one number.
    """
    gpu = soc.processor("gpu")
    finish_us = gpu.sync_us - gpu.enqueue_us
    durations: Times = {(planned[0].subgraph, HOST): STEM_US, (planned[-1].subgraph, HOST): HEAD_US}
    handovers: Times = {}
    for number, stage in enumerate(profile, start=1):
        durations |= {
            (f"s{number}.gpu", "gpu"): stage.gpu_us,
            (f"s{number}.dsp", "dsp"): stage.dsp_us,
        }
        durations[f"s{number}.merge", HOST] = finish_us + stage.merge_us
        handovers |= {
            (f"s{number}.gpu", "gpu"): stage.enqueue_us,
            (f"s{number}.dsp", "dsp"): stage.push_us,
        }
    first = {
        f"s{number}.{'dsp' if stage.dsp_first else 'gpu'}"
        for number, stage in enumerate(profile, start=1)
    }
    return emulation(
        soc, in_order(planned, first), durations, handovers, finish_us, asynchronous_first
    )


def in_order(tasks: Sequence[Task], first: set[str]) -> tuple[Task, ...]:
    """Of each pair of branches the named one first."""
    numbered = {task.name: number for number, task in enumerate(tasks)}
    return tuple(
        sorted(
            tasks,
            key=lambda task: (
                task.subgraph.partition(".")[0],
                "merge" in task.name,
                task.subgraph not in first,
                numbered[task.name],
            ),
        )
    )


def predicted(soc: Soc, planned: Sequence[Task], durations_us: Times) -> Emulation:
    """The predictor alone: its times of branches and merges, the chip's one hand-over and one
    wake-up for all stages.
    """
    gpu = soc.processor("gpu")
    finish_us = gpu.sync_us - gpu.enqueue_us
    merges = {task.subgraph for task in planned if len(task.needs) > 1}
    durations = {
        key: time_us - (gpu.enqueue_us if key[0] in merges else 0.0)
        for key, time_us in durations_us.items()
    }
    handovers = {
        (task.subgraph, "gpu"): gpu.enqueue_us for task in planned if task.processor == "gpu"
    }
    return emulation(soc, planned, durations, handovers, finish_us, asynchronous_first=True)


def emulation(
    soc: Soc,
    tasks: Sequence[Task],
    durations: Times,
    handovers: Times,
    finish_us: float,
    asynchronous_first: bool,
) -> Emulation:
    policy = StaticPlacement(tuple(p.name for p in soc.processors), asynchronous_first)
    return Emulation(tuple(tasks), durations, handovers, soc.processors, policy, finish_us)
