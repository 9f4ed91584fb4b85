"""Requests that come and go: each gets exactly one answer or one error, whatever processors do.

A state machine on the event loop, without a clock and without threads of its own: the virtual clock
and real threads drive the same code. Tasks in flight of a request that is over are let run, and
their results are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from math import inf

from nnstretch.errors import Cancelled, ProcessorFailed, Stuck
from nnstretch.protocols import Executor, Policy
from nnstretch.schedule.event_loop import Place, ReadyQueue, dispatch, keep_placement
from nnstretch.schedule.policies.failover import fail_over
from nnstretch.schedule.rebalancing import Rebalancer, RemainingTasks
from nnstretch.schedule.request import (
    Deadlines,
    PendingRequest,
    Request,
    RequestOutcome,
    deadline_error,
    no_processor_error,
)
from nnstretch.soc import Processor
from nnstretch.task import Task, TaskTimes
from nnstretch.trace import Failure, Span, TimerEvent

LOOKED_AT = 4
"""Requests, the oldest, whose ready tasks may move now.

Of many open ones the others have to wait anyway.
"""


@dataclass(frozen=True, slots=True)
class DeadlineTimer:
    """Tag of the scheduler's own timer: some deadline is over."""


class RequestScheduler:
    """Takes requests at any time and answers each once, by calling `answered`.

    A processor that is lost is used no more until it is back; its tasks go where `fail_over` says.
    A request is refused with ProcessorFailed only where no processor is alive. With a `rebalancer`,
    ready tasks leave slow processors as well.
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
        self._processors = tuple(processors)
        self.alive = self._processors
        self._policy = policy
        self._executor = executor
        self._answered = answered
        self._ended = ended
        self._rebalancer = rebalancer
        self.heard: Callable[[Span | Failure | TimerEvent], None] | None = None
        """Told of every event, for traces."""
        self._durations_us = durations_us or {}
        self._ready_queue = ReadyQueue()
        self._deadlines = Deadlines()
        self._next_us = inf
        """When the earliest timer that is set rings."""
        self._open: dict[int, PendingRequest] = {}
        self._running: dict[str, int] = {}
        """Request by task, until the executor says that the task has ended or failed.

        The request may be over by then.
        """

    def __len__(self) -> int:
        """Return how many requests have not been answered."""
        return len(self._open)

    def submit(self, request: Request) -> None:
        """Begin a request. Raises Stuck for a number or a task that is open already."""
        if request.number in self._open:
            raise Stuck(
                f"request {request.number} is open already, service, every request needs a number"
                " of its own"
            )
        self._ready_queue.add(request.tasks)
        self._open[request.number] = PendingRequest(request, self._executor.now_us)
        if not self.alive:
            self._close(request.number, no_processor_error(request.number))
        elif not request.tasks:
            self._close(request.number, None)
        elif request.deadline_us < inf:
            self._deadlines.add(request)
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
        """Dispatch ready tasks, wait for one event and handle it; None at the end.

        Returns what `handle` does. Raises Stuck where requests are open and nothing can happen.
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
        open_.unfinished.discard(span.task.name)
        if not open_.unfinished:
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
            self.alive = tuple(p for p in self._processors if p.name not in gone)
        if not self.alive:
            for number in tuple(self._open):
                self._close(number, no_processor_error(number))

    def _expire_deadlines(self) -> None:
        """End requests that have missed their deadline; then wait for the next one."""
        self._next_us = inf
        for at_us, number in self._deadlines.pop_missed(self._executor.now_us):
            self._close(number, deadline_error(number, at_us))
        self._set_deadline_timer()

    def _set_deadline_timer(self) -> None:
        next_us = self._deadlines.next_us(self._open.keys())
        if next_us < self._next_us:
            self._next_us = next_us
            self._executor.set_timer(next_us, DeadlineTimer())

    def _close(self, number: int, error: Exception | None) -> bool:
        open_ = self._open.pop(number, None)
        if open_ is None:
            return False
        self._ready_queue.remove(open_.unfinished)
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
                else self._fail_over(task)
            )
        return keep_placement if len(self.alive) == len(self._processors) else self._fail_over

    def _fail_over(self, task: Task) -> Task:
        return fail_over(task, self.alive, self._durations_us)

    def _moves(self) -> dict[str, str]:
        """Return the new processors of ready tasks whose own is slow."""
        if self._rebalancer is None or not self._ready_queue.ready or not self._executor.free():
            return {}
        names = [processor.name for processor in self.alive]
        forecast = self._rebalancer.forecast(names, self._executor.now_us)
        if not self._rebalancer.any_slow(forecast):
            return {}
        ready: dict[int, list[str]] = {}
        for task in self._ready_queue.ready.values():
            ready.setdefault(task.request, []).append(task.name)
        oldest = sorted(ready)[:LOOKED_AT]
        return self._rebalancer.moves([self._remaining(n, ready[n]) for n in oldest], forecast)

    def _remaining(self, number: int, ready: Sequence[str]) -> RemainingTasks:
        request = self._open[number].request
        unfinished = self._open[number].unfinished
        tasks = [task for task in request.tasks if task.name in unfinished]
        waiting = [self._fail_over(task) for task in tasks if task.name not in self._running]
        in_flight = [task.name for task in tasks if task.name in self._running]
        return RemainingTasks(tuple(waiting), tuple(ready), tuple(in_flight), request.stays)
