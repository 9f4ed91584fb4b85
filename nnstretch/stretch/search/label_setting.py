"""Best paths through cuts and widths.

Labels that carry MACs and parameters along, pruned by proven bounds.

A label is dropped if another at the same cut and width is at least as good in everything that is
bounded, or if its bound says that no completion can beat the best plan found by more than the gap
allowed. Where memory or patience ends first, the labels with the worst bounds go. The least bound
of all that was dropped is a lower bound on the optimum, so every run ends with its own certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from nnstretch.stretch.search.combinations import candidate_combinations
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.dominance import undominated
from nnstretch.stretch.search.lagrangian import CostToGo, Multipliers
from nnstretch.stretch.search.search_space import Array, SearchSpace
from nnstretch.stretch.search.segment_options import BranchCombinations, SegmentOption

CROWD = 300_000
"""Labels that may wait at one cut before the worse ones have to go."""
SPARE = 6
"""Times as many are looked at for dominance as are kept."""


@dataclass(frozen=True, slots=True)
class BeamLimits:
    """How much a run may keep before it starts to forget."""

    labels: int
    """At one cut."""
    combinations: int
    """Combinations of branches for one segment option and input width."""


@dataclass(frozen=True)
class LabelSet:
    """Ways to reach one cut."""

    width: Array
    latency_us: Array
    macs: Array
    params: Array
    params_held: Array
    """Over (label, processor with a memory limit)."""
    option: Array
    """Number of the segment option that each came through."""
    parent: Array
    """Number of the label that each goes on from, among all that were kept."""
    options: Array
    """Of the segment option's branches: over (label, branch)."""

    def __len__(self) -> int:
        return len(self.width)

    def take(self, rows: Array) -> LabelSet:
        """Return the chosen rows."""
        return LabelSet(*(getattr(self, f.name)[rows] for f in fields(self)))


@dataclass(frozen=True)
class PlanPath:
    """A whole plan: segment options and the options of their branches."""

    latency_us: float
    steps: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass
