"""Label setting for the resource-constrained shortest path through cuts and merged widths.

A label carries latency, MACs and parameters. It is dropped where another at the same cut and width
dominates it, or where its bound says that no completion can beat the incumbent by more than the
gap. Where a beam is full, labels of the worst bounds are dropped without proof; the least of their
bounds is a lower bound on the optimum, so every run ends with its own certificate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.multipliers import CostToGo
from nnstretch.stretch.search.bounds.relaxations import known_rows
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.label_setting.combinations import candidate_combinations
from nnstretch.stretch.search.label_setting.dominance import compared_resources, undominated
from nnstretch.stretch.search.label_setting.label_bounds import LabelBounds
from nnstretch.stretch.search.label_setting.labels import (
    LabelGroup,
    LabelSet,
    LabelTree,
    PlanPath,
    branch_columns,
    concatenate_labels,
)
from nnstretch.stretch.search.label_setting.small_sums import pairs_below
from nnstretch.stretch.search.options.option_costs import BranchCombinations
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.search_schedule import BeamLimits
from nnstretch.stretch.search.space.search_space import SearchSpace

MOST_WAITING = 300_000
"""Labels that may wait at one cut before they are pruned ahead of time."""
DOMINANCE_FACTOR = 6
"""Rows that dominance looks at, over those that are kept."""
CANDIDATE_FACTOR = 16
"""Combinations that are generated, over those that are kept."""
SLICE = 100_000
"""Pairs of a label and a combination that are looked at at once."""


@dataclass
class LabelSearch:
    """One run over all cuts; `best` and `discarded_bound_us` are its result."""

    space: SearchSpace
    options: Sequence[SegmentOption]
    values: Sequence[CostToGo]
    """Bounds at several multipliers; a label must be promising under all of them."""
    limits: NetworkLimits
    beam: BeamLimits
    gap: float
    """Relative: plans that could win by less only are not looked for."""
    best: PlanPath | None = None
    """The incumbent."""
    only: Sequence[int] | None = None
    """Numbers of the segment options to use; None uses all that have bounds."""
    ceiling_us: float = np.inf
    """Plans above it are not looked for."""
    discarded_bound_us: float = np.inf
    """Least bound of anything that was dropped without proof that it cannot win."""
    expanded: LabelTree = field(default_factory=LabelTree)
    """Labels that were expanded."""

    def __post_init__(self) -> None:
        self.bounds = LabelBounds(self.space, self.options, self.values, self.limits)
        self.starting: dict[int, list[int]] = {}
        for number in range(len(self.options)) if self.only is None else self.only:
            self.starting.setdefault(self.options[number].i, []).append(number)

    @property
    def limit_us(self) -> float:
        """Return what a bound must stay below to be worth following, us."""
        if self.best is None:
            return self.ceiling_us
        return min(self.ceiling_us, self.best.latency_us * (1 - max(self.gap, 1e-12)))

    def run(self, progress: Callable[[int, int], None] | None = None) -> LabelSearch:
        """Extend labels from the network's input to its output."""
        space = self.space
        width = space.original_width(0)
        start = LabelSet.at_input(width, len(space.holders), len(space.processors))
        waiting: dict[int, list[LabelSet]] = {0: [start]}
        for i in range(space.last):
            if i in waiting:
                self.expand(i, self.prune(i, waiting.pop(i)), waiting)
            if progress:
                progress(i + 1, space.last)
        return self

    # Pruning

    def prune(self, i: int, parts: list[LabelSet]) -> LabelSet:
        """Return the labels at a cut that may still become the best plan."""
        labels = concatenate_labels(parts)
        bound = self.bounds.at_cut(i, labels)
        labels, bound = self.discard(labels, bound, bound < self.limit_us, self.limit_us)
        labels, bound = self.keep_best(labels, bound, DOMINANCE_FACTOR * self.beam.labels)
        missing = np.maximum(0, self.limits.min_meetings - labels.meetings)
        state = labels.width * (self.limits.min_meetings + 1) + missing
        rows = undominated(state, labels.latency_us, compared_resources(labels, self.limits))
        return self.keep_best(labels.take(rows), bound[rows], self.beam.labels)[0]

    def keep_best(self, labels: LabelSet, bound: Array, most: int) -> tuple[LabelSet, Array]:
        """Return the labels of the least bounds, and these."""
        if len(labels) <= most:
            return labels, bound
        worst = float(np.partition(bound, most)[most])
        return self.discard(labels, bound, bound < worst, worst)

    def discard(
        self, labels: LabelSet, bound: Array, keep: Array, least: float
    ) -> tuple[LabelSet, Array]:
        """Return the labels to keep and their bounds; note the least bound of the others."""
        if not keep.all():
            self.note_discarded(max(least, float(bound[~keep].min())))
        rows = np.flatnonzero(keep)
        return labels.take(rows), bound[rows]

    def note_discarded(self, bound_us: float) -> None:
        """Lower the certificate to the bound of something that was dropped."""
        self.discarded_bound_us = min(self.discarded_bound_us, bound_us)

    # Extension

    def expand(self, i: int, labels: LabelSet, waiting: dict[int, list[LabelSet]]) -> None:
        """Extend the labels of a cut, width by width, along every option."""
        if not len(labels):
            return
        labels = labels.take(np.argsort(labels.width, kind="stable"))
        first = self.expanded.append(labels)
        widths, starts = np.unique(labels.width, return_index=True)
        ends = [*starts.tolist()[1:], len(labels)]
        for width, low, high in zip(widths.tolist(), starts.tolist(), ends, strict=True):
            part = labels.take(np.arange(low, high))
            reduced_us = self.bounds.reduced_us(part)
            group = LabelGroup(width, part, np.arange(first + low, first + high), reduced_us)
            numbers = self.starting.get(i, ())
            if not numbers:
                continue
            through_us = self.bounds.through(i, numbers, group)
            for number, bound_us in zip(numbers, through_us.tolist(), strict=True):
                if self.is_promising(bound_us):
                    combinations = self.admissible_combinations(number, group)
                    if combinations is not None and len(combinations):
                        self.extend(number, group, combinations, waiting)

    def is_promising(self, bound_us: float) -> bool:
        """Return whether some label may reach a good plan through an option of this bound."""
        if math.isfinite(bound_us) and bound_us >= self.limit_us:
            self.note_discarded(self.limit_us)
        return bound_us < self.limit_us and math.isfinite(bound_us)

    def admissible_combinations(self, number: int, group: LabelGroup) -> BranchCombinations | None:
        """Return combinations of an option that may still be part of a good plan."""
        option = self.options[number]
        combinations = self.generate_combinations(number, group)
        if combinations is None:
            return None
        after_us = self.bounds.after_us(option, combinations)
        is_good = (after_us < self.limit_us - group.least_us[:, None]).all(axis=0)
        is_good &= self.limits.fits(combinations.params_held)
        rows = np.flatnonzero(is_good)
        combinations, ahead_us = combinations.take(rows), float(group.least_us[0])
        most = self.beam.combinations
        combinations, values = self.keep_least(
            combinations, after_us[0, rows], ahead_us, DOMINANCE_FACTOR * most
        )
        resources = compared_resources(combinations, self.limits)
        rows = undominated(combinations.width, combinations.latency_us, resources)
        return self.keep_least(combinations.take(rows), values[rows], ahead_us, most)[0]

    def generate_combinations(self, number: int, group: LabelGroup) -> BranchCombinations | None:
        """Return combinations of an option whose bound is good enough; None without any."""
        option, ahead_us = self.options[number], float(group.least_us[0])
        totals = option.branch_totals(group.width)
        if totals is None:
            return None
        options, least_us = candidate_combinations(
            option,
            group.width,
            totals,
            self.values[0],
            known_rows(number, option, self.values[0], group.width),
            self.limits,
            self.limit_us - ahead_us,
            CANDIDATE_FACTOR * self.beam.combinations,
        )
        if np.isfinite(least_us):
            self.note_discarded(min(max(ahead_us + least_us, 0.0), self.limit_us))
        elif np.isfinite(self.limit_us):
            self.note_discarded(self.limit_us)
        if options is None:
            return None
        return option.admissible_combinations(group.width, totals, options)

    def keep_least(
        self, combinations: BranchCombinations, values: Array, ahead_us: float, most: int
    ) -> tuple[BranchCombinations, Array]:
        """Return the combinations of the least bounds, at most `most`, and these."""
        if len(combinations) <= most:
            return combinations, values
        order = np.argpartition(values, most)
        self.note_discarded(ahead_us + float(values[order[most]]))
        return combinations.take(order[:most]), values[order[:most]]

    def extend(
        self,
        number: int,
        group: LabelGroup,
        combinations: BranchCombinations,
        waiting: dict[int, list[LabelSet]],
    ) -> None:
        """Extend every label of a group by every combination of an option."""
        option = self.options[number]
        after_us, limit_us, pairs = self.bounds.after_us(option, combinations), self.limit_us, 0
        for rows, columns in pairs_below(group.reduced_us, after_us, limit_us, SLICE):
            pairs += len(rows)
            labels = self.extended(number, group, combinations, rows, columns)
            if option.is_last:
                self.finish(labels.take(np.flatnonzero(self.keeps_limits(labels))))
            else:
                fits = np.flatnonzero(self.limits.fits(labels.params_held))
                self.enqueue(option.j, labels.take(fits), waiting)
        if pairs < len(group.labels) * len(combinations):
            self.note_discarded(limit_us)

    def extended(
        self,
        number: int,
        group: LabelGroup,
        combinations: BranchCombinations,
        rows: Array,
        columns: Array,
    ) -> LabelSet:
        """Return labels of a group extended by combinations, pair by pair."""
        labels = group.labels
        return LabelSet(
            combinations.width[columns],
            labels.latency_us[rows] + combinations.latency_us[columns],
            labels.macs[rows] + combinations.macs[columns],
            labels.params[rows] + combinations.params[columns],
            labels.meetings[rows] + self.options[number].meetings,
            labels.params_held[rows] + combinations.params_held[columns],
            np.full(len(rows), number),
            group.numbers[rows],
            branch_columns(combinations.options, columns, len(self.space.processors)),
        )

    def keeps_limits(self, labels: LabelSet) -> Array:
        """Return which complete labels keep the limits of the whole network."""
        totals = labels.macs, labels.params, labels.meetings, labels.params_held
        return self.limits.keeps(*totals)

    def enqueue(self, j: int, labels: LabelSet, waiting: dict[int, list[LabelSet]]) -> None:
        """Add labels that wait at a cut; prune them where they are too many."""
        if not len(labels):
            return
        queue = waiting.setdefault(j, [])
        queue.append(labels)
        if sum(map(len, queue)) > MOST_WAITING:
            queue[:] = [self.prune(j, queue)]

    def finish(self, labels: LabelSet) -> None:
        """Make the fastest complete label the incumbent, where it is faster."""
        if not len(labels):
            return
        row = int(labels.latency_us.argmin())
        latency_us = float(labels.latency_us[row])
        if self.best is None or latency_us < self.best.latency_us:
            self.best = PlanPath(latency_us, self.expanded.trace_path(labels, row, self.options))
