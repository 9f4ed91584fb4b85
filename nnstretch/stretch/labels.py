"""Best paths through cuts and widths: labels that carry MACs and parameters along, pruned by proven bounds.

A label is dropped if another at the same cut and width is at least as good in everything that is bounded, or if its bound says
that no completion can beat the best plan found by more than the gap allowed. Where memory or patience ends first, the labels with the
worst bounds go. The least bound of all that was dropped is a lower bound on the optimum, so every run ends with its own certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from nnstretch.stretch.affordable import affordable
from nnstretch.stretch.bounds import Bounds, Prices, Values
from nnstretch.stretch.dominance import undominated
from nnstretch.stretch.lanes import Lane, Picks
from nnstretch.stretch.space import Array, Space

CROWD = 300_000
"""Labels that may wait at one cut before the worse ones have to go."""
SPARE = 6
"""Times as many are looked at for dominance as are kept."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a run may keep before it starts to forget."""

    labels: int
    """At one cut."""
    picks: int
    """Combinations of branches for one lane and input width."""


@dataclass(frozen=True)
class Labels:
    """Ways to reach one cut."""

    width: Array
    latency_us: Array
    macs: Array
    params: Array
    held: Array
    """Over (label, processor with a memory limit)."""
    lane: Array
    """Number of the lane that each came through."""
    parent: Array
    """Number of the label that each goes on from, among all that were kept."""
    options: Array
    """Of the lane's branches: over (label, branch)."""

    def __len__(self) -> int:
        return len(self.width)

    def take(self, rows: Array) -> Labels:
        return Labels(*(getattr(self, f.name)[rows] for f in fields(self)))


@dataclass(frozen=True)
class Path:
    """A whole plan: lanes and the options of their branches."""

    latency_us: float
    steps: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass
