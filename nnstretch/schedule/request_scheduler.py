"""Requests that come and go: each gets exactly one answer or one error, whatever processors do.

A state machine on the event loop, without a clock and without threads of its own: the virtual clock
and real threads drive the same code. Tasks in flight of a request that is over are let run, and
their results are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import inf

from nnstretch.errors import Cancelled, NnstretchError, ProcessorFailed, Stuck
from nnstretch.protocols import Executor, Policy
from nnstretch.schedule.costs.cost_rows import ROUNDING, CostRows, is_late
from nnstretch.schedule.event_loop import EventLoop
from nnstretch.schedule.loop.processor_queue import Queueing
from nnstretch.schedule.policies.failover import Failover, fail_over
from nnstretch.schedule.policies.rebalancing import Rebalancing
from nnstretch.schedule.rebalancing import Rebalancer, RemainingTasks
from nnstretch.schedule.request import (
    Deadlines,
    Request,
    deadline_error,
    no_processor_error,
    stranded_error,
)
from nnstretch.soc import Processor
from nnstretch.task import Task, TaskTimes
from nnstretch.trace import Failure, Span, TimerEvent


@dataclass(frozen=True, slots=True)
class DeadlineTimer:
    """Tag of the scheduler's own timer: some deadline is over."""


class RequestScheduler:
    """Takes requests at any time and answers each once, by calling `answered`.

    A processor that is lost is used no more until it is back; its placed tasks go where `fail_over`
    says. A request is refused with ProcessorFailed only where no processor is alive. With a
    `rebalancer`, waiting tasks leave slow processors as well. `costs` and `queueing` are the
    loop's. Not `placed`: no task comes with a processor.
    """

    def __init__(
        self,
        processors: Sequence[Processor],
        policy: Policy,
        executor: Executor,
        answered: Callable[[Request], None],
        durations_us: TaskTimes | None = None,
        ended: Callable[[Span], None] | None = None,
        rebalancer: Rebalancer | None = None,
        costs: CostRows | None = None,
        queueing: Queueing = Queueing.BOUNDED,
        placed: bool = True,
    ) -> None:
        self._processors = tuple(processors)
        self.alive = self._processors
        self._executor = executor
        self._costs = costs
        self._answered = answered
        self._ended = ended
        self._rebalancer = rebalancer
        self.heard: Callable[[Span | Failure | TimerEvent], None] | None = None
        """Told of every event, for traces."""
        self._durations_us = durations_us or {}
        if placed or rebalancer is not None:
            policy = Failover(policy, self._durations_us)
        if rebalancer is not None:
            policy = Rebalancing(policy, rebalancer, self._remaining)
        self.loop = EventLoop(
            *(processors, policy, executor, costs, queueing),
            *(None if rebalancer is None else self._on_give, self._on_drop, self._on_change),
        )
        self._deadlines = Deadlines()
        self._next_us = inf
        """When the earliest timer that is set rings."""
        self._open: dict[int, Request] = {}

    def __len__(self) -> int:
        """Return how many requests have not been answered."""
        return len(self._open)

    def is_open(self, number: int) -> bool:
        """Return whether a request has not been answered."""
        return number in self._open

    def submit(self, request: Request) -> None:
        """Begin a request. Raises Stuck for a number or a task that is open already."""
        number, tasks = request.number, request.tasks
        if number in self._open:
            raise Stuck(
                f"request {number} is open already, service, every request needs a number"
                " of its own"
            )
        self._open[number] = request
        request.arrived_us, request.unfinished = self._executor.now_us, len(tasks)
        try:
            # A rebalancer moves what cannot start yet, too: it needs all tasks built.
            self.loop.add(tasks if self._rebalancer is None else tuple(tasks))
        except BaseException:
            del self._open[number]
            raise
        if not self.alive:
            self._close(number, no_processor_error(number))
        elif not tasks:
            self._close(number, None)
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
        """Dispatch once all of an instant was heard, wait for one event and handle it.

        Returns what `handle` does, None at the end. Raises Stuck where requests are open and
        nothing can happen.
        """
        if not self._executor.more():
            self.loop.dispatch()
        event = self._executor.wait()
        if self.heard is None:  # What `handle` does with most events, without its call.
            if type(event) is Span:
                self._end(event)
                return True
            if type(event) is TimerEvent and type(event.tag) is not DeadlineTimer:
                return event.tag
        if event is None:
            if self._open:
                raise Stuck(
                    f"{len(self._open)} requests are open, service, nothing is in flight and"
                    " nothing is due"
                )
            return None
        return self.handle(event)

    def dispatch(self) -> None:
        """Give waiting tasks to processors as far as there is room."""
        self.loop.dispatch()

    def handle(self, event: Span | Failure | TimerEvent) -> Hashable:
        """Handle an event; return the tag of a timer that is not the scheduler's own, else
        True.
        """
        if self.heard is not None:
            self.heard(event)
        if isinstance(event, Span):
            self._end(event)
        elif not isinstance(event, TimerEvent):
            self._fail(event)
        elif isinstance(event.tag, DeadlineTimer):
            self._expire_deadlines()
        else:
            return event.tag
        return True

    def _end(self, span: Span) -> None:
        task = span.task
        if self._rebalancer is not None:
            now_us = self._executor.now_us
            self._rebalancer.on_end(task.name, span.processor, span.duration_us, now_us)
        was_open = self.loop.end(span)
        if self._ended is not None:
            self._ended(span)
        if was_open:
            request, start_us = self._open[task.request], span.start_us
            request.worked_us += span.end_us - start_us
            if start_us < request.first_us:
                request.first_us = start_us
            if task.processor is not None and task.processor != span.processor:
                request.replaced += 1
            request.unfinished -= 1
            now_us = self._executor.now_us
            if request.deadline_us < now_us and is_late(now_us, request.deadline_us):
                # On threads: the timer of the deadline is heard behind what has ended.
                self._close(task.request, deadline_error(task.request, request.deadline_us))
            elif not request.unfinished:
                del self._open[task.request]
                request.ended_us = now_us
                self._answered(request)

    def _fail(self, failure: Failure) -> None:
        if self._rebalancer is not None:
            name, now_us = failure.task.name, self._executor.now_us
            self._rebalancer.on_end(name, failure.processor, None, now_us)
        self.loop.end(failure)
        if isinstance(failure.error, ProcessorFailed):
            self.loop.requeue(failure.task.name)
        else:
            self._close(failure.task.request, failure.error)

    def _on_give(self, task: Task, processor: Processor) -> None:
        if self._rebalancer is not None:
            self._rebalancer.on_dispatch(task, processor.name, self._executor.now_us)

    def _on_drop(self, task: Task) -> None:
        """End a request that the policy gives up, or whose processors have all failed."""
        error: NnstretchError = deadline_error(task.request, task.deadline_us)
        if self._costs is not None and self._costs.is_stranded(task):
            error = stranded_error(task, self._costs.failed)
        self._close(task.request, error)

    def _on_change(self) -> None:
        """Serve on what is left; where nothing is, every open request ends with an error."""
        self.alive = tuple(state.processor for state in self.loop.states if state.alive)
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
            # What ends at its deadline is heard first, and is not late.
            self._executor.set_timer(next_us * (1 + 2 * ROUNDING), DeadlineTimer())

    def _close(self, number: int, error: Exception | None) -> bool:
        request = self._open.pop(number, None)
        if request is None:
            return False
        if request.unfinished:
            # In their order: sums of times depend on it.
            self.loop.withdraw([task.name for task in request.tasks])
        request.ended_us, request.error = self._executor.now_us, error
        self._answered(request)
        return True

    def _remaining(self, number: int, waiting: Sequence[str]) -> RemainingTasks:
        """Return what is left of a request, some of whose tasks wait for a processor."""
        request, loop = self._open[number], self.loop
        placed: list[Task] = []
        in_flight: list[str] = []
        for task in request.tasks:
            if loop.is_given(task.name):
                in_flight.append(task.name)
            elif loop.is_open(task.name):
                placed.append(fail_over(task, self.alive, self._durations_us))
        return RemainingTasks(tuple(placed), tuple(waiting), tuple(in_flight), request.stays)
