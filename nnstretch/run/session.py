"""A session: one bundle, loaded once, run as often as wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Self

import numpy as np

from nnstretch.bundle.bundle import Bundle, read_bundle
from nnstretch.bundle.variants import select_plan
from nnstretch.errors import BadInput, Stuck, UnknownName
from nnstretch.files.checked import checked
from nnstretch.files.limits import shorten
from nnstretch.run.backends.registry import Choice, describe_choice
from nnstretch.run.loaded_network import Given, LoadedNetwork, Values
from nnstretch.run.metrics import latency_us
from nnstretch.run.overlap_check import Overlap, overlap
from nnstretch.run.real_clock import RealClock, placement
from nnstretch.run.session_times import session_durations_us, session_processors
from nnstretch.run.tensor_io import check_values
from nnstretch.run.time_dilation import rehearsed_dilation
from nnstretch.schedule import (
    VirtualExecutor,
    enqueue_times_us,
    run_tasks,
    serialize,
    task_graph,
)
from nnstretch.schedule.executors.owner_process import OwnerProcess
from nnstretch.soc import Soc
from nnstretch.task import Task, TaskTimes
from nnstretch.trace import Trace

MODES = ("spatial", "sequential")
CLOCKS = ("virtual", "real")


class Session:
    """Runs a bundle's branches at once (`spatial`) or one after another (`sequential`).

    The virtual clock computes the numbers and returns the predicted time, exactly and repeatably.
    The real clock runs branches on threads: where the bundle has predicted times, each takes its
    predicted time on a clock slowed by `dilation`; where it has none, branches take what they take.

    `backend`: `onnxruntime`, `litert`, `openvino[:DEVICE]` or `torch[:DEVICE]` for all processors
    or by processor, `NAME,PROCESSOR=NAME` or a mapping; where absent, what the format of each file
    asks for. Each computes on `threads` threads. `plan` names one of several of a bundle.

    On the real clock every processor has a thread of its own from the first run until `close`; the
    thread that calls `run` computes for the first CPU. Callers take turns. After a run that failed
    the next one starts new threads.
    """

    @checked
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
        self.processors = session_processors(bundle, soc)
        self.durations_us = session_durations_us(bundle, clock, self.processors)
        emulated = bool(self.durations_us)
        self.handovers_us = enqueue_times_us(self.manifest, self.processors) if emulated else {}
        tasks = task_graph(self.manifest)
        self.tasks = serialize(tasks) if mode == "sequential" else tasks
        self._network: LoadedNetwork | None = LoadedNetwork(bundle, backend, threads)
        self._process = OwnerProcess(f"session of {self.manifest.model}")
        self._trace: Trace | Callable[[], Trace] = Trace(())
        self.late = 0
        """Tasks of the last run whose numbers took longer than their time."""
        self._dilation: float | None = None
        self._closed = False
        self._begin_without_threads()

    def _begin_without_threads(self) -> None:
        self._turn = threading.RLock()
        self._runs_on: threading.Thread | None = None
        """Thread of the caller that runs now."""
        self._real_clock = RealClock(self.tasks, self.processors, self.handovers_us)

    @property
    def network(self) -> LoadedNetwork:
        """Return the loaded sub-graphs. Raises Stuck once the session has been closed."""
        network = self._network
        if network is None:
            raise Stuck(f"no network of {self.manifest.model}, session, it has been closed")
        return network

    @property
    def backends(self) -> dict[str, str]:
        """Return the backend of each processor, or several with commas between."""
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
        """Return how many times slower than the chip the real clock is: rehearsed once, else 1."""
        if self._dilation is None and not (self.clock == "real" and self.emulated):
            self._dilation = 1.0
        if self._dilation is None:
            with self._own_turn() as network:
                if self._dilation is None:
                    self._dilation = self._rehearse(network)
        return self._dilation

    def run(self, inputs: Given, raw: bool = False) -> np.ndarray | Values:
        """Run one input; return the outputs as an array, or by name where there are several.

        Both are float32 in PyTorch's order whatever the files compute in; see `LoadedNetwork`.
        Raises what a sub-graph raised, BadInput for arguments that do not fit, and Stuck for a
        session that has been closed.
        """
        self._check_open()
        if not isinstance(raw, bool):
            raise BadInput(f"raw is {shorten(raw)}, session, give True or False")
        network = self.network
        values = network.inputs(inputs)
        self.compute(values)
        return network.outputs(values, raw)

    def compute(self, values: Values) -> None:
        """Compute all sub-graphs on what `LoadedNetwork.inputs` gave, and add the outputs to it.

        Raises BadInput for anything else.
        """
        self._check_open()
        check_values(self.manifest.inputs, values)
        if self.clock == "virtual":
            self._trace = self._run_timed(self.network, values)
            return
        self._check_outside_of_runs()
        with self._own_turn() as network:
            if self.emulated:
                emulated = self._real_clock.run_emulated(
                    network, values, self.durations_us, self.dilation
                )
                self._trace, self.late = emulated
            else:
                self._trace, self.late = self._real_clock.run_static(network, values), 0

    def _check_open(self) -> None:
        self._process.check()
        if self._closed:
            raise Stuck(f"no run of {self.manifest.model}, session, it has been closed")

    @contextmanager
    def _own_turn(self) -> Iterator[LoadedNetwork]:
        """Wait for the caller's turn. Raises Stuck where the session is closed by then."""
        self._check_open()
        with self._turn:
            self._check_open()
            before, self._runs_on = self._runs_on, threading.current_thread()
            try:
                yield self.network
            finally:
                self._runs_on = before

    def _check_outside_of_runs(self) -> None:
        """Raise Stuck on a thread that works for a run: it would wait for itself."""
        thread = threading.current_thread()
        if thread is self._runs_on or self._real_clock.is_worker():
            where = f"{self._process.what}, thread {thread.name} is in the middle of it"
            raise Stuck(f"waiting for the end of a run would never end, {where}")

    def one_after_another(self) -> Session:
        """Return a `sequential` session of the same sub-graphs; it is closed by itself."""
        self._check_open()
        session = copy(self)
        session.mode, session.tasks = "sequential", serialize(task_graph(self.manifest))
        session._dilation = None
        session._begin_without_threads()
        return session

    def overlap(self, inputs: Given) -> Overlap | None:
        """Return whether branches truly run at once on this host; None where there are none."""
        return overlap(self.network, self.network.inputs(inputs))

    def predicted(self) -> Trace:
        """Return the virtual clock's trace of a run; empty where nothing is predicted."""
        return self._run_timed(None, {}) if self.emulated else Trace(())

    def close(self) -> None:
        """Take no more runs, let the one that goes on end, then the threads, and forget the loaded
        sub-graphs. Raises Stuck within a run.
        """
        if not self._process.is_current():
            return
        self._check_outside_of_runs()
        self._closed = True
        with self._turn:
            self._real_clock.close()
            self._network = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _run_timed(self, network: LoadedNetwork | None, values: Values) -> Trace:
        """Run on the virtual clock; without a network only the times."""

        def work(task: Task) -> None:
            if network is not None:
                network.compute(task.subgraph, values)

        enqueue_us = self.handovers_us
        clock = VirtualExecutor(self.processors, self.durations_us, work, handovers_us=enqueue_us)
        return run_tasks(self.tasks, placement(self.processors), clock)

    def _rehearse(self, network: LoadedNetwork) -> float:
        values, clock = network.inputs(network.random_inputs(seed=0)), self._real_clock

        def run(durations_us: TaskTimes, dilation: float) -> Trace:
            return clock.run_emulated(network, values, durations_us, dilation)[0]

        return rehearsed_dilation(self.tasks, self.durations_us, self.predicted(), run)


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UnknownName(f"unknown {what} {value!r}, session, it is one of {', '.join(choices)}")
