"""A session: one bundle, loaded once, run as often as wanted."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

import numpy as np

from nnstretch.bundle import Bundle, Manifest, read_bundle
from nnstretch.errors import BadInput, UnknownName
from nnstretch.run.backends import Choice, by_processor
from nnstretch.run.emulation import corrected, dilation_for, rehearsal_of
from nnstretch.run.measures import latency_us
from nnstretch.run.network import Given, Network, Values
from nnstretch.run.overlap import Overlap, overlap
from nnstretch.schedule import Placed, Threads, VirtualClock, durations_of, handovers_of, in_turn, run, tasks_of
from nnstretch.soc import Processor, Soc
from nnstretch.trace import Task, Trace

MODES = ("spatial", "sequential")
CLOCKS = ("virtual", "real")
QUEUE_DEPTH = 2
"""Where no chip says otherwise: one task at work and one behind it."""
WARM_UPS, REHEARSALS, TRIALS = 2, 5, 2


class Session:
    """Runs a bundle's branches at once (`spatial`) or one after another (`sequential`).

    The virtual clock computes the numbers and tells the predicted time, exactly and repeatably.
    The real clock runs branches on threads: where the bundle has predicted times, each takes its
    predicted time on a clock slowed by `dilation`; where it has none, branches take what they take.

    `backend` says who computes: `onnxruntime`, `litert` or `openvino[:DEVICE]` for all processors or by processor,
    `NAME,PROCESSOR=NAME` or a mapping; where absent, what the format of each file asks for. Each computes on `threads` threads.
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
    ) -> None:
        _check_choice("mode", mode, MODES)
        _check_choice("clock", clock, CLOCKS)
        bundle = bundle if isinstance(bundle, Bundle) else read_bundle(bundle)
        self.mode, self.clock, self.manifest = mode, clock, bundle.manifest
        self.processors = _processors(bundle, soc)
        self.durations_us = _durations(bundle, clock, self.processors)
        self.handovers_us = handovers_of(self.manifest, self.processors) if self.durations_us else {}
        self.tasks = in_turn(tasks_of(self.manifest)) if mode == "sequential" else tasks_of(self.manifest)
        self.network: Network = Network(bundle, backend, threads)
        self.trace = Trace(())
        """Of the last run, in microseconds of the chip."""
        self.late = 0
        """Tasks of the last run whose numbers took longer than their time."""
        self._dilation: float | None = None

    @property
    def backends(self) -> dict[str, str]:
        """Who computes, by processor; two names with a comma between where a processor needs both."""
        return by_processor(self.network.backends, self.manifest)

    @property
    def emulated(self) -> bool:
        """Whether times are the chip's, predicted, or this host's own."""
        return bool(self.durations_us)

    @property
    def latency_us(self) -> float:
        """Of the last run, from the arrival of its input."""
        return latency_us(self.trace)

    @property
    def dilation(self) -> float:
        """How many times slower than the chip the real clock goes; rehearsed once, 1 on the virtual clock."""
        if self._dilation is None:
            real = self.clock == "real" and self.emulated
            self._dilation = self._rehearse(self.network.inputs(self.network.random_inputs(seed=0))) if real else 1.0
        return self._dilation

    def run(self, inputs: Given, raw: bool = False) -> np.ndarray | Values:
        """One input through the network; the outputs as an array, or by name where there are several.

        Both are float32 in PyTorch's order whatever the files compute in; see `Network.inputs` and `Network.outputs`.
        """
        values = self.network.inputs(inputs)
        if self.clock == "virtual":
            self.trace = self._timed(values)
        else:
            dilation = self.dilation
            with self._threads(values, self.durations_us, dilation) as threads:
                self.trace = run(self.tasks, self._policy, threads)
            self.late = threads.late
        return self.network.outputs(values, raw)

    def one_after_another(self) -> Session:
        """A session of the same loaded sub-graphs in mode `sequential`; closing one leaves the other open."""
        other = copy(self)
        other.mode, other.tasks, other._dilation = "sequential", in_turn(tasks_of(self.manifest)), None
        return other

    def overlap(self, inputs: Given) -> Overlap | None:
        """Whether branches truly run at once on this host; None where nothing can: one processor, or no branches."""
        return overlap(self.network, self.network.inputs(inputs))

    def predicted(self) -> Trace:
        """The virtual clock's trace of a run, without computing a number; empty where nothing is predicted."""
        return self._timed(None) if self.emulated else Trace(())

    def close(self) -> None:
        """Forget the loaded sub-graphs; threads live no longer than one run."""
        del self.network

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def _policy(self) -> Placed:
        return Placed(tuple(processor.name for processor in self.processors))

    def _timed(self, values: Values | None) -> Trace:
        def work(task: Task) -> None:
            if values is not None:
                self.network.compute(task.subgraph, values)

        return run(self.tasks, self._policy, VirtualClock(self.processors, self.durations_us, work, handovers_us=self.handovers_us))

    def _threads(self, values: Values, durations_us: Mapping[tuple[str, str], float], dilation: float) -> Threads:
        caller = next((processor.name for processor in self.processors if processor.kind == "cpu"), None)
        return Threads(
            self.processors,
            lambda task: self.network.compute(task.subgraph, values),
            durations_us,
            dilation,
            caller,
            handovers_us=self.handovers_us,
        )

    def _rehearse(self, values: Values) -> float:
        """First as fast as the host can, to see what it needs; then on the timetable, to see whether it slips."""
        predicted = self.predicted()
        by_task = {span.task: span.duration_us for span in predicted.spans}
        free = self._traces(values, {}, 1.0, WARM_UPS + REHEARSALS)[WARM_UPS:]
        factor = dilation_for(rehearsal_of(self.tasks, free), by_task, predicted.makespan_us)
        for _ in range(TRIALS):
            paced = self._traces(values, self.durations_us, factor, REHEARSALS)
            late_us = median(latency_us(trace) for trace in paced) - predicted.makespan_us
            if (better := corrected(factor, late_us / predicted.makespan_us if predicted.makespan_us else 0.0)) == factor:
                break
            factor = better
        return factor

    def _traces(self, values: Values, durations_us: Mapping[tuple[str, str], float], dilation: float, count: int) -> list[Trace]:
        traces = []
        with self._threads(values, durations_us, dilation) as threads:
            for _ in range(count):
                threads.restart()
                traces.append(run(self.tasks, self._policy, threads))
        return traces


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UnknownName(f"unknown {what} {value!r}, session, it is one of {', '.join(choices)}")


