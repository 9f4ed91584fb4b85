"""Policies that choose among all pairs of waiting tasks and processors.

Min-Min, Max-Min and sufferage (Ibarra, Kim, JACM 24(2), 1977; Maheswaran et al., JPDC 59(2), 1999),
the classic ETF (Hwang, Chow, Anger, Lee, SIAM J. Comput. 18(2), 1989). CEDR's ETF is Min-Min on the
waiting tasks; Band's largest shortest expected latency first is Max-Min on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from nnstretch.protocols import Choice, ProcessorState
from nnstretch.schedule.costs.cost_rows import CostRows
from nnstretch.schedule.policies.finish import earliest_finish, earliest_start
from nnstretch.schedule.policies.waiting import CheapestFirst, KindQueue
from nnstretch.task import Task, WorkKey


class _AllPairs:
    """What policies over all pairs share: every waiting task, cheapest first on each processor."""

    def __init__(self, costs: CostRows) -> None:
        self._costs = costs
        self._waiting = CheapestFirst(costs)

    def add(self, task: Task, /) -> None:
        """Let a task wait."""
        self._waiting.add(task)

    def withdraw(self, task: Task, /) -> None:
        """Forget a task."""
        self._waiting.remove(task)

    def _take(self, choice: Choice | None) -> Choice | None:
        """Let the chosen task wait no longer."""
        if choice is not None:
            self._waiting.remove(choice[0])
        return choice


class EarliestPair(_AllPairs):
    """The pair of task and processor that ends first of all pairs.

    A processor's pairs differ by their cost alone, so only its cheapest waiting task can win. Of
    equals the first task, then the first processor. Where data are copied between processors, all
    pairs are scanned.
    """

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the pair that ends first."""
        if self._costs.arrivals is not None:
            return self._scan(now_us, processors)
        best_us, first = inf, 0
        kind: KindQueue | None = None
        best: ProcessorState | None = None
        for state in processors:
            cheapest = self._waiting.cheapest(state.index) if state.open else None
            if cheapest is None:
                continue
            cost_us, number, queue = cheapest
            end_us = (state.free_us if state.free_us > now_us else now_us) + cost_us
            if end_us < best_us or (end_us == best_us and number < first):
                best_us, first, kind, best = end_us, number, queue, state
        return None if kind is None else (self._waiting.take(kind), best)

    def _scan(self, now_us: float, processors: Sequence[ProcessorState]) -> Choice | None:
        best_us, choice = inf, None
        for _, task in self._waiting.heads():
            end_us, state = earliest_finish(task, self._costs, now_us, processors)
            if end_us < best_us:
                best_us, choice = end_us, (task, state)
        return self._take(choice)


class LargestEarliestFinish(_AllPairs):
    """Of all waiting tasks the one whose earliest end is last, where it ends first."""

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the task whose earliest end is last."""
        latest_us, choice = -inf, None
        for _, task in self._waiting.heads():
            end_us, state = earliest_finish(task, self._costs, now_us, processors)
            if state is not None and end_us > latest_us:
                latest_us, choice = end_us, (task, state)
        return self._take(choice)


class Sufferage(_AllPairs):
    """The task that loses most if it does not get the processor where it ends first.

    What it loses is the time between its earliest end and the next best; a task that one open
    processor alone can run loses more than any other.
    """

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the task that loses most, and where it ends first."""
        most_us, choice = -inf, None
        for _, task in self._waiting.heads():
            end_us, state = earliest_finish(task, self._costs, now_us, processors)
            if state is None:
                continue
            others = [other for other in processors if other is not state]
            next_us, _ = earliest_finish(task, self._costs, now_us, others)
            if next_us - end_us > most_us:
                most_us, choice = next_us - end_us, (task, state)
        return self._take(choice)


class EarliestStart(_AllPairs):
    """The classic ETF: the pair that starts first; of equals the task of highest static level.

    The static level is the longest chain of mean costs from a task to an exit; tasks of which
    `levels_us` says nothing have level 0. Then the first task and the first processor.
    """

    def __init__(self, costs: CostRows, levels_us: Mapping[WorkKey, float]) -> None:
        super().__init__(costs)
        self._levels_us = levels_us

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the pair that starts first."""
        best, choice = (inf, 0.0), None
        for _, task in self._waiting.heads():
            start_us, state = earliest_start(task, self._costs, now_us, processors)
            rank = (start_us, -self._levels_us.get(task.work, 0.0))
            if state is not None and (choice is None or rank < best):
                best, choice = rank, (task, state)
        return self._take(choice)
