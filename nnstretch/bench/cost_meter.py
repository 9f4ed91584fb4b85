"""What tasks take on the processors of this host, alone and while all others work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, product
from statistics import fmean, median

from nnstretch.files.workload.measured_costs import (
    LEAST_FACTOR,
    MOST_FACTOR,
    MeasuredCosts,
    MeasuredTask,
    measured_task,
)
from nnstretch.schedule import Request, RequestScheduler, ThreadExecutor
from nnstretch.schedule.costs.cost_rows import CostRows
from nnstretch.schedule.finish_times import TaskCosts
from nnstretch.schedule.policies.table import PolicySetting, find_policy
from nnstretch.schedule.simulation.record_costs import MOST_TIMES
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Failure, Span

WARM = 3
"""Runs of each task on each processor that are not counted."""
POLICY = "eft"
"""Policy whose decisions are timed: like most, it looks at every processor."""
Tick = Callable[[int, int], None]


class CostMeter:
    """Runs tasks on the threads that serve requests, and keeps what each took.

    `work` computes a task; it is called from the thread of its processor.
    """

    def __init__(
        self, tasks: Sequence[Task], processors: tuple[Processor, ...], work: Callable[[Task], None]
    ) -> None:
        self._tasks = tasks
        self._threads = ThreadExecutor(processors, work)
        self._threads.listen()
        costs_us = {(task.work, p.name): 1.0 for task, p in product(tasks, processors)}
        policy = find_policy(POLICY).make(PolicySetting(CostRows(processors, TaskCosts(costs_us))))
        self._outcome: Request | None = None
        self._spans: deque[Span] = deque(maxlen=1)
        self._scheduler = RequestScheduler(
            *(processors, policy, self._threads, self._on_outcome),
            ended=self._spans.append,
        )
        self._partners = cycle(tasks)
        self._number = 0
        self.alone_us: dict[tuple[Task, str], list[float]] = {}
        self.beside_us: dict[tuple[Task, str], list[float]] = {}
        self._handovers_us: list[float] = []
        self._answers_us: list[float] = []
        self._decisions_us: list[float] = []

    def run(self, rounds: int, tick: Tick) -> None:
        """Measure every pair `rounds` times alone and beside others, in turns. Raises what a task
        raises.
        """
        pairs = tuple(product(self._tasks, self._threads.processors))
        with self._threads:
            for number in range(WARM + rounds):
                for task, processor in pairs:
                    span = self._alone(task, processor)
                    if number >= WARM:
                        self.alone_us.setdefault((task, processor.name), []).append(
                            span.duration_us
                        )
                tick(number + 1, WARM + 2 * rounds)
            for processor in self._threads.processors:
                if len(self._threads.processors) > 1:
                    self._beside(processor, rounds)
                tick(WARM + 2 * rounds, WARM + 2 * rounds)

    def table(self) -> MeasuredCosts:
        """Return what was measured."""
        rows: list[MeasuredTask] = []
        for (task, processor), samples_us in self.alone_us.items():
            beside_us = self.beside_us.get((task, processor))
            factor = factor_beside(samples_us, beside_us) if beside_us else 1.0
            rows.append(measured_task(task.plan, task.subgraph, processor, samples_us, factor))
        names = tuple(processor.name for processor in self._threads.processors)
        return MeasuredCosts(
            *(names, tuple(rows), median(self._decisions_us)),
            *(median(self._handovers_us), median(self._answers_us)),
        )

    def _alone(self, task: Task, processor: Processor) -> Span:
        """Serve a task as a request of its own while all other processors rest."""
        self._threads.call(POLICY)
        sent_us = self._threads.now_us
        while self._scheduler.step() != POLICY:
            pass
        placed = replace(self._numbered(task), processor=processor.name)
        self._scheduler.submit(Request(placed.request, (placed,)))
        while self._outcome is None or self._outcome.number != placed.request:
            self._scheduler.step()
        if self._outcome.error is not None:
            raise self._outcome.error
        span, ended_us = self._spans[-1], self._outcome.ended_us
        handed_us = sent_us if span.handed_us is None else span.handed_us
        self._decisions_us.append(handed_us - sent_us)
        self._handovers_us.append(span.start_us - handed_us)
        self._answers_us.append(ended_us - span.end_us)
        return span

    def _on_outcome(self, outcome: Request) -> None:
        self._outcome = outcome

    def _beside(self, processor: Processor, rounds: int) -> None:
        """Run every task while all other processors never rest."""
        threads = self._threads
        counted = [*reversed(self._tasks)] * rounds
        for partner in threads.processors:
            for _ in range(1 if partner is processor else partner.queue_depth):
                self._submit_next(partner, processor, counted)
        in_flight = 1 + sum(p.queue_depth for p in threads.processors if p is not processor)
        while in_flight:
            span = self._next_span()
            in_flight -= 1
            partner = next(p for p in threads.processors if p.name == span.processor)
            if partner is processor:
                kind = next(t for t in self._tasks if t.work == span.task.work)
                self.beside_us.setdefault((kind, span.processor), []).append(span.duration_us)
            if counted:
                self._submit_next(partner, processor, counted)
                in_flight += 1

    def _submit_next(self, partner: Processor, measured: Processor, counted: list[Task]) -> None:
        task = counted.pop() if partner is measured else next(self._partners)
        self._threads.submit(self._numbered(task), partner)

    def _numbered(self, task: Task) -> Task:
        self._number += 1
        name = f"{task.name}#{self._number}"
        return Task(name, task.subgraph, request=self._number, plan=task.plan)

    def _next_span(self) -> Span:
        event = self._threads.wait()
        if isinstance(event, Failure):
            raise event.error
        assert isinstance(event, Span)
        return event


def factor_beside(alone_us: Sequence[float], beside_us: Sequence[float]) -> float:
    """Return how many times as long a task takes beside others, in the mean.

    Of a run that the host held up, no more than `MOST_TIMES` the median counts: one such run among
    few would say more of the factor than all others do.
    """
    factor = bounded_mean(beside_us) / bounded_mean(alone_us)
    return min(MOST_FACTOR, max(LEAST_FACTOR, factor))


def bounded_mean(times_us: Sequence[float]) -> float:
    """Return the mean of times of which none counts more than `MOST_TIMES` the median."""
    most_us = MOST_TIMES * median(times_us)
    return fmean(min(most_us, time_us) for time_us in times_us)
