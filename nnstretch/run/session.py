"""A session: one bundle, loaded once, run as often as wanted."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

import numpy as np

from nnstretch.bundle.bundle import Bundle, read_bundle
from nnstretch.bundle.manifest import Manifest, processors_named
from nnstretch.bundle.variants import select_plan
from nnstretch.errors import BadInput, Stuck, UnknownName
from nnstretch.run.backends.registry import Choice, describe_choice
from nnstretch.run.bound_memory import BoundNetwork
from nnstretch.run.loaded_network import Given, LoadedNetwork, Values
from nnstretch.run.metrics import latency_us
from nnstretch.run.overlap_check import Overlap, overlap
from nnstretch.run.time_dilation import (
    REHEARSALS,
    correct_dilation,
    required_dilation,
    summarize_rehearsal,
)
from nnstretch.schedule import (
    StaticOrderRunner,
    StaticPlacement,
    ThreadExecutor,
    VirtualExecutor,
    enqueue_times_us,
    run_tasks,
    serialize,
    static_order,
    task_durations_us,
    task_graph,
)
from nnstretch.schedule.elide import restore_noops, without_noops
from nnstretch.schedule.executors.static_order import RunTimes
from nnstretch.schedule.executors.virtual import no_work
from nnstretch.soc import Processor, Soc
from nnstretch.task import Task, TaskTimes
from nnstretch.trace import Trace

MODES = ("spatial", "sequential")
CLOCKS = ("virtual", "real")
"""Where no chip says otherwise: one task at work and one behind it."""
WARM_UPS, TRIALS = 2, 2


class Session:
    """Runs a bundle's branches at once (`spatial`) or one after another (`sequential`).

    The virtual clock computes the numbers and tells the predicted time, exactly and repeatably.
    The real clock runs branches on threads: where the bundle has predicted times, each takes its
    predicted time on a clock slowed by `dilation`; where it has none, branches take what they take.

    `backend` says who computes: `onnxruntime`, `litert`, `openvino[:DEVICE]` or `torch[:DEVICE]`
    for all processors or by processor, `NAME,PROCESSOR=NAME` or a mapping; where absent, what the
    format of each file asks for. Each computes on `threads` threads. `plan` names one of a bundle
    that holds several; where absent, the main one.

    On the real clock every processor has a thread of its own from the first run until `close`; the
    thread that calls `run` computes for the first CPU. Callers take turns. After a run that failed
    the next one starts new threads.
    """

    def __init__(
        self,
        bundle: Path | str | Bundle,
        soc: str | Soc | None = None,
        mode: str = "spatial",
        clock: str = "virtual",
        *,
        backend: Choice = None,
        threads: int = 1,
        plan: str | None = None,
    ) -> None:
        _check_choice("mode", mode, MODES)
        _check_choice("clock", clock, CLOCKS)
        bundle = select_plan(bundle if isinstance(bundle, Bundle) else read_bundle(bundle), plan)
        self.mode, self.clock, self.manifest = mode, clock, bundle.manifest
        self.processors = _processors(bundle, soc)
        self.durations_us = _durations(bundle, clock, self.processors)
        self.handovers_us = (
            enqueue_times_us(self.manifest, self.processors) if self.durations_us else {}
        )
        self.tasks = (
            serialize(task_graph(self.manifest))
            if mode == "sequential"
            else task_graph(self.manifest)
        )
        self.network: LoadedNetwork = LoadedNetwork(bundle, backend, threads)
        self._trace: Trace | Callable[[], Trace] = Trace(())
        self.late = 0
        """Tasks of the last run whose numbers took longer than their time."""
        self._dilation: float | None = None
        self._closed = False
        self._turn = threading.RLock()
        self._workers: ThreadExecutor | None = None
        self._runner: StaticOrderRunner | None = None
        self._bound_session: BoundNetwork | None = None
        self._end: Callable[[], object] = nothing_to_close

    @property
    def backends(self) -> dict[str, str]:
        """Return the backend of each processor.

        Two names with a comma between where a processor needs both.
        """
        return describe_choice(self.network.backends, self.manifest)

    @property
    def emulated(self) -> bool:
        """Return whether times are the chip's, predicted, or this host's own."""
        return bool(self.durations_us)

    @property
    def trace(self) -> Trace:
        """Return the trace of the last run, in microseconds of the chip."""
        if not isinstance(self._trace, Trace):
            self._trace = self._trace()
        return self._trace

    @property
    def latency_us(self) -> float:
        """Return the latency of the last run, from the arrival of its input."""
        return latency_us(self.trace)

    @property
    def dilation(self) -> float:
        """Return how many times slower than the chip the real clock goes.

        Rehearsed once, 1 on the virtual clock.
        """
        if self._dilation is None:
            real = self.clock == "real" and self.emulated
            self._dilation = (
                self._rehearse(self.network.inputs(self.network.random_inputs(seed=0)))
                if real
                else 1.0
            )
        return self._dilation

    def run(self, inputs: Given, raw: bool = False) -> np.ndarray | Values:
        """Run one input through the network.

        The outputs as an array, or by name where there are several.

        Both are float32 in PyTorch's order whatever the files compute in; see `Network.inputs` and
        `Network.outputs`. Raises what a sub-graph raised, and Stuck for a session that has been
        closed.
        """
        self._check_open()
        values = self.network.inputs(inputs)
        self.compute(values)
        return self.network.outputs(values, raw)

    def compute(self, values: Values) -> None:
        """Compute all sub-graphs on what `LoadedNetwork.inputs` gave, and add the outputs to it.

        What is timed where only computing counts.
        """
        self._check_open()
        if self.clock == "virtual":
            self._trace = self._run_timed(values)
        else:
            with self._turn:
                self._trace, self.late = (
                    self._run_emulated(values, self.durations_us, self.dilation)
                    if self.emulated
                    else (self._run_static(values), 0)
                )

    def _check_open(self) -> None:
        if self._closed:
            raise Stuck(f"no run of {self.manifest.model}, session, it has been closed")

    def one_after_another(self) -> Session:
        """Return a session of the same loaded sub-graphs in mode `sequential`.

        Closing one leaves the other open.
        """
        session = copy(self)
        session.mode, session.tasks, session._dilation = (
            "sequential",
            serialize(task_graph(self.manifest)),
            None,
        )
        session._turn, session._workers, session._runner, session._bound_session, session._end = (
            threading.RLock(),
            None,
            None,
            None,
            nothing_to_close,
        )
        return session

    def overlap(self, inputs: Given) -> Overlap | None:
        """Return whether branches truly run at once on this host; None where nothing can.

        One processor, or no branches.
        """
        return overlap(self.network, self.network.inputs(inputs))

    def predicted(self) -> Trace:
        """Return the virtual clock's trace of a run, without computing a number.

        Empty where nothing is predicted.
        """
        return self._run_timed(None) if self.emulated else Trace(())

    def close(self) -> None:
        """Let the threads end, and forget the loaded sub-graphs."""
        with self._turn:
            self._end()
            self._workers = self._runner = self._bound_session = None
            self._closed = True
            self.__dict__.pop("network", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @cached_property
    def _policy(self) -> StaticPlacement:
        return StaticPlacement(tuple(processor.name for processor in self.processors))

    @property
    def _caller_processor(self) -> str | None:
        return next(
            (processor.name for processor in self.processors if processor.kind == "cpu"), None
        )

    def _run_timed(self, values: Values | None) -> Trace:
        def work(task: Task) -> None:
            if values is not None:
                self.network.compute(task.subgraph, values)

        return run_tasks(
            self.tasks,
            self._policy,
            VirtualExecutor(
                self.processors, self.durations_us, work, handovers_us=self.handovers_us
            ),
        )

    def _run_static(self, values: Values) -> Callable[[], Trace]:
        """Run as fast as this host can: the order is decided once and repeated.

        What makes its trace.
        """
        if self._bound_session is None:
            self._bound_session = self.network.bound_session()
        bound_session = self._bound_session
        with self._abort_on_error():
            if self._runner is None:
                tasks = without_noops(self.tasks, bound_session.met)
                self._runner = StaticOrderRunner(
                    static_order(tasks, self.processors, self._policy), self._caller_processor
                )
                self._end = weakref.finalize(self, self._runner.close)
            bound_session.enter(values)
            ran = self._runner.run(bound_session.calls)
        values |= bound_session.results()
        return partial(trace_of_static_run, ran, self.tasks, bound_session.met)

    def _run_emulated(
        self, values: Values, durations_us: TaskTimes, dilation: float
    ) -> tuple[Trace, int]:
        """Run at the chip's times, `dilation` times slower; and return how many tasks were late."""
        compute = self.network.compute
        with self._abort_on_error():
            if self._workers is None:
                self._workers = ThreadExecutor(
                    self.processors, no_work, caller=self._caller_processor
                )
                self._end = weakref.finalize(self, self._workers.close)
            late = self._workers.late
            self._workers.restart(
                lambda task: compute(task.subgraph, values),
                durations_us,
                dilation,
                self.handovers_us,
            )
            trace = run_tasks(self.tasks, self._policy, self._workers)
            self._workers.unpin()
            return trace, self._workers.late - late

    @contextmanager
    def _abort_on_error(self) -> Iterator[None]:
        """Let what is in flight end before an error of a run is raised; the next run starts new
        threads.
        """
        try:
            yield
        except BaseException:
            self._end()
            self._workers = self._runner = None
            raise

    def _rehearse(self, values: Values) -> float:
        """Run first as fast as the host can, to see what it needs.

        Then on the timetable, to see whether it slips.
        """
        predicted = self.predicted()
        by_task = {span.task.name: span.duration_us for span in predicted.spans}
        free = self._traces(values, {}, 1.0, WARM_UPS + REHEARSALS)[WARM_UPS:]
        factor = required_dilation(
            summarize_rehearsal(self.tasks, free), by_task, predicted.makespan_us
        )
        for _ in range(TRIALS):
            paced = self._traces(values, self.durations_us, factor, REHEARSALS)
            late_us = median(latency_us(trace) for trace in paced) - predicted.makespan_us
            if (
                better := correct_dilation(
                    factor, late_us / predicted.makespan_us if predicted.makespan_us else 0.0
                )
            ) == factor:
                break
            factor = better
        return factor

    def _traces(
        self,
        values: Values,
        durations_us: TaskTimes,
        dilation: float,
        count: int,
    ) -> list[Trace]:
        return [self._run_emulated(values, durations_us, dilation)[0] for _ in range(count)]


