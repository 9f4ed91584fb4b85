"""A schedule that is decided, run by the threads themselves.

Who has ended a task goes on with the next of its own list.

The loop decides once, on the virtual clock, what each processor does in which order; that is
repeated for one input after another. Between a meeting point and what it waits for there is then
neither a queue nor a loop, only a flag.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from zlib import crc32

from nnstretch.protocols import Policy
from nnstretch.schedule.cpu_affinity import affinity, core_per_thread, pin, spin_buffer
from nnstretch.schedule.event_loop import run_tasks
from nnstretch.schedule.executors.virtual import VirtualExecutor
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Span, Trace

AWAKE_S = 5e-3
"""How long a thread on a core of its own looks for what it waits for before it sleeps.

To wake it costs more than most merges.
"""

Call = Callable[[], object]
Decided = dict[str, tuple[Task, ...]]
"""By processor, its tasks in the order in which it runs them."""


def static_order(
    tasks: Sequence[Task], processors: tuple[Processor, ...], policy: Policy
) -> Decided:
    """Return the order in which the loop starts tasks that take equally long.

    Raises what `run_tasks` does.

    No list can block another: a task stands in its list behind all that start before it, and so do
    its needs.
    """
    alike = {(task.work, task.processor or ""): 1.0 for task in tasks}
    trace = run_tasks(tasks, policy, VirtualExecutor(processors, alike))
    spans = sorted(trace.spans, key=lambda span: span.start_us)
    return {
        p.name: tuple(span.task for span in spans if span.processor == p.name) for p in processors
    }


@dataclass(slots=True)
class StaticStep:
    """One task of a list: what it waits for, and who may wait for it."""

    task: Task
    number: int
    needs: tuple[int, ...]
    """Numbers of tasks of other lists; those of the own one have ended."""
    readers: list[ProcessorThread]


@dataclass(slots=True)
class Iteration:
    """One run: what has ended and when.

    Each has its own, so a thread that is still leaving one does not disturb the next.
    """

    calls: Sequence[Call]
    """By the number of a task, as `ended` and `times_s`."""
    ended: list[bool]
    times_s: list[tuple[float, float]]
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class ProcessorThread:
    """One processor's thread."""

    processor: str
    core: set[int] | None
    steps: list[StaticStep] = field(default_factory=list)
    rounds: queue.SimpleQueue[Iteration | None] = field(default_factory=queue.SimpleQueue)
    wakeup: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue)
    asleep: bool = False
    """Whoever sets a flag and then sees this rings.

    Whoever sets this and then sees no flag waits for the bell. One of them sees the other.
    """


@dataclass(frozen=True, slots=True)
class RunTimes:
    """A run that is over. Who asks how it went pays for it, not who waits for its numbers."""

    workers: tuple[ProcessorThread, ...]
    times_s: Sequence[tuple[float, float]]
    """By the number of a task: begin and end.

    Nothing here holds what was called, which may be large.
    """
    begun_s: float
    over_s: float
    """When the caller saw that all had ended."""

    @property
    def durations_us(self) -> float:
        """Return the time since the run's begin."""
        return (self.over_s - self.begun_s) * 1e6

    def trace(self) -> Trace:
        """Return the run as a trace."""
        spans = [
            Span(
                (start_s - self.begun_s) * 1e6,
                (end_s - self.begun_s) * 1e6,
                step.task,
                worker.processor,
            )
            for worker in self.workers
            for step, (start_s, end_s) in (
                (step, self.times_s[step.number]) for step in worker.steps
            )
        ]
        return Trace(tuple(sorted(spans, key=lambda span: span.end_us)))


