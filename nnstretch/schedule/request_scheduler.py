"""Requests that come and go: each gets exactly one answer or one error, whatever processors do.

A state machine on the one loop, without a clock and without threads of its own: the virtual clock
and real threads drive the same code. Of a request that is over, what still runs is let run and its
result forgotten.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from math import inf

from nnstretch.errors import Cancelled, DeadlineMissed, ProcessorFailed, Stuck
from nnstretch.protocols import Executor, Policy
from nnstretch.schedule.event_loop import Place, ReadyQueue, dispatch, keep_placement
from nnstretch.schedule.rebalancing import Rebalancer, RemainingTasks
from nnstretch.soc import Processor
from nnstretch.task import Task, TaskTimes
from nnstretch.trace import Failure, Span, TimerEvent

MANY = 64
LOOKED_AT = 4
"""Requests, the oldest, whose ready tasks may move now.

Of many open ones the others have to wait anyway.
"""


@dataclass(frozen=True, slots=True)
class Request:
    """One input on its way through a network."""

    number: int
    tasks: tuple[Task, ...]
    """They need only each other; their names hold the number."""
    deadline_us: float = inf
    """On the executor's clock; afterwards nobody wants the answer."""
    stays: bool = False
    """Its tasks are not moved because a processor is slow, only where it is gone."""


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The end of a request."""

    request: int
    arrived_us: float
    ended_us: float
    error: Exception | None
    """None where all of its tasks ended."""
    replaced: int
    """Tasks of it that ran elsewhere than planned, because their processor had failed or was slow.
    """

    @property
    def latency_us(self) -> float:
        """Return the time from arrival to end."""
        return self.ended_us - self.arrived_us


@dataclass(slots=True)
class PendingRequest:
    """A request that has not been answered yet."""

    request: Request
    arrived_us: float
    left: set[str]
    """Tasks that have not ended."""
    planned: dict[str, str | None]
    """Task -> processor."""
    replaced: int = 0


@dataclass(frozen=True, slots=True)
class DeadlineTimer:
    """What the service's own alarm says: some deadline is over."""