def trace_of_static_run(ran: RunTimes, tasks: tuple[Task, ...], met: Mapping[str, int]) -> Trace:
    """Return the trace of a static run; keeps no reference to the session."""
    return restore_noops(ran.trace(), tasks, met, ran.duration_us)


def nothing_to_close() -> None:
    """Do nothing: stands for closing the threads of a session that has none."""


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UnknownName(f"unknown {what} {value!r}, session, it is one of {', '.join(choices)}")


def _processors(bundle: Bundle, soc: str | Soc | None) -> tuple[Processor, ...]:
    """Return the processors that the bundle uses, as the chip describes them."""
    used = dict.fromkeys(sub.processor for sub in bundle.manifest.subgraphs)
    made_for = bundle.manifest.soc
    name = soc.name if isinstance(soc, Soc) else soc
    if isinstance(soc, Soc):
        processors = tuple(soc.processor(processor) for processor in used)
    elif name is None or name == made_for:
        processors = processors_named(bundle.manifest, used)
    else:
        raise UnknownName(
            f"unknown SoC {name!r}, {bundle.name}, it was made for {made_for}; pass the Soc of"
            f" load_soc({name!r})"
        )
    if (
        name is not None
        and made_for is not None
        and name != made_for
        and _predicted(bundle.manifest)
    ):
        raise BadInput(
            f"SoC {name}, {bundle.name}, its times were predicted for {made_for}; export it for"
            f" {name}"
        )
    return processors


def _predicted(manifest: Manifest) -> bool:
    return any(sub.predicted_us for sub in manifest.subgraphs)


def _durations(bundle: Bundle, clock: str, processors: tuple[Processor, ...]) -> TaskTimes:
    """Return predicted times of every sub-graph where it is placed, or none at all.

    Some are as good as none to a timetable.
    """
    subs = bundle.manifest.subgraphs
    missing = [sub.name for sub in subs if sub.processor not in sub.predicted_us]
    if not missing:
        return task_durations_us(bundle.manifest, processors)
    if clock == "real" and not _predicted(bundle.manifest):
        return {}
    why = "a virtual clock needs them" if clock == "virtual" else "a timetable needs all or none"
    raise BadInput(
        f"no predicted time of {missing[0]} and {len(missing) - 1} more of {len(subs)} sub-graphs,"
        f" {bundle.name}, {why}"
    )