class LabelSearch:
    """One run over all labels."""

    space: SearchSpace
    options: Sequence[SegmentOption]
    values: Sequence[CostToGo]
    """At several prices; a label must be hopeful under all of them."""
    bounds: NetworkLimits
    beam_limits: BeamLimits
    gap: float
    """Relative: plans that could only win by less are not looked for."""
    best: PlanPath | None = None
    only: Sequence[int] | None = None
    """Numbers of the segment options to look at; None looks at all that the values know."""
    ceiling_us: float = np.inf
    """Plans above it are not looked for."""
    discarded_bound_us: float = np.inf
    """Least bound of anything that was dropped without proof that it cannot win."""
    log: list[LabelSet] = field(default_factory=list)
    """What was gone on from."""
    kept: int = 0

    def __post_init__(self) -> None:
        self.constants = [v.prices.constant(self.bounds) for v in self.values]
        self.starting: dict[int, list[int]] = {}
        for number in range(len(self.options)) if self.only is None else self.only:
            self.starting.setdefault(self.options[number].i, []).append(number)

    @property
    def limit_us(self) -> float:
        """Return what a bound must stay below to be worth following."""
        return min(
            self.ceiling_us,
            np.inf if self.best is None else self.best.latency_us * (1 - max(self.gap, 1e-12)),
        )

    def run(self, progress: Callable[[int, int], None] | None = None) -> LabelSearch:
        """Extend labels from the network's input to its end."""
        last = len(self.space.cuts) - 1
        zero_cost, nobody = np.zeros(1), np.array([-1])
        params_held, options = (
            np.zeros((1, len(self.space.limited))),
            np.zeros((1, len(self.space.processors)), dtype=np.int32),
        )
        start = LabelSet(
            np.array([self.space.original_width(0)]),
            zero_cost,
            zero_cost,
            zero_cost,
            params_held,
            nobody,
            nobody,
            options,
        )
        waiting: dict[int, list[LabelSet]] = {0: [start]}
        for i in range(last):
            if i in waiting:
                self.expand(i, self.prune(i, waiting.pop(i)), waiting)
            if progress:
                progress(i + 1, last)
        return self

    def prune(self, i: int, parts: list[LabelSet]) -> LabelSet:
        """Join labels at a cut and keep those that may still become the best plan."""
        labels = concatenate_labels(parts)
        bound = self.bound(i, labels.width, labels.latency_us, labels.macs, labels.params)
        labels, bound = self.discard(labels, bound, bound < self.limit_us, self.limit_us)
        labels, bound = self.keep_best(labels, bound, SPARE * self.beam_limits.labels)
        kept = undominated(labels.width, labels.latency_us, self.resources(labels))
        return self.keep_best(labels.take(kept), bound[kept], self.beam_limits.labels)[0]

    def keep_best(self, labels: LabelSet, bound: Array, most: int) -> tuple[LabelSet, Array]:
        """Return the labels with the least bounds."""
        if len(labels) <= most:
            return labels, bound
        worst = float(np.partition(bound, most)[most])
        return self.discard(labels, bound, bound < worst, worst)

    def discard(
        self, labels: LabelSet, bound: Array, keep: Array, least: float
    ) -> tuple[LabelSet, Array]:
        """Drop labels whose bound is worse than the best plan.

        Remember the least bound of those dropped for effort.
        """
        if not keep.all():
            self.discarded_bound_us = min(
                self.discarded_bound_us, max(least, float(bound[~keep].min()))
            )
        rows = np.flatnonzero(keep)
        return labels.take(rows), bound[rows]

    def resources(self, of: LabelSet | BranchCombinations) -> list[Array]:
        """Return what dominance looks at beside latency; more is better."""
        columns = [of.macs] if self.bounds.min_macs > 0 else []
        columns += [-of.macs] if self.bounds.max_macs < np.inf else []
        columns += [of.params] if self.bounds.min_params > 0 else []
        return columns + [-of.params_held[:, k] for k in range(len(self.bounds.max_held))]

    def bound(self, i: int, width: Array, latency_us: Array, macs: Array, params: Array) -> Array:
        """Return the best of the bounds under all prices."""
        rows = np.searchsorted(self.space.merged_widths(i), width)
        bounds = [
            v.prices.reduced(latency_us, macs, params) + v.at[i][rows] + c
            for v, c in zip(self.values, self.constants, strict=True)
        ]
        return np.asarray(np.maximum.reduce(bounds))

    def expand(self, i: int, labels: LabelSet, waiting: dict[int, list[LabelSet]]) -> None:
        """Extend from every width at which labels wait, the most promising options first."""
        if not len(labels):
            return
        labels = labels.take(np.argsort(labels.width, kind="stable"))
        numbers = np.arange(self.kept, self.kept + len(labels))
        self.log.append(labels)
        self.kept += len(labels)
        widths, starts = np.unique(labels.width, return_index=True)
        for width, low, high in zip(
            widths.tolist(), starts.tolist(), [*starts.tolist()[1:], len(labels)], strict=True
        ):
            group = labels.take(np.arange(low, high))
            row = int(np.searchsorted(self.space.merged_widths(i), width))
            reduced = [
                v.prices.reduced(group.latency_us, group.macs, group.params) for v in self.values
            ]
            for number in self.starting.get(i, ()):
                if not all(
                    number in v.options and np.isfinite(v.options[number][row]) for v in self.values
                ):
                    continue
                rows = zip(self.values, self.constants, reduced, strict=True)
                if any(
                    c + float(r.min()) + v.options[number][row] >= self.limit_us for v, c, r in rows
                ):
                    self.discarded_bound_us = min(self.discarded_bound_us, self.limit_us)
                    continue
                combinations = self.admissible_combinations(number, width, reduced)
                if combinations is not None and len(combinations):
                    self.extend(number, group, numbers[low:high], combinations, waiting)

    def admissible_combinations(
        self, number: int, width: int, reduced: list[Array]
    ) -> BranchCombinations | None:
        """Return combinations of an option at one width that may still be part of a plan good
        enough.
        """
        option = self.options[number]
        ahead = self.constants[0] + float(reduced[0].min())
        options, least = candidate_combinations(
            option,
            width,
            self.values[0],
            self.values[0].ways[number],
            self.bounds,
            self.limit_us - ahead,
            16 * self.beam_limits.combinations,
        )
        if np.isfinite(self.limit_us) or np.isfinite(least):
            self.discarded_bound_us = min(
                self.discarded_bound_us,
                max(ahead + least, 0.0) if np.isfinite(least) else self.limit_us,
                self.limit_us,
            )
        if options is None:
            return None
        totals = option.branch_totals(width)
        assert totals is not None
        combinations = option.admissible_combinations(width, totals, options)
        combinations = combinations.take(np.flatnonzero(self.bounds.fits(combinations.params_held)))
        if not len(combinations):
            return combinations
        after = [self.bound_after(v, option.j, combinations) for v in self.values]
        rooms = [
            self.limit_us - c - float(r.min()) for c, r in zip(self.constants, reduced, strict=True)
        ]
        promising = np.flatnonzero(
            np.logical_and.reduce([a < room for a, room in zip(after, rooms, strict=True)])
        )
        combinations, values = self.least(
            combinations.take(promising),
            after[0][promising],
            ahead,
            SPARE * self.beam_limits.combinations,
        )
        kept = undominated(
            combinations.width, combinations.latency_us, self.resources(combinations)
        )
        return self.least(
            combinations.take(kept), values[kept], ahead, self.beam_limits.combinations
        )[0]

    def least(
        self, combinations: BranchCombinations, values: Array, ahead: float, most: int
    ) -> tuple[BranchCombinations, Array]:
        """Return the combinations with the least bounds, at most `most`."""
        if len(combinations) <= most:
            return combinations, values
        order = np.argpartition(values, most)
        self.discarded_bound_us = min(self.discarded_bound_us, ahead + float(values[order[most]]))
        return combinations.take(order[:most]), values[order[:most]]

    def bound_after(self, values: CostToGo, j: int, combinations: BranchCombinations) -> Array:
        """Return the reduced latency of combinations, and a bound on what follows."""
        reduced = values.prices.reduced(
            combinations.latency_us, combinations.macs, combinations.params
        )
        if j == len(self.space.cuts) - 1:
            return reduced
        return (
            reduced + values.at[j][np.searchsorted(self.space.merged_widths(j), combinations.width)]
        )

    def extend(
        self,
        number: int,
        group: LabelSet,
        numbers: Array,
        combinations: BranchCombinations,
        waiting: dict[int, list[LabelSet]],
    ) -> None:
        """Extend labels along one segment option."""
        segment_option = self.options[number]
        latency = (group.latency_us[:, None] + combinations.latency_us).ravel()
        macs, params = (
            (group.macs[:, None] + combinations.macs).ravel(),
            (group.params[:, None] + combinations.params).ravel(),
        )
        width = np.tile(combinations.width, len(group))
        params_held = (group.params_held[:, None] + combinations.params_held).reshape(
            len(latency), len(self.space.limited)
        )
        last = segment_option.j == len(self.space.cuts) - 1
        keep = (
            self.bounds.keeps(macs, params, params_held)
            if last
            else self.bound(segment_option.j, width, latency, macs, params) < self.limit_us
        )
        if not last and not keep.all() and np.isfinite(self.limit_us):
            self.discarded_bound_us = min(self.discarded_bound_us, self.limit_us)
        rows = np.flatnonzero(keep if last else keep & self.bounds.fits(params_held))
        if not len(rows):
            return
        parent, pick = np.divmod(rows, len(combinations))
        options = np.zeros((len(rows), len(self.space.processors)), dtype=np.int32)
        for b, option in enumerate(combinations.options):
            options[:, b] = option[pick]
        extended = LabelSet(
            width[rows],
            latency[rows],
            macs[rows],
            params[rows],
            params_held[rows],
            np.full(len(rows), number),
            numbers[parent],
            options,
        )
        if last:
            self.finish(extended)
            return
        queue = waiting.setdefault(segment_option.j, [])
        queue.append(extended)
        if sum(map(len, queue)) > CROWD:
            queue[:] = [self.prune(segment_option.j, queue)]

    def finish(self, labels: LabelSet) -> None:
        """Compare complete labels with the best plan."""
        best = int(labels.latency_us.argmin())
        if self.best is None or labels.latency_us[best] < self.best.latency_us:
            self.best = PlanPath(float(labels.latency_us[best]), self.trace_path(labels, best))

    def trace_path(self, labels: LabelSet, row: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return the steps that led to a label, first to last."""
        firsts = np.cumsum([0, *map(len, self.log)])
        steps: list[tuple[int, tuple[int, ...]]] = []
        while labels.option[row] >= 0:
            number = int(labels.option[row])
            steps.append(
                (
                    number,
                    tuple(labels.options[row, : len(self.options[number].processors)].tolist()),
                )
            )
            before = int(labels.parent[row])
            part = int(np.searchsorted(firsts, before, side="right")) - 1
            labels, row = self.log[part], before - int(firsts[part])
        return tuple(steps[::-1])

    @property
    def lower_bound_us(self) -> float:
        """Return the lower bound on all plans, us."""
        return min(self.discarded_bound_us, np.inf if self.best is None else self.best.latency_us)


def concatenate_labels(parts: list[LabelSet]) -> LabelSet:
    """Return several label sets as one."""
    if len(parts) == 1:
        return parts[0]
    return LabelSet(
        *(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(LabelSet))
    )


__all__ = ["BeamLimits", "LabelSearch", "Multipliers", "PlanPath"]