class StaticExecutor:
    """Pinned threads that repeat a decided schedule.

    The calling thread works off the list of `caller`, if that is named.

    After a run that raised, `close`: what is in flight ends with it.
    """

    def __init__(
        self,
        plan: Decided,
        caller: str | None = None,
        placed: Mapping[str, set[int] | None] | None = None,
    ) -> None:
        """Create the executor; `placed`: on which cores each processor's thread runs.

        One for each where absent, as far as there are enough.
        """
        placed = (
            dict(zip(plan, core_per_thread(len(plan)), strict=True)) if placed is None else placed
        )
        self._workers = {name: ProcessorThread(name, placed[name]) for name in plan}
        self._awake_s = AWAKE_S if caller is not None and all(placed.values()) else 0.0
        self._idle = spin_buffer()
        self._count = _link_steps(plan, self._workers)
        self._subgraphs = [task.subgraph for tasks in plan.values() for task in tasks]
        self._caller = self._workers.get(caller or "") or ProcessorThread("", None)
        for worker in self._start_threads():
            if worker.steps:
                worker.steps[-1].readers.append(self._caller)
        self._threads = [
            threading.Thread(
                target=self._serve,
                args=(worker,),
                name=f"nnstretch-{worker.processor}",
                daemon=True,
            )
            for worker in self._workers.values()
            if worker is not self._caller
        ]
        for thread in self._threads:
            thread.start()

    def run(self, calls: Mapping[str, Call]) -> RunTimes:
        """Run every task once, by what runs its sub-graph.

        Raises what the first that failed raised; then nothing more is begun.
        """
        iteration = Iteration(
            [calls[name] for name in self._subgraphs],
            [False] * self._count,
            [(0.0, 0.0)] * self._count,
        )
        before = affinity() if self._caller.core else None
        pin(self._caller.core)
        origin_s = perf_counter()
        try:
            for worker in self._start_threads():
                worker.rounds.put(iteration)
            self._run_steps(self._caller, iteration)
            for worker in self._start_threads():
                if worker.steps:
                    self._await(self._caller, worker.steps[-1].number, iteration)
        except BaseException as error:
            self._fail(iteration, error)
        finally:
            over_s = perf_counter()
            pin(before)
        if iteration.error is not None:
            raise iteration.error
        return RunTimes(tuple(self._workers.values()), iteration.times_s, origin_s, over_s)

    def close(self) -> None:
        """Let what runs end, and join every thread; harmless when repeated."""
        for worker in self._start_threads():
            worker.rounds.put(None)
        for thread in self._threads:
            if (
                thread is not threading.current_thread()
            ):  # which may be the one that collects garbage
                thread.join()

    def _start_threads(self) -> list[ProcessorThread]:
        return [worker for worker in self._workers.values() if worker is not self._caller]

    def _serve(self, worker: ProcessorThread) -> None:
        pin(worker.core)
        while True:
            self._wait_for_iteration(worker)
            if (iteration := worker.rounds.get()) is None:
                return
            try:
                self._run_steps(worker, iteration)
            except BaseException as error:
                self._fail(iteration, error)

    def _wait_for_iteration(self, worker: ProcessorThread) -> None:
        """Stay awake until there is something to do, while that is worth it."""
        until_s, empty, idle = perf_counter() + self._awake_s, worker.rounds.empty, self._idle
        while empty() and perf_counter() < until_s:
            crc32(idle)

    def _run_steps(self, worker: ProcessorThread, iteration: Iteration) -> None:
        """Run a processor's steps; after a long call nothing of this is in the core's caches, and
        Python's lock is held meanwhile, so it calls nothing of ours.
        """
        calls, ended, times_s = iteration.calls, iteration.ended, iteration.times_s
        for step in worker.steps:
            for need in step.needs:
                if not ended[need]:
                    self._await(worker, need, iteration)
            if iteration.error is not None:
                return
            call = calls[step.number]
            start_s = perf_counter()
            call()
            times_s[step.number] = (start_s, perf_counter())
            ended[step.number] = True
            for reader in step.readers:
                if reader.asleep:
                    reader.wakeup.put(None)

    def _await(self, worker: ProcessorThread, need: int, iteration: Iteration) -> None:
        """Wait until a task has ended, or the run has failed: awake for a while, then asleep.

        What is done between two checksums is done with Python's lock, in the way of who ends the
        task: few words, no calls of ours.
        """
        until_s, ended, idle = perf_counter() + self._awake_s, iteration.ended, self._idle
        while not ended[need] and iteration.error is None and perf_counter() < until_s:
            crc32(idle)
        while not iteration.ended[need] and iteration.error is None:
            worker.asleep = True
            if not iteration.ended[need] and iteration.error is None:
                worker.wakeup.get()
            worker.asleep = False

    def _fail(self, iteration: Iteration, error: BaseException) -> None:
        iteration.error = iteration.error or error
        for worker in (*self._workers.values(), self._caller):
            worker.wakeup.put(None)


def _link_steps(plan: Decided, workers: dict[str, ProcessorThread]) -> int:
    """Count all tasks, and tell each what it waits for and whom it may wake."""
    numbers = {
        task.name: n for n, task in enumerate(task for tasks in plan.values() for task in tasks)
    }
    home = {task.name: name for name, tasks in plan.items() for task in tasks}
    for name, tasks in plan.items():
        for task in tasks:
            needs = tuple(numbers[need] for need in sorted(task.needs) if home[need] != name)
            workers[name].steps.append(StaticStep(task, numbers[task.name], needs, []))
    by_number = {step.number: step for worker in workers.values() for step in worker.steps}
    for worker in workers.values():
        for step in worker.steps:
            for need in step.needs:
                by_number[need].readers.append(worker)
    return len(numbers)
