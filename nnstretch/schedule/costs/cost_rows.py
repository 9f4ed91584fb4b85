"""Rows of costs: what a task is expected to take on each processor, corrected by what tasks did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan

from nnstretch.errors import BadInput
from nnstretch.schedule.finish_times import TaskCosts
from nnstretch.schedule.loop.arrivals import Arrivals, Transfers
from nnstretch.schedule.slowdown import LearnedRatio, SlowdownEstimator
from nnstretch.soc import Processor
from nnstretch.task import Task, WorkKey
from nnstretch.trace import Span

Row = tuple[float, ...]
"""Microseconds by number of the processor; infinite where it cannot run."""
Kind = tuple[str, str, str | None]
"""Plan, sub-graph, and where its plan placed it: tasks of one kind have one row."""
ROUNDING = 1e-9
"""Share of a time that its float may be off."""


def is_late(at_us: float, due_us: float) -> bool:
    """Return whether a time is after another by more than rounding explains."""
    return at_us - due_us > ROUNDING * due_us


@dataclass(slots=True, eq=False)
class KindCosts:
    """What tasks of one kind are expected to cost now."""

    row: Row
    mask: int
    """Which processors can run them: bit N for number N."""
    pairs: Sequence[tuple[float, LearnedRatio]]
    """For each processor the undisturbed cost, us, and how far it is off; empty where nothing is
    learnt."""


class CostRows:
    """One row for each kind of task.

    A pair of work and processor that `costs` lacks cannot run: its cost is infinite, never 0. A
    task that its plan placed runs there alone. With `slowdowns`, every end corrects the row of its
    kind by a moving average. With `transfers_us`, data between processors take time.
    """

    def __init__(
        self,
        processors: Sequence[Processor],
        costs: TaskCosts,
        slowdowns: SlowdownEstimator | None = None,
        transfers_us: Transfers | None = None,
    ) -> None:
        """Create the rows. Raises BadInput for a cost that is negative or not a number."""
        for (work, name), cost_us in costs.quiet_us.items():
            if isnan(cost_us) or cost_us < 0:
                raise BadInput(f"cost of {work} on {name} is {cost_us}, costs, needed is 0 or more")
        self.processors = tuple(processors)
        self._names = tuple(processor.name for processor in processors)
        self._costs = costs
        self._slowdowns = slowdowns
        self._by_kind: dict[Kind, KindCosts] = {}
        self._kinds: dict[WorkKey, list[Kind]] = {}
        self.arrivals = Arrivals(transfers_us, len(processors)) if transfers_us else None
        self._watchers: list[Callable[[Kind], None]] = []
        self.withdrawn = 0
        """Tasks of which it has heard that they were withdrawn."""
        self.failed: frozenset[str] = frozenset()
        """Processors that have failed and are not back."""
        self._failed_watchers: list[Callable[[], None]] = []

    def kind(self, task: Task) -> Kind:
        """Return the kind of a task, the key of its row."""
        return task.plan, task.subgraph, task.processor

    def of(self, task: Task) -> KindCosts:
        """Return what tasks of this kind cost, kept up to date. Raises BadInput where no processor
        can run it.
        """
        kind = task.plan, task.subgraph, task.processor
        costs = self._by_kind.get(kind)
        return self._new_kind(task, kind) if costs is None else costs

    def row(self, task: Task) -> Row:
        """Return the costs of a task. Raises as `of` does."""
        return self.of(task).row

    def row_of(self, kind: Kind) -> Row:
        """Return the costs of a kind of which there was a task."""
        return self._by_kind[kind].row

    def mask(self, task: Task) -> int:
        """Return which processors can run a task: bit N for number N. Raises as `of` does."""
        kind = task.plan, task.subgraph, task.processor
        costs = self._by_kind.get(kind)
        return self._new_kind(task, kind).mask if costs is None else costs.mask

    def watch_failed(self, watcher: Callable[[], None]) -> None:
        """Let a policy that keeps tasks by where they may go hear of failed processors."""
        self._failed_watchers.append(watcher)

    def hear_failed(self, failed: frozenset[str]) -> None:
        """Hear which processors have failed and are not back: rows stay as they are."""
        self.failed = failed
        for watcher in self._failed_watchers:
            watcher()

    def alive_row(self, row: Row) -> Row:
        """Return a row that is infinite where processors have failed."""
        pairs = zip(self._names, row, strict=True)
        return tuple([inf if name in self.failed else cost_us for name, cost_us in pairs])

    def is_stranded(self, task: Task) -> bool:
        """Return whether no processor that is left has a time for a task, wherever it is placed."""
        names = (name for name in self._names if name not in self.failed)
        return not any((task.work, name) in self._costs.quiet_us for name in names)

    def ready_us(self, task: Task) -> Sequence[float] | None:
        """Return when a task's data are on each processor; None where they are there already."""
        return None if self.arrivals is None else self.arrivals.row(task)

    def observe(self, costs: KindCosts, span: Span, index: int) -> None:
        """Learn from a task that has ended, of a kind that has these costs."""
        slowdowns, end_us = self._slowdowns, span.end_us
        if slowdowns is None:
            return
        quiet_us, learned = costs.pairs[index]
        if not slowdowns.learn(learned, quiet_us, end_us - span.start_us, ROUNDING * end_us):
            return
        work = span.task.work
        for kind in self._kinds.get(work, ()):
            self._by_kind[kind].row = self._corrected(work, kind[2])
            for watcher in self._watchers:
                watcher(kind)

    def watch(self, watcher: Callable[[Kind], None]) -> None:
        """Let a policy that keeps an order by costs hear of rows that have changed."""
        self._watchers.append(watcher)

    def forget(self, name: str) -> None:
        """Forget a task that was withdrawn."""
        self.withdrawn += 1
        if self.arrivals is not None:
            self.arrivals.forget(name)

    def _new_kind(self, task: Task, kind: Kind) -> KindCosts:
        row = self._corrected(task.work, task.processor)
        if not any(map(isfinite, row)):
            where = "no processor" if task.processor is None else task.processor
            raise BadInput(
                f"{task.subgraph} can run on {where}, costs, none of {', '.join(self._names)} has a"
                " time for it"
            )
        mask = sum(1 << n for n, cost_us in enumerate(row) if isfinite(cost_us))
        costs = self._by_kind[kind] = KindCosts(row, mask, self._pairs(task.work))
        self._kinds.setdefault(task.work, []).append(kind)
        return costs

    def _pairs(self, work: WorkKey) -> Sequence[tuple[float, LearnedRatio]]:
        slowdowns, quiet_us = self._slowdowns, self._costs.quiet_us
        if slowdowns is None:
            return ()
        return [
            (quiet_us.get((work, name), 0.0), slowdowns.learned(work, name)) for name in self._names
        ]

    def _corrected(self, work: WorkKey, processor: str | None) -> Row:
        row: list[float] = []
        for name in self._names:
            if processor not in (None, name) or (work, name) not in self._costs.quiet_us:
                row.append(inf)
                continue
            ratio = 1.0 if self._slowdowns is None else self._slowdowns.learned(work, name).ratio
            handover_us = self._costs.handovers_us.get((work, name), 0.0)
            row.append(handover_us + self._costs.quiet_us[work, name] * ratio)
        return tuple(row)
