"""The one loop: it knows neither processors' speeds nor what a task computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from time import perf_counter

from nnstretch.errors import DeadlineMissed, Stuck
from nnstretch.protocols import Executor, Policy, ProcessorState
from nnstretch.schedule.costs.cost_rows import CostRows
from nnstretch.schedule.loop.decision_times import DecisionTimes
from nnstretch.schedule.loop.impossible_choice import impossible_choice
from nnstretch.schedule.loop.open_task import OpenTask
from nnstretch.schedule.loop.processor_queue import ProcessorQueue, Queueing
from nnstretch.schedule.loop.ready_queue import ReadyQueue
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Failure, Span, TimerEvent, Trace


class EventLoop:
    """Tasks that wait, what each processor has been given, and the policy between them.

    With `costs` processors have an expected time when they are free, corrected by ends. `on_give`
    is told of tasks that processors are given, `on_drop` of those that are given up by the policy
    or with their processors, `on_change` when processors have failed or are back.
    """

    def __init__(
        self,
        processors: Sequence[Processor],
        policy: Policy,
        executor: Executor,
        costs: CostRows | None = None,
        queueing: Queueing = Queueing.BOUNDED,
        on_give: Callable[[Task, Processor], None] | None = None,
        on_drop: Callable[[Task], None] | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self._policy = policy
        self._executor = executor
        self._costs = costs
        self._on_give = on_give
        self._on_drop = on_drop
        self._on_change = on_change
        self.states = tuple(ProcessorState(p, number) for number, p in enumerate(processors))
        self._queues = tuple(
            ProcessorQueue(state, state.processor.queue_depth, queueing.limit(state.processor))
            for state in self.states
        )
        self._failed: frozenset[str] = frozenset()
        self._freed: list[ProcessorQueue] = []
        """Queues with reserved tasks of which one ended since the last dispatch."""
        self._tasks = ReadyQueue()
        self._open = self._tasks.by_name
        self._ready: list[OpenTask] = []
        """Tasks of this instant, of which the policy has not heard."""
        self.waiting = 0
        """Tasks that may start and were not chosen."""
        self._unheard: dict[str, OpenTask] = {}
        """Tasks that executors have, and that were withdrawn."""
        self.times = DecisionTimes()
        self.on_round: Callable[[int, float, float], None] | None = None
        """Told after every round how many tasks waited, and the host's time before and after, s."""

    def add(self, tasks: Iterable[Task]) -> None:
        """Add tasks that need only each other. Raises Stuck as `ReadyQueue.add` does."""
        self._ready += self._tasks.add(tasks)

    def withdraw(self, names: Iterable[str]) -> None:
        """Forget tasks; those that the executor has are let run, and end unheard."""
        for name in names:
            open_task = self._tasks.remove(name)
            if open_task is None:
                continue
            if open_task.waits:
                self.waiting -= 1
                self._policy.withdraw(open_task.task)
            if open_task.handed:
                self._unheard[name] = open_task
            elif open_task.place is not None:
                self._queues[open_task.place].take_back(open_task, self._executor.now_us)
            if self._costs is not None:
                self._costs.forget(name)

    def end(self, event: Span | Failure) -> bool:
        """Hear that a task has ended or failed; one that ended lets its successors start.

        A task that failed waits again only if it is announced with `requeue`. Returns whether the
        task was open: one that was withdrawn is not.
        """
        name, costs = event.task.name, self._costs
        unheard = self._unheard.pop(name, None) if self._unheard else None
        open_task = self._open[name] if unheard is None else unheard
        index = open_task.place
        if index is None:
            raise Stuck(f"task {name} has ended, loop, it was never handed over")
        queue = self._queues[index]
        if queue.count > queue.handed:
            self._freed.append(queue)
        if isinstance(event, Failure):
            queue.end(open_task, event.at_us)
            if unheard is None:
                self._tasks.renew(open_task)
            return unheard is None
        queue.end(open_task, event.end_us)
        # What was withdrawn may have been cut short: it says nothing about costs.
        if unheard is not None:
            return False
        if costs is not None:
            costs.observe(open_task.costs, event, index)
            if costs.arrivals is not None:
                costs.arrivals.note_end(event, index, self._tasks.readers(open_task))
        if open_task.graph is None:
            del self._open[name]
        else:
            self._ready += self._tasks.finish(open_task)
        return True

    def requeue(self, name: str) -> None:
        """Let a task start again that was handed over and did not end; others are ignored."""
        if (open_task := self._open.get(name)) is not None:
            self._announce(open_task)
            self._give_up_stranded((open_task,))

    def is_open(self, name: str) -> bool:
        """Return whether a task has neither ended nor been withdrawn."""
        return name in self._open

    def is_given(self, name: str) -> bool:
        """Return whether a processor has been given an open task."""
        return name in self._open and self._open[name].place is not None

    def dispatch(self) -> None:
        """Ask the policy until it declines, and hand over as far as executors have room."""
        failed = self._executor.failed()
        if failed is not self._failed and failed != self._failed:
            self._hear_failed(failed)
        if self._freed:
            for queue in self._freed:
                self._hand_over(queue)
            self._freed.clear()
        if self._ready:
            self._announce_ready()
        if self.waiting:
            self._decide_and_give(self._executor.now_us)

    def _decide_and_give(self, now_us: float) -> None:
        """Ask the policy for a round, and hand over what it chose."""
        for queue in self._queues:
            if queue.head_due_us < now_us:
                queue.be_late(now_us)
        waited, began_s = self.waiting, perf_counter()
        chosen = self._decide(now_us)
        ended_s = perf_counter()
        times = self.times
        times.rounds += 1
        times.tasks += len(chosen)
        times.total_s += ended_s - began_s
        if self.on_round is not None:
            self.on_round(waited, began_s, ended_s)
        for queue in chosen:
            if queue.handed < queue.depth:
                self._hand_over(queue)

    def unfinished(self) -> list[str]:
        """Return tasks never given to a processor: those that may start first."""
        return self._tasks.unfinished()

    def _announce_ready(self) -> None:
        """Tell the policy what may start at this instant, in the order in which it was added."""
        if len(self._ready) > 1:
            self._ready.sort(key=attrgetter("number"))
        add = self._policy.add
        for open_task in self._ready:
            if not open_task.withdrawn:
                open_task.waits = True
                self.waiting += 1
                add(open_task.task)
        if self._failed:
            self._give_up_stranded(tuple(self._ready))
        self._ready.clear()

    def _give_up_stranded(self, open_tasks: Iterable[OpenTask]) -> None:
        """Give up tasks whose processors have all failed."""
        if self._failed and self._costs is not None and self._on_drop is not None:
            waiting = [open_task.task for open_task in open_tasks if open_task.waits]
            for task in filter(self._costs.is_stranded, waiting):
                if task.name in self._open:
                    self._on_drop(task)

    def _announce(self, open_task: OpenTask) -> None:
        open_task.waits = True
        self.waiting += 1
        self._policy.add(open_task.task)

    def _decide(self, now_us: float) -> list[ProcessorQueue]:
        chosen: list[ProcessorQueue] = []
        pick, states, costs, by_name = self._policy.pick, self.states, self._costs, self._open
        while self.waiting:
            choice = pick(now_us, states)
            if choice is None:
                break
            task, state = choice
            open_task = by_name.get(task.name)
            if open_task is None or not open_task.waits or not (state is None or state.open):
                raise impossible_choice(self._policy, task, state, open_task)
            open_task.waits = False
            self.waiting -= 1
            if state is None:
                self._drop(task)
                continue
            index, cost_us, ready_us = state.index, 0.0, 0.0
            if costs is not None:
                of_kind = open_task.costs = costs.of(task)
                cost_us = of_kind.row[index]
                if costs.arrivals is not None:
                    ready_us = costs.arrivals.ready_us(task, index)
            queue = self._queues[index]
            queue.give(open_task, cost_us, ready_us, now_us)
            chosen.append(queue)
        return chosen

    def _drop(self, task: Task) -> None:
        if self._on_drop is None:
            raise DeadlineMissed(f"{task.name} cannot end in time, loop, the policy gave it up")
        self._on_drop(task)

    def _hand_over(self, queue: ProcessorQueue) -> None:
        processor = queue.state.processor
        while queue.handed < queue.depth and queue.state.alive:
            given = queue.hand_over()
            if given is None:
                return
            self._executor.submit(given.task, processor, given.ready_us)
            if self._on_give is not None:
                self._on_give(given.task, processor)

    def _hear_failed(self, failed: frozenset[str]) -> None:
        """Close processors that have failed; what was only reserved there waits again."""
        self._failed = failed
        if self._costs is not None:
            self._costs.hear_failed(failed)
        for queue in self._queues:
            state = queue.state
            state.alive = state.name not in failed
            state.open = state.alive and queue.count < queue.limit
            if state.alive:
                self._freed.append(queue)
                continue
            for open_task in queue.take_back_reserved(self._executor.now_us):
                self._announce(self._tasks.renew(open_task))
        if self._on_change is not None:
            self._on_change()
        self._give_up_stranded(tuple(self._open.values()))


def run_tasks(
    tasks: Iterable[Task],
    policy: Policy,
    executor: Executor,
    costs: CostRows | None = None,
    queueing: Queueing = Queueing.BOUNDED,
) -> Trace:
    """Run every task once, none before those it needs; report spans in the order they ended.

    Raises what a task raised, Stuck where tasks are left that nobody may start.
    """
    loop = EventLoop(executor.processors, policy, executor, costs, queueing)
    spans: list[Span] = []
    marks: list[TimerEvent] = []
    loop.add(tasks)
    loop.dispatch()
    while (event := executor.wait()) is not None:
        if isinstance(event, Failure):
            raise event.error
        if isinstance(event, Span):
            spans.append(event)
            loop.end(event)
        else:
            marks.append(event)
        if not executor.more():
            loop.dispatch()
    if unfinished := loop.unfinished():
        raise Stuck(
            f"{len(unfinished)} tasks never ran, {', '.join(unfinished[:5])}, nothing is in flight"
            " and the policy or their needs hold them"
        )
    return Trace(tuple(spans), tuple(marks))