class Search:
    """One run over all labels."""

    space: Space
    lanes: Sequence[Lane]
    values: Sequence[Values]
    """At several prices; a label must be hopeful under all of them."""
    bounds: Bounds
    effort: Effort
    gap: float
    """Relative: plans that could only win by less are not looked for."""
    best: Path | None = None
    only: Sequence[int] | None = None
    """Numbers of the lanes to look at; None looks at all that the values know."""
    ceiling_us: float = np.inf
    """Plans above it are not looked for."""
    dropped_us: float = np.inf
    """Least bound of anything that was dropped without proof that it cannot win."""
    log: list[Labels] = field(default_factory=list)
    """What was gone on from."""
    kept: int = 0

    def __post_init__(self) -> None:
        self.constants = [v.prices.constant(self.bounds) for v in self.values]
        self.starting: dict[int, list[int]] = {}
        for number in range(len(self.lanes)) if self.only is None else self.only:
            self.starting.setdefault(self.lanes[number].i, []).append(number)

    @property
    def limit_us(self) -> float:
        """What a bound must stay below to be worth following."""
        return min(self.ceiling_us, np.inf if self.best is None else self.best.latency_us * (1 - max(self.gap, 1e-12)))

    def run(self, progress: Callable[[int, int], None] | None = None) -> Search:
        last = len(self.space.cuts) - 1
        one, nobody = np.zeros(1), np.array([-1])
        held, options = np.zeros((1, len(self.space.limited))), np.zeros((1, len(self.space.processors)), dtype=np.int32)
        start = Labels(np.array([self.space.full(0)]), one, one, one, held, nobody, nobody, options)
        waiting: dict[int, list[Labels]] = {0: [start]}
        for i in range(last):
            if i in waiting:
                self.leave(i, self.thinned(i, waiting.pop(i)), waiting)
            if progress:
                progress(i + 1, last)
        return self

    def thinned(self, i: int, parts: list[Labels]) -> Labels:
        labels = joined(parts)
        bound = self.bound(i, labels.width, labels.latency_us, labels.macs, labels.params)
        labels, bound = self.forget(labels, bound, bound < self.limit_us, self.limit_us)
        labels, bound = self.fewer(labels, bound, SPARE * self.effort.labels)
        kept = undominated(labels.width, labels.latency_us, self.resources(labels))
        return self.fewer(labels.take(kept), bound[kept], self.effort.labels)[0]

    def fewer(self, labels: Labels, bound: Array, most: int) -> tuple[Labels, Array]:
        """Those with the least bounds."""
        if len(labels) <= most:
            return labels, bound
        worst = float(np.partition(bound, most)[most])
        return self.forget(labels, bound, bound < worst, worst)

    def forget(self, labels: Labels, bound: Array, keep: Array, least: float) -> tuple[Labels, Array]:
        if not keep.all():
            self.dropped_us = min(self.dropped_us, max(least, float(bound[~keep].min())))
        rows = np.flatnonzero(keep)
        return labels.take(rows), bound[rows]

    def resources(self, of: Labels | Picks) -> list[Array]:
        """What dominance looks at beside latency; more is better."""
        found = [of.macs] if self.bounds.min_macs > 0 else []
        found += [-of.macs] if self.bounds.max_macs < np.inf else []
        found += [of.params] if self.bounds.min_params > 0 else []
        return found + [-of.held[:, k] for k in range(len(self.bounds.max_held))]

    def bound(self, i: int, width: Array, latency_us: Array, macs: Array, params: Array) -> Array:
        """The best of the bounds under all prices."""
        rows = np.searchsorted(self.space.entries(i), width)
        found = [
            v.prices.reduced(latency_us, macs, params) + v.at[i][rows] + c
            for v, c in zip(self.values, self.constants, strict=True)
        ]
        return np.asarray(np.maximum.reduce(found))

    def leave(self, i: int, labels: Labels, waiting: dict[int, list[Labels]]) -> None:
        """Every lane from every width at which labels wait, the most promising first."""
        if not len(labels):
            return
        labels = labels.take(np.argsort(labels.width, kind="stable"))
        numbers = np.arange(self.kept, self.kept + len(labels))
        self.log.append(labels)
        self.kept += len(labels)
        widths, starts = np.unique(labels.width, return_index=True)
        for width, low, high in zip(widths.tolist(), starts.tolist(), [*starts.tolist()[1:], len(labels)], strict=True):
            group = labels.take(np.arange(low, high))
            row = int(np.searchsorted(self.space.entries(i), width))
            reduced = [v.prices.reduced(group.latency_us, group.macs, group.params) for v in self.values]
            for number in self.starting.get(i, ()):
                if not all(number in v.lanes and np.isfinite(v.lanes[number][row]) for v in self.values):
                    continue
                rows = zip(self.values, self.constants, reduced, strict=True)
                if any(c + float(r.min()) + v.lanes[number][row] >= self.limit_us for v, c, r in rows):
                    self.dropped_us = min(self.dropped_us, self.limit_us)
                    continue
                picks = self.picks(number, width, reduced)
                if picks is not None and len(picks):
                    self.extend(number, group, numbers[low:high], picks, waiting)

    def picks(self, number: int, width: int, reduced: list[Array]) -> Picks | None:
        """Combinations of one lane at one width that may still be part of a plan good enough."""
        lane = self.lanes[number]
        ahead = self.constants[0] + float(reduced[0].min())
        options, least = affordable(lane, width, self.values[0], self.values[0].ways[number], self.bounds, self.limit_us - ahead, 16 * self.effort.picks)
        if np.isfinite(self.limit_us) or np.isfinite(least):
            self.dropped_us = min(self.dropped_us, max(ahead + least, 0.0) if np.isfinite(least) else self.limit_us, self.limit_us)
        if options is None:
            return None
        found = lane.branches(width)
        assert found is not None
        picks = lane.combined(width, found, options)
        picks = picks.take(np.flatnonzero(self.bounds.fits(picks.held)))
        if not len(picks):
            return picks
        after = [self.after(v, lane.j, picks) for v in self.values]
        rooms = [self.limit_us - c - float(r.min()) for c, r in zip(self.constants, reduced, strict=True)]
        hopeful = np.flatnonzero(np.logical_and.reduce([a < room for a, room in zip(after, rooms, strict=True)]))
        picks, values = self.least(picks.take(hopeful), after[0][hopeful], ahead, SPARE * self.effort.picks)
        kept = undominated(picks.width, picks.latency_us, self.resources(picks))
        return self.least(picks.take(kept), values[kept], ahead, self.effort.picks)[0]

    def least(self, picks: Picks, values: Array, ahead: float, most: int) -> tuple[Picks, Array]:
        if len(picks) <= most:
            return picks, values
        order = np.argpartition(values, most)
        self.dropped_us = min(self.dropped_us, ahead + float(values[order[most]]))
        return picks.take(order[:most]), values[order[:most]]

    def after(self, values: Values, j: int, picks: Picks) -> Array:
        """Reduced latency of picks, and a bound on the rest."""
        reduced = values.prices.reduced(picks.latency_us, picks.macs, picks.params)
        if j == len(self.space.cuts) - 1:
            return reduced
        return reduced + values.at[j][np.searchsorted(self.space.entries(j), picks.width)]

    def extend(self, number: int, group: Labels, numbers: Array, picks: Picks, waiting: dict[int, list[Labels]]) -> None:
        lane = self.lanes[number]
        latency = (group.latency_us[:, None] + picks.latency_us).ravel()
        macs, params = (group.macs[:, None] + picks.macs).ravel(), (group.params[:, None] + picks.params).ravel()
        width = np.tile(picks.width, len(group))
        held = (group.held[:, None] + picks.held).reshape(len(latency), len(self.space.limited))
        last = lane.j == len(self.space.cuts) - 1
        keep = self.bounds.keeps(macs, params, held) if last else self.bound(lane.j, width, latency, macs, params) < self.limit_us
        if not last and not keep.all() and np.isfinite(self.limit_us):
            self.dropped_us = min(self.dropped_us, self.limit_us)
        rows = np.flatnonzero(keep if last else keep & self.bounds.fits(held))
        if not len(rows):
            return
        parent, pick = np.divmod(rows, len(picks))
        options = np.zeros((len(rows), len(self.space.processors)), dtype=np.int32)
        for b, option in enumerate(picks.options):
            options[:, b] = option[pick]
        made = Labels(width[rows], latency[rows], macs[rows], params[rows], held[rows], np.full(len(rows), number), numbers[parent], options)
        if last:
            self.finish(made)
            return
        there = waiting.setdefault(lane.j, [])
        there.append(made)
        if sum(map(len, there)) > CROWD:
            there[:] = [self.thinned(lane.j, there)]

    def finish(self, labels: Labels) -> None:
        best = int(labels.latency_us.argmin())
        if self.best is None or labels.latency_us[best] < self.best.latency_us:
            self.best = Path(float(labels.latency_us[best]), self.traced(labels, best))

    def traced(self, labels: Labels, row: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        firsts = np.cumsum([0, *map(len, self.log)])
        steps: list[tuple[int, tuple[int, ...]]] = []
        while labels.lane[row] >= 0:
            number = int(labels.lane[row])
            steps.append((number, tuple(labels.options[row, : len(self.lanes[number].team)].tolist())))
            before = int(labels.parent[row])
            part = int(np.searchsorted(firsts, before, side="right")) - 1
            labels, row = self.log[part], before - int(firsts[part])
        return tuple(steps[::-1])

    @property
    def lower_bound_us(self) -> float:
        return min(self.dropped_us, np.inf if self.best is None else self.best.latency_us)


def joined(parts: list[Labels]) -> Labels:
    if len(parts) == 1:
        return parts[0]
    return Labels(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Labels)))


__all__ = ["Effort", "Path", "Prices", "Search"]
