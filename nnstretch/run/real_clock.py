"""Runs of a session on the real clock: threads and bound memory, kept from one run to the next."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from nnstretch.run.bound_memory import BoundNetwork
from nnstretch.run.loaded_network import LoadedNetwork, Values
from nnstretch.schedule import (
    StaticOrderRunner,
    StaticPlacement,
    ThreadExecutor,
    run_tasks,
    static_order,
)
from nnstretch.schedule.cpu_affinity import affinity, pin
from nnstretch.schedule.elide import restore_noops, without_noops
from nnstretch.schedule.executors.static_order import RunTimes
from nnstretch.schedule.executors.virtual import no_work
from nnstretch.soc import Processor, host_of
from nnstretch.task import Task, TaskTimes
from nnstretch.trace import Trace


class RealClock:
    """Run tasks on one thread per processor; the caller computes for the first CPU.

    Threads start with the first run and stay until `end_threads`. A run that failed ends them, and
    the next one starts new ones. Callers take turns by themselves.
    """

    def __init__(
        self,
        tasks: tuple[Task, ...],
        processors: tuple[Processor, ...],
        handovers_us: TaskTimes,
    ) -> None:
        self._tasks, self._processors = tasks, processors
        self._handovers_us = handovers_us
        self._caller = host_of(processors)
        self._workers: ThreadExecutor | None = None
        self._runner: StaticOrderRunner | None = None
        self.bound: BoundNetwork | None = None
        """Sub-graphs bound to fixed memory, from the first static run on."""
        self._opened: list[ThreadExecutor | StaticOrderRunner] = []
        """What has threads, until it is closed."""
        weakref.finalize(self, close_all, self._opened)

    def is_worker(self) -> bool:
        """Return whether the calling thread is one of these."""
        return any(opened.is_worker() for opened in tuple(self._opened))

    def run_static(self, network: LoadedNetwork, values: Values) -> Callable[[], Trace]:
        """Run as fast as this host can, in an order decided once; return what makes the trace."""
        if self.bound is None:
            self.bound = network.bound_session()
        bound = self.bound
        with self._abort_on_error():
            if self._runner is None:
                tasks = without_noops(self._tasks, bound.met)
                order = static_order(tasks, self._processors, placement(self._processors))
                self._runner = StaticOrderRunner(order, self._caller)
                self._opened.append(self._runner)
            bound.enter(values)
            ran = self._runner.run(bound.calls)
        values |= bound.results()
        return partial(trace_of_static_run, ran, self._tasks, bound.met)

    def run_emulated(
        self, network: LoadedNetwork, values: Values, durations_us: TaskTimes, dilation: float
    ) -> tuple[Trace, int]:
        """Run at the chip's times, `dilation` times slower; return how many tasks were late too."""
        compute = network.compute
        with self._abort_on_error():
            if self._workers is None:
                self._workers = ThreadExecutor(self._processors, no_work, caller=self._caller)
                self._opened.append(self._workers)
            workers, late = self._workers, self._workers.late

            def work(task: Task) -> None:
                compute(task.subgraph, values)

            workers.restart(work, durations_us, dilation, self._handovers_us)
            trace = run_tasks(self._tasks, placement(self._processors), workers)
            workers.unpin()
            return trace, workers.late - late

    def close(self) -> None:
        """End the threads, and forget the bound memory."""
        self.end_threads()
        self.bound = None

    def end_threads(self) -> None:
        """End the threads; the next run starts new ones."""
        close_all(self._opened)
        self._workers = self._runner = None

    @contextmanager
    def _abort_on_error(self) -> Iterator[None]:
        """End what is in flight before a run raises, and give the caller its cores back."""
        cores = affinity()
        try:
            yield
        except BaseException:  # Ctrl-C: also between binding the caller and keeping who undoes it
            self.end_threads()
            pin(cores)
            raise


def placement(processors: tuple[Processor, ...]) -> StaticPlacement:
    """Return the policy of one run, which keeps tasks where the plan has them."""
    return StaticPlacement(tuple(processor.name for processor in processors))


def trace_of_static_run(ran: RunTimes, tasks: tuple[Task, ...], met: Mapping[str, int]) -> Trace:
    """Return the trace of a static run; keeps no reference to the session."""
    return restore_noops(ran.trace(), tasks, met, ran.duration_us)


def close_all(opened: list[ThreadExecutor | StaticOrderRunner]) -> None:
    """Close what has threads; what an interrupt leaves is closed the next time."""
    while opened:
        opened[-1].close()
        opened.pop()
