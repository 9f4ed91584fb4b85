"""Single runs of a static order, which the loop decides once, on the virtual clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from time import perf_counter

from nnstretch.protocols import Policy
from nnstretch.schedule.cpu_affinity import affinity, core_per_thread, pin
from nnstretch.schedule.event_loop import run_tasks
from nnstretch.schedule.executors.static import Call, StaticExecutor, StaticStep, StaticWorker
from nnstretch.schedule.executors.virtual import VirtualExecutor
from nnstretch.schedule.policies.static_placement import StaticPlacement
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Span, Trace

AWAKE_S = 5e-3
"""How long a thread that has a core to itself spins before it sleeps.

To wake it costs more than most merges.
"""

StaticOrder = dict[str, tuple[Task, ...]]
"""By processor, its tasks in the order in which it runs them."""


def start_order(
    tasks: Sequence[Task], processors: tuple[Processor, ...], policy: Policy | None = None
) -> tuple[tuple[str, Task], ...]:
    """Return (processor, task) in the order in which the loop starts tasks of equal length.

    Every task comes after its needs. `policy` places tasks as planned where absent. Raises what
    `run_tasks` does.
    """
    alike = {(task.work, task.processor or ""): 1.0 for task in tasks}
    placement = policy or StaticPlacement(tuple(processor.name for processor in processors))
    trace = run_tasks(tasks, placement, VirtualExecutor(processors, alike))
    by_start = sorted(trace.spans, key=lambda span: span.start_us)
    return tuple((span.processor, span.task) for span in by_start)


def static_order(
    tasks: Sequence[Task], processors: tuple[Processor, ...], policy: Policy | None = None
) -> StaticOrder:
    """Return the `start_order` of each processor: no processor can block another."""
    order: dict[str, list[Task]] = {processor.name: [] for processor in processors}
    for name, task in start_order(tasks, processors, policy):
        order[name].append(task)
    return {name: tuple(of_processor) for name, of_processor in order.items()}


@dataclass(frozen=True, slots=True)
class RunTimes:
    """When each task of a run began and ended; holds nothing of what was called."""

    order: StaticOrder
    times_s: Sequence[tuple[float, float]]
    """Begin and end of each task, in the order's order."""
    begin_s: float
    end_s: float
    """When the caller saw that all had ended."""

    @property
    def duration_us(self) -> float:
        """Return the time of the whole run."""
        return (self.end_s - self.begin_s) * 1e6

    def trace(self) -> Trace:
        """Return the run as a trace."""
        placed: list[tuple[str, Task]] = []
        for processor, tasks in self.order.items():
            placed += [(processor, task) for task in tasks]
        spans = []
        for (processor, task), (begin_s, end_s) in zip(placed, self.times_s, strict=True):
            start_us = (begin_s - self.begin_s) * 1e6
            spans.append(Span(start_us, (end_s - self.begin_s) * 1e6, task, processor))
        return Trace(tuple(sorted(spans, key=lambda span: span.end_us)))


class StaticOrderRunner:
    """Pinned threads that repeat a static order.

    The calling thread works off the tasks of the processor `caller`, if that is named. After a run
    that raised, `close`: what is in flight ends with it.
    """

    def __init__(
        self,
        order: StaticOrder,
        caller: str | None = None,
        cores: Mapping[str, set[int] | None] | None = None,
    ) -> None:
        """Make the threads, which start with the first run. `cores`: where each of them runs.

        One core each where absent, as far as there are enough.
        """
        if cores is None:
            cores = dict(zip(order, core_per_thread(len(order)), strict=True))
        awake_s = AWAKE_S if caller is not None and all(cores.values()) else 0.0
        source, steps = StaticStep("source"), linked_steps(order)
        workers = {
            name: StaticWorker(name, tuple(steps[task.name] for task in tasks), cores[name])
            for name, tasks in order.items()
        }
        self._order, self._steps = order, tuple(steps.values())
        self._caller = workers.pop(caller or "", StaticWorker("", ()))
        threads = [worker for worker in workers.values() if worker.steps]
        for worker in (*threads, self._caller):
            worker.awake_s = awake_s
        for worker in threads:
            worker.steps[0].waits = (((source,), 0), *worker.steps[0].waits)
        results = [((worker.steps[-1],), 0) for worker in threads]
        groups = [(worker,) for worker in (*threads, self._caller)]
        self._executor = StaticExecutor(groups, source, (), results, self._caller)
        self._is_started = False

    def run(self, calls: Mapping[str, Call]) -> RunTimes:
        """Run every task once; `calls` by sub-graph.

        Raises what the first that failed raised; then nothing more is begun.
        """
        if not self._is_started:
            self._executor.start()
            self._is_started = True
        for step in self._steps:
            step.call = calls[step.name]
        before = affinity() if self._caller.cores else None
        try:
            pin(self._caller.cores)
            begin_s = perf_counter()
            self._executor.run_once(self._caller)
            end_s = perf_counter()
            pin(before)
        except BaseException:  # also where Ctrl-C hits the line before
            pin(before)
            raise
        times_s = [(step.begin_s, step.end_s) for step in self._steps]
        return RunTimes(self._order, times_s, begin_s, end_s)

    def is_worker(self) -> bool:
        """Return whether the calling thread is one of the runner's own."""
        return self._executor.is_worker()

    def close(self) -> None:
        """Let what runs end, and join every thread; harmless when repeated."""
        self._executor.close()


def linked_steps(order: StaticOrder) -> dict[str, StaticStep]:
    """Return the step of every task by the task's name.

    A step waits for what it needs on other processors; what its own runs before it has ended.
    """
    every = chain.from_iterable(order.values())
    steps = {task.name: StaticStep(task.subgraph) for task in every}
    for tasks in order.values():
        local = {task.name for task in tasks}
        for task in tasks:
            remote = sorted(need for need in task.needs if need not in local)
            steps[task.name].waits = tuple(((steps[need],), 0) for need in remote)
    return steps
