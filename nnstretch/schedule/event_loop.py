"""The one loop: it knows neither processors' speeds nor what a task computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from time import perf_counter

from nnstretch.errors import DeadlineMissed, Stuck
from nnstretch.protocols import Executor, Policy, ProcessorState
from nnstretch.schedule.costs.cost_rows import CostRows
from nnstretch.schedule.loop.processor_queue import GivenTask, ProcessorQueue, Queueing
from nnstretch.schedule.loop.ready_queue import NumberedTask, ReadyQueue
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Failure, Span, TimerEvent, Trace


@dataclass(slots=True)
class DecisionTimes:
    """How long the policy has taken to decide, on this host."""

    rounds: int = 0
    tasks: int = 0
    """Tasks that were chosen."""
    total_s: float = 0.0


class EventLoop:
    """Tasks that wait, what each processor has been given, and the policy between them.

    With `costs` processors have an expected time when they are free, which policies read; an end
    corrects it. `on_give` is told of every task that is given to a processor, `on_drop` of those
    that the policy gives up, `on_change` when processors have failed or are back.
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
        """Queues of which a task ended since the last dispatch."""
        self._tasks = ReadyQueue()
        self._ready: list[NumberedTask] = []
        """Tasks of this instant, of which the policy has not heard."""
        self.waiting: dict[str, Task] = {}
        """Tasks that may start and were not chosen, by name."""
        self.given: dict[str, GivenTask] = {}
        """Tasks that processors have been given, by name."""
        self.times = DecisionTimes()
        self.on_round: Callable[[int, float, float], None] | None = None
        """Told after every round how many tasks waited, and the host's time before and after, s."""

    def add(self, tasks: Iterable[Task]) -> None:
        """Add tasks that need only each other. Raises Stuck as `ReadyQueue.add` does."""
        self._ready += self._tasks.add(tasks)

    def withdraw(self, names: Iterable[str]) -> None:
        """Forget tasks; those that the executor has are let run, and end unheard."""
        for name in names:
            self._tasks.remove(name)
            task = self.waiting.pop(name, None)
            if task is not None:
                self._policy.withdraw(task)
            given = self.given.get(name)
            if given is not None and not given.handed:
                self._take_back(given)
            if self._costs is not None:
                self._costs.forget(name)

    def end(self, event: Span | Failure) -> None:
        """Hear that a task has ended or failed; one that ended lets its successors start.

        A task that failed waits again only if it is announced with `requeue`.
        """
        given = self.given.pop(event.task.name)
        queue = given.queue
        self._freed.append(queue)
        if isinstance(event, Failure):
            queue.end(given, event.at_us)
            return
        queue.end(given, event.end_us)
        if self._costs is not None:
            self._costs.observe(event, queue.state.index)
        if event.task.name in self._tasks:
            self._start_readers(event, queue.state.index)

    def _start_readers(self, span: Span, index: int) -> None:
        costs = self._costs
        name = span.task.name
        if costs is not None and costs.arrivals is not None:
            for reader in self._tasks.readers(name):
                if reader in self._tasks:
                    costs.arrivals.note(span.task, index, span.end_us, self._tasks[reader])
            costs.arrivals.forget(name)
        self._ready += self._tasks.finish(name)

    def requeue(self, name: str) -> None:
        """Let a task start again that was handed over and did not end; others are ignored."""
        if name in self._tasks:
            self._announce(self._tasks[name])

    def task(self, name: str) -> Task:
        """Return an open task as it was added, wherever it was moved."""
        return self._tasks[name]

    def dispatch(self) -> None:
        """Ask the policy until it declines, and hand over as far as executors have room."""
        now_us = self._executor.now_us
        failed = self._executor.failed()
        if failed != self._failed:
            self._on_failed(failed)
        for queue in self._freed:
            if queue.reserved:
                self._hand_over(queue)
        self._freed.clear()
        if self._ready:
            self._announce_ready()
        if self.waiting:
            self._decide_and_give(now_us)

    def _decide_and_give(self, now_us: float) -> None:
        """Ask the policy for a round, and hand over what it chose."""
        for queue in self._queues:
            if queue.head_due_us < now_us:
                queue.be_late(now_us)
        waited, began_s = len(self.waiting), perf_counter()
        chosen = self._decide(now_us)
        ended_s = perf_counter()
        times = self.times
        times.rounds += 1
        times.tasks += len(chosen)
        times.total_s += ended_s - began_s
        if self.on_round is not None:
            self.on_round(waited, began_s, ended_s)
        for given in chosen:
            if given.queue.handed < given.queue.depth:
                self._hand_over(given.queue)

    def unfinished(self) -> list[str]:
        """Return tasks never given to a processor: those that may start first."""
        return [*self.waiting, *self._tasks.unmet]

    def _announce_ready(self) -> None:
        """Tell the policy what may start at this instant, in the order in which it was added."""
        if len(self._ready) > 1:
            self._ready.sort(key=itemgetter(0))
        for _, task in self._ready:
            if task.name in self._tasks and self._tasks[task.name] is task:
                self._announce(task)
        self._ready.clear()

    def _announce(self, task: Task) -> None:
        self.waiting[task.name] = task
        self._policy.add(task)

    def _decide(self, now_us: float) -> list[GivenTask]:
        chosen: list[GivenTask] = []
        pick, states, costs = self._policy.pick, self.states, self._costs
        while self.waiting:
            choice = pick(now_us, states)
            if choice is None:
                break
            task, state = choice
            del self.waiting[task.name]
            if state is None:
                self._drop(task)
                continue
            cost_us, ready_us = 0.0, 0.0
            if costs is not None:
                cost_us = costs.row(task)[state.index]
                if costs.arrivals is not None:
                    ready_us = costs.arrivals.ready_us(task, state.index)
            given = self._queues[state.index].give(task, cost_us, ready_us, now_us)
            self.given[task.name] = given
            chosen.append(given)
        return chosen

    def _drop(self, task: Task) -> None:
        if self._on_drop is None:
            raise DeadlineMissed(f"{task.name} cannot end in time, loop, the policy gave it up")
        self._on_drop(task)

    def _hand_over(self, queue: ProcessorQueue) -> None:
        reserved = queue.reserved
        while reserved and queue.handed < queue.depth and queue.state.alive:
            given = reserved.popleft()
            if given.over:
                continue
            given.handed = True
            queue.handed += 1
            processor = queue.state.processor
            self._executor.submit(given.task, processor, given.ready_us)
            if self._on_give is not None:
                self._on_give(given.task, processor)

    def _on_failed(self, failed: frozenset[str]) -> None:
        """Close processors that have failed; what was only reserved there waits again."""
        self._failed = failed
        for queue in self._queues:
            state = queue.state
            state.alive = state.name not in failed
            state.open = state.alive and queue.count < queue.limit
            if state.alive:
                self._freed.append(queue)
                continue
            lost = [given for given in queue.reserved if not given.over]
            queue.reserved.clear()
            for given in lost:
                self._take_back(given)
                self.requeue(given.task.name)
        if self._on_change is not None:
            self._on_change()

    def _take_back(self, given: GivenTask) -> None:
        del self.given[given.task.name]
        given.queue.take_back(given, self._executor.now_us)


def run_tasks(
    tasks: Iterable[Task],
    policy: Policy,
    executor: Executor,
    costs: CostRows | None = None,
    queueing: Queueing = Queueing.BOUNDED,
) -> Trace:
    """Run every task once, none before the tasks it needs, and report the spans in the order they
    ended.

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
