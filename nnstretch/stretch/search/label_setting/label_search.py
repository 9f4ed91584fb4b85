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
from nnstretch.stretch.search.label_setting.extensions import (
    DOMINANCE_FACTOR,
    Extensions,
    admissible_extensions,
    least_rows,
)
from nnstretch.stretch.search.label_setting.label_bounds import LabelBounds
from nnstretch.stretch.search.label_setting.labels import (
    LabelGroup,
    LabelSet,
    LabelTree,
    PlanPath,
    branch_columns,
)
from nnstretch.stretch.search.label_setting.small_sums import pairs_below
from nnstretch.stretch.search.label_setting.waiting_labels import WaitingLabels
from nnstretch.stretch.search.options.option_costs import BranchCombinations
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.search_schedule import BeamLimits
from nnstretch.stretch.search.space.search_space import SearchSpace

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
    waiting: dict[int, WaitingLabels] = field(default_factory=dict)
    """By cut."""

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
        self.enqueue(0, start)
        for i in range(space.last):
            if i in self.waiting:
                self.expand(i, self.prune(self.waiting.pop(i)))
            if progress:
                progress(i + 1, space.last)
        return self

    # Pruning

    def prune(self, queue: WaitingLabels) -> LabelSet:
        """Return the labels at a cut that may still become the best plan."""
        labels = queue.least()
        self.note_discarded(queue.limit_us)
        is_good = labels.bound_us < self.limit_us
        self.note_discarded(float(labels.bound_us[~is_good].min(initial=np.inf)))
        rows = np.flatnonzero(is_good)
        missing = np.maximum(0, self.limits.min_meetings - labels.meetings[rows])
        state = labels.width[rows] * (self.limits.min_meetings + 1) + missing
        resources = [column[rows] for column in compared_resources(labels, self.limits)]
        rows = rows[undominated(state, labels.latency_us[rows], resources)]
        rows, discarded_us = least_rows(labels.bound_us, rows, self.beam.labels)
        self.note_discarded(discarded_us)
        return labels.take(rows)

    def note_discarded(self, bound_us: float) -> None:
        """Lower the certificate to the bound of something that was dropped."""
        self.discarded_bound_us = min(self.discarded_bound_us, bound_us)

    # Extension

    def expand(self, i: int, labels: LabelSet) -> None:
        """Extend the labels of a cut, width by width, along every option."""
        numbers = self.starting.get(i, ())
        if not len(labels) or not numbers:
            return
        labels = labels.take(np.argsort(labels.width, kind="stable"))
        first, reduced_us = self.expanded.append(labels), self.bounds.reduced_us(labels)
        widths, starts = np.unique(labels.width, return_index=True)
        ends = [*starts.tolist()[1:], len(labels)]
        for width, low, high in zip(widths.tolist(), starts.tolist(), ends, strict=True):
            same = labels.take(slice(low, high)), np.arange(first + low, first + high)
            group = LabelGroup(width, *same, reduced_us[:, low:high])
            through_us = self.bounds.through(i, numbers, group)
            for n in self.promising(through_us).tolist():
                limit_us = self.limit_behind_us(numbers[n])
                if through_us[n] >= limit_us:
                    self.note_discarded(limit_us)
                    continue
                extensions = self.admissible_extensions(numbers[n], group, limit_us)
                if extensions is not None and len(extensions.combinations):
                    self.extend(numbers[n], group, extensions, limit_us)

    def promising(self, bound_us: Array) -> Array:
        """Return rows of options of these bounds through which some label may reach a good plan."""
        is_good = bound_us < self.limit_us
        if (np.isfinite(bound_us) & ~is_good).any():
            self.note_discarded(self.limit_us)
        return np.flatnonzero(is_good & np.isfinite(bound_us))

    def limit_behind_us(self, number: int) -> float:
        """Return what bounds through an option must stay below to be worth following, us."""
        queue = self.waiting.get(self.options[number].j)
        return self.limit_us if queue is None else min(self.limit_us, queue.limit_us)

    def admissible_extensions(
        self, number: int, group: LabelGroup, limit_us: float
    ) -> Extensions | None:
        """Return combinations of an option that may still be part of a good plan."""
        options = self.generate_combinations(number, group, limit_us)
        if options is None:
            return None
        extensions = admissible_extensions(
            self.options[number],
            group.width,
            options,
            self.bounds,
            limit_us - group.least_us,
            self.beam.combinations,
        )
        if math.isfinite(extensions.discarded_us):
            self.note_discarded(float(group.least_us[0]) + extensions.discarded_us)
        return extensions

    def generate_combinations(
        self, number: int, group: LabelGroup, limit_us: float
    ) -> tuple[Array, ...] | None:
        """Return options of every branch whose bound is good enough; None without any."""
        option, ahead_us = self.options[number], float(group.least_us[0])
        options, least_us = candidate_combinations(
            option,
            group.width,
            self.values[0],
            known_rows(number, option, self.values[0], group.width),
            self.limits,
            limit_us - ahead_us,
            CANDIDATE_FACTOR * self.beam.combinations,
        )
        if np.isfinite(least_us):
            self.note_discarded(min(max(ahead_us + least_us, 0.0), limit_us))
        elif np.isfinite(limit_us):
            self.note_discarded(limit_us)
        return options

    def extend(
        self,
        number: int,
        group: LabelGroup,
        extensions: Extensions,
        limit_us: float,
    ) -> None:
        """Extend every label of a group by every combination of an option."""
        option, combinations, pairs = self.options[number], extensions.combinations, 0
        reduced_us, after_us = group.reduced_us, extensions.after_us
        for rows, columns, bound_us in pairs_below(reduced_us, after_us, limit_us, SLICE):
            pairs += len(rows)
            labels = self.extended(number, group, combinations, rows, columns, bound_us)
            if option.is_last:
                self.finish(labels.take(np.flatnonzero(self.keeps_limits(labels))))
            else:
                self.enqueue(option.j, labels)
        if pairs < len(group.labels) * len(combinations):
            self.note_discarded(limit_us)

    def extended(
        self,
        number: int,
        group: LabelGroup,
        combinations: BranchCombinations,
        rows: Array,
        columns: Array,
        bound_us: Array,
    ) -> LabelSet:
        """Return labels of a group extended by combinations, pair by pair."""
        labels = group.labels
        return LabelSet(
            bound_us,
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

    def enqueue(self, j: int, labels: LabelSet) -> None:
        """Add labels that wait at a cut, those from which the limits can still be kept."""
        is_able = self.limits.fits(labels.params_held)
        is_able &= labels.meetings + self.bounds.most_meetings[j] >= self.limits.min_meetings
        if not is_able.all():
            labels = labels.take(np.flatnonzero(is_able))
        if len(labels):
            most = DOMINANCE_FACTOR * self.beam.labels
            self.waiting.setdefault(j, WaitingLabels(most)).add(labels)

    def finish(self, labels: LabelSet) -> None:
        """Make the fastest complete label the incumbent, where it is faster."""
        if not len(labels):
            return
        row = int(labels.latency_us.argmin())
        latency_us = float(labels.latency_us[row])
        if self.best is None or latency_us < self.best.latency_us:
            self.best = PlanPath(latency_us, self.expanded.trace_path(labels, row, self.options))