def _processors(bundle: Bundle, soc: str | Soc | None) -> tuple[Processor, ...]:
    """Those that the bundle uses, as the chip describes them."""
    used = dict.fromkeys(sub.processor for sub in bundle.manifest.subgraphs)
    made_for = bundle.manifest.soc
    name = soc.name if isinstance(soc, Soc) else soc
    if isinstance(soc, Soc):
        processors = tuple(soc.processor(processor) for processor in used)
    elif name is None or name == made_for:
        processors = tuple(Processor(n, "cpu" if n.startswith("cpu") else n, QUEUE_DEPTH) for n in used)
    else:
        raise UnknownName(f"unknown SoC {name!r}, {bundle.name}, it was made for {made_for}; pass the Soc of load_soc({name!r})")
    if name is not None and made_for is not None and name != made_for and _predicted(bundle.manifest):
        raise BadInput(f"SoC {name}, {bundle.name}, its times were predicted for {made_for}; export it for {name}")
    return processors


def _predicted(manifest: Manifest) -> bool:
    return any(sub.predicted_us for sub in manifest.subgraphs)


def _durations(bundle: Bundle, clock: str, processors: tuple[Processor, ...]) -> dict[tuple[str, str], float]:
    """Predicted times of every sub-graph where it is placed, or none at all; some are as good as none to a timetable."""
    subs = bundle.manifest.subgraphs
    missing = [sub.name for sub in subs if sub.processor not in sub.predicted_us]
    if not missing:
        return durations_of(bundle.manifest, processors)
    if clock == "real" and not _predicted(bundle.manifest):
        return {}
    why = "a virtual clock needs them" if clock == "virtual" else "a timetable needs all or none"
    raise BadInput(f"no predicted time of {missing[0]} and {len(missing) - 1} more of {len(subs)} sub-graphs, {bundle.name}, {why}")