class RequestScheduler:
    """Takes requests at any time and answers each once, by calling `answered`.

    A processor that is gone is used no more until it is back: tasks that were on it or planned for
    it go to the processor that is predicted to be fastest among the others. A request is refused
    with ProcessorFailed only where none is left. With a `mover`, ready tasks of a processor that is
    slow go to others as well.
    """

    def __init__(
        self,
        processors: Sequence[Processor],
        policy: Policy,
        executor: Executor,
        answered: Callable[[RequestOutcome], None],
        durations_us: TaskTimes | None = None,
        ended: Callable[[Span], None] | None = None,
        rebalancer: Rebalancer | None = None,
    ) -> None:
        self._rebalancer = rebalancer
        self.alive = self._processors = tuple(processors)
        self._policy, self._executor, self._answered, self._ended = (
            policy,
            executor,
            answered,
            ended,
        )
        self.heard: Callable[[Span | Failure | TimerEvent], None] | None = None
        """Told of every event, for traces."""
        self._durations_us = durations_us or {}
        self._ready_queue = ReadyQueue()
        self._deadlines: list[tuple[float, int]] = []
        """A heap; answered requests leave it when they come to its top, or outnumber the open ones.
        """
        self._next_us = inf
        """Of the earliest alarm that is set."""
        self._open: dict[int, PendingRequest] = {}
        self._running: dict[str, int] = {}
        """Task -> its request, until its executor says that it has ended or failed.

        Its request may be over by then.
        """

    def __len__(self) -> int:
        """Return how many requests have not been answered."""
        return len(self._open)

    def submit(self, request: Request) -> None:
        """Begin a request. Raises Stuck for a number that is open, or for tasks that are there
        already.
        """
        if request.number in self._open:
            raise Stuck(
                f"request {request.number} is open already, service, every request needs a number"
                " of its own"
            )
        now_us = self._executor.now_us
        self._ready_queue.add(request.tasks)
        self._open[request.number] = PendingRequest(
            request,
            now_us,
            {task.name for task in request.tasks},
            {t.name: t.processor for t in request.tasks},
        )
        if not self.alive:
            self._close(request.number, no_processor_error(request.number))
        elif not request.tasks:
            self._close(request.number, None)
        elif request.deadline_us < inf:
            heapq.heappush(self._deadlines, (request.deadline_us, request.number))
            self._set_deadline_timer()

    def cancel(self, number: int) -> bool:
        """Take a request back; False where it has been answered. What runs of it ends unheard."""
        return self._close(
            number,
            Cancelled(
                f"request {number} was cancelled, service, its answer is not wanted any more"
            ),
        )

    def close(self) -> None:
        """End every open request with an error."""
        for number in tuple(self._open):
            self._close(
                number, Cancelled(f"request {number} was open, service, it has been closed")
            )

    def step(self) -> Hashable | None:
        """Hand out what is ready, then hear of one event.

        Its subject where the event is an alarm of somebody else's. None at the end.

        Raises Stuck where requests are open and nothing can happen any more.
        """
        self.dispatch()
        event = self._executor.wait()
        if event is None:
            if self._open:
                raise Stuck(
                    f"{len(self._open)} requests are open, service, nothing is in flight and"
                    " nothing is due"
                )
            return None
        return self.handle(event)

    def dispatch(self) -> None:
        """Submit ready tasks as far as there is room."""
        self._check_processors()
        for task, processor in dispatch(
            self._ready_queue, self._policy, self._executor, self._place()
        ):
            self._running[task.name] = task.request
            open_ = self._open[task.request]
            open_.replaced += open_.planned[task.name] not in (None, processor.name)
            if self._rebalancer is not None:
                self._rebalancer.on_dispatch(task, processor.name, self._executor.now_us)

    def handle(self, event: Span | Failure | TimerEvent) -> Hashable:
        """Handle an event; return the tag of a timer that is not the scheduler's own, else
        True.
        """
        if self.heard is not None:
            self.heard(event)
        if isinstance(event, TimerEvent):
            if not isinstance(event.tag, DeadlineTimer):
                return event.tag
            self._expire_deadlines()
            return True
        number = self._running.pop(event.task.name)
        if self._rebalancer is not None:
            took_us = event.duration_us if isinstance(event, Span) else None
            name, now_us = event.task.name, self._executor.now_us
            self._rebalancer.on_end(name, event.processor, took_us, now_us)
        if isinstance(event, Span):
            self._end(event, number)
        elif isinstance(event.error, ProcessorFailed):
            self._requeue_lost(event, number)
        else:
            self._close(number, event.error)
        return True

    def _end(self, span: Span, number: int) -> None:
        if self._ended is not None:
            self._ended(span)
        if (open_ := self._open.get(number)) is None:
            return
        self._ready_queue.finish(span.task.name)
        open_.left.discard(span.task.name)
        if not open_.left:
            self._close(number, None)

    def _requeue_lost(self, failure: Failure, number: int) -> None:
        """Requeue the tasks of a lost processor, which serves no more."""
        if number in self._open:
            self._ready_queue.requeue(failure.task.name)
        self._check_processors()

    def _check_processors(self) -> None:
        """Serve on what is left; where nothing is, every open request ends with an error."""
        gone = self._executor.failed()
        if len(gone) + len(self.alive) != len(self._processors) or gone:
            self.alive = tuple(
                processor for processor in self._processors if processor.name not in gone
            )
        if not self.alive:
            for number in tuple(self._open):
                self._close(number, no_processor_error(number))

    def _expire_deadlines(self) -> None:
        """End requests that have missed their deadline; then wait for the next one."""
        self._next_us = inf
        while self._deadlines and self._deadlines[0][0] <= self._executor.now_us:
            at_us, late = heapq.heappop(self._deadlines)
            self._close(
                late,
                DeadlineMissed(
                    f"request {late} missed its deadline at {at_us / 1000:.3f} ms, service"
                ),
            )
        self._set_deadline_timer()

    def _set_deadline_timer(self) -> None:
        if len(self._deadlines) > 2 * len(self._open) + MANY:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._open]
            heapq.heapify(self._deadlines)
        while self._deadlines and self._deadlines[0][1] not in self._open:
            heapq.heappop(self._deadlines)
        if self._deadlines and self._deadlines[0][0] < self._next_us:
            self._next_us = self._deadlines[0][0]
            self._executor.set_timer(self._next_us, DeadlineTimer())

    def _close(self, number: int, error: Exception | None) -> bool:
        open_ = self._open.pop(number, None)
        if open_ is None:
            return False
        self._ready_queue.remove(open_.left)
        self._answered(
            RequestOutcome(number, open_.arrived_us, self._executor.now_us, error, open_.replaced)
        )
        return True

    def _place(self) -> Place:
        moves = self._moves()
        if moves:
            return lambda task: (
                replace(task, processor=moves[task.name])
                if task.name in moves
                else self._failover_processor(task)
            )
        return (
            keep_placement if len(self.alive) == len(self._processors) else self._failover_processor
        )

    def _failover_processor(self, task: Task) -> Task:
        """Return the task on the processor that takes over while its own is away."""
        if task.processor is None or any(
            processor.name == task.processor for processor in self.alive
        ):
            return task
        return replace(task, processor=fastest_replacement(task, self.alive, self._durations_us))

    def _moves(self) -> dict[str, str]:
        """Return ready tasks that go elsewhere now, because their processor is slow."""
        if self._rebalancer is None or not self._ready_queue.ready or not self._executor.free():
            return {}
        forecast = self._rebalancer.forecast(
            [processor.name for processor in self.alive], self._executor.now_us
        )
        if not self._rebalancer.any_slow(forecast):
            return {}
        ready: dict[int, list[str]] = {}
        for task in self._ready_queue.ready.values():
            ready.setdefault(task.request, []).append(task.name)
        return self._rebalancer.moves(
            [self._remaining(number, tuple(ready[number])) for number in sorted(ready)[:LOOKED_AT]],
            forecast,
        )

    def _remaining(self, number: int, ready: tuple[str, ...]) -> RemainingTasks:
        open_ = self._open[number]
        left = [task for task in open_.request.tasks if task.name in open_.left]
        tasks = tuple(
            self._failover_processor(task) for task in left if task.name not in self._running
        )
        return RemainingTasks(
            tasks,
            ready,
            tuple(task.name for task in left if task.name in self._running),
            open_.request.stays,
        )


def no_processor_error(number: int) -> ProcessorFailed:
    """Return the error of a request without a processor left."""
    return ProcessorFailed(f"request {number} cannot run, service, every processor has failed")


def fastest_replacement(task: Task, alive: Sequence[Processor], durations_us: TaskTimes) -> str:
    """Return the fastest processor among those with a predicted time.

    Where none has one, a CPU, or the first.
    """
    timed = [processor for processor in alive if (task.work, processor.name) in durations_us]
    if timed:
        return min(timed, key=lambda processor: durations_us[task.work, processor.name]).name
    return next((processor.name for processor in alive if processor.kind == "cpu"), alive[0].name)
