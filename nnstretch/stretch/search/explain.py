"""Why branches may or may not meet at one cut: every segment that ends there, rule by rule.

Segments start from tensors of the original width, as in `statistics.refusals`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnstretch.stretch.lowering.meeting_points import first_blocks, has_pixels
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.label_setting.dominance import undominated
from nnstretch.stretch.search.options.option_costs import OptionCosts
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import SearchSpace
from nnstretch.stretch.search.statistics import costs_from_original, first_violation
from nnstretch.structure.cuts import INPUT, OUTPUT, Cut, before_window
from nnstretch.trial import Violation

CHUNK = 1_000_000
"""Combinations that are evaluated at once."""


@dataclass(frozen=True, slots=True)
class RemainingOptions:
    """How many options of one branch do not straggle."""

    processor: str
    kept: int
    of: int


@dataclass(frozen=True, slots=True)
class SegmentVerdict:
    """One segment option: the rule that forbids it, or its branches and how fast they are."""

    start: str
    end: str
    processors: tuple[str, ...]
    merge: str
    original_us: float
    """The original layers on the fastest of all processors."""
    first_violation: Violation | None = None
    left: tuple[RemainingOptions, ...] = ()
    fastest_us: float | None = None
    """Of all combinations that no rule refuses; None where a rule refuses them all."""

    @property
    def allowed(self) -> bool:
        """Return whether some plan may have this segment."""
        return self.fastest_us is not None

    def __str__(self) -> str:
        where = f"{self.start} -> {self.end} on {'+'.join(self.processors)}"
        if self.merge == "project":
            where += " (project)"
        if self.first_violation is not None:
            return f"{where}: {format_violation(self.first_violation)}"
        counts = ", ".join(f"{table.processor} {table.kept} of {table.of}" for table in self.left)
        if self.fastest_us is None:
            return f"{where}: each rule alone leaves branches ({counts}), all together leave none"
        fastest = f"fastest {format_amount(self.fastest_us, 'us')}"
        original = f"original {format_amount(self.original_us, 'us')}"
        said = f"{where}: allowed, branches left {counts}, {fastest}, {original}"
        return f"{said} ({self.original_us / self.fastest_us:.2f}x)" if self.fastest_us else said


@dataclass(frozen=True, slots=True)
class Explanation:
    """Verdicts on every segment that ends at one cut."""

    cut: str
    reason: str
    """Why nothing meets at this cut at all; empty at a meeting point."""
    verdicts: tuple[SegmentVerdict, ...] = ()
    idle: tuple[str, ...] = ()
    """Starts with no convolution or linear layer behind them, so there is nothing to branch."""

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the explanation, one line a segment."""
        if self.reason:
            return (f"{self.cut} is no meeting point: {self.reason}",)
        idle = [f"{start} -> {self.cut}: no weighted work to branch" for start in self.idle]
        return (*idle, *map(str, self.verdicts))


def format_amount(value: float, unit: str) -> str:
    """Return `812 us`, `28.5 us`, `2.08e+08 MACs`."""
    return f"{round(value, 1):.10g} {unit}" if unit == "us" else f"{value:.4g} {unit}"


def format_violation(violation: Violation) -> str:
    """Return a violation as `cost_amortised needs 812 us, limit 640 us`."""
    demand = format_amount(violation.demand, violation.unit)
    limit = format_amount(violation.limit, violation.unit)
    if violation.sense == "at least":
        return f"{violation.rule} has {demand}, limit at least {limit}"
    return f"{violation.rule} needs {demand}, limit {limit}"


def explain(space: SearchSpace, name: str) -> Explanation:
    """Explain every segment that ends at a cut. Raises BadPlan for a cut the network lacks."""
    cut = space.analysis.cut(name)
    if reason := why_no_meeting(space.analysis, cut):
        return Explanation(cut.name, reason)
    if not space.processor_sets():
        reason = "only one processor is given, so nothing runs at once"
    tables = CostTables(space)
    j = next(k for k, end in enumerate(space.cuts) if end.position == cut.position)
    verdicts: list[SegmentVerdict] = []
    idle: list[str] = []
    for i in range(j):
        if not tables.original(i, j)[1]:
            idle.append(space.cuts[i].name)
            continue
        for processors in space.processor_sets():
            for merge in space.merges:
                verdicts.append(judge_option(SegmentOption(tables, i, j, processors, merge)))
    return Explanation(cut.name, reason, tuple(verdicts), tuple(idle))


def why_no_meeting(analysis: NetworkAnalysis, cut: Cut) -> str:
    """Return why a cut is no meeting point, in words; empty where it may be one."""
    if cut.name == INPUT:
        return "it is the network's input, no segment ends there"
    if cut.name == OUTPUT:
        return "the output keeps its width, so the last segment is never branched"
    if any(cut.position == end.position for end in analysis.block_ends):
        return ""
    for low, high in block_ranges(analysis):
        if low < cut.position < high:
            end = next(c.name for c in analysis.cuts if c.position == high)
            return f"it is inside the block that ends at {end}, whose layers scale together"
    if before_window(analysis.graph, cut):
        return (
            "it is padded for the convolution behind it, the cut before the padding serves as well"
        )
    shape = analysis.graph.specs()[cut.value].shape
    if not has_pixels(shape, analysis.whole_network.axis(cut.value)):
        return (
            f"it is behind the global pool ({'x'.join(map(str, shape))}), where hardly any work is"
            " left to share"
        )
    return (
        f"it belongs to a dense block: {blocking_meeting_point(analysis, cut)} holds on to its"
        " channels, which cannot change alone"
    )


def blocking_meeting_point(analysis: NetworkAnalysis, cut: Cut) -> str:
    """Return the last meeting point behind a cut that keeps channels of it."""
    whole = analysis.whole_network

    def free_groups(at: Cut) -> set[int]:
        """Return the channel groups of a cut's tensor whose widths may change."""
        channels = whole.shapes[at.value][0][whole.axis(at.value)]
        return whole.roots(channels) - whole.pinned.keys()

    groups = free_groups(cut)
    behind = [end for end in analysis.block_ends if end.position > cut.position]
    holding = [end.name for end in behind if free_groups(end) & groups]
    return holding[-1] if holding else "a later tensor"


def block_ranges(analysis: NetworkAnalysis) -> list[tuple[int, int]]:
    """Return node ranges of blocks.

    Cuts strictly inside are no meeting points, unless another block ends there.
    """
    ranges = list(first_blocks(analysis.graph, analysis.stages))
    for stage in analysis.stages:
        ranges += [(r.start.position, r.end.position) for r in stage.repeats]
    return ranges


def judge_option(option: SegmentOption) -> SegmentVerdict:
    """Judge one segment option by the rules of segments, from a tensor of the original width."""
    width_in = option.space.original_width(option.i)
    verdict = SegmentVerdict(
        option.space.cuts[option.i].name,
        option.space.cuts[option.j].name,
        option.processors,
        option.merge,
        option.original[0],
    )
    if violation := first_violation(option, costs_from_original(option)):
        return replace(verdict, first_violation=violation)
    totals = option.branch_totals(width_in) or []
    remaining = []
    for processor, branch in zip(option.processors, totals, strict=True):
        kept = int(np.isfinite(branch.us).sum())
        remaining.append(RemainingOptions(processor, kept, len(branch.us)))
    fastest = fastest_us(option, width_in, totals)
    return replace(verdict, left=tuple(remaining), fastest_us=fastest)


def fastest_us(option: SegmentOption, width_in: int, totals: Sequence[OptionCosts]) -> float | None:
    """Return the least latency of all combinations that no rule refuses, us.

    An option is left out where another of its branch is no slower, has no fewer MACs and outputs no
    more channels: every rule and the latency are at least as content with that one.
    """
    kept = []
    for (us, macs, _), table in zip(totals, option.branch_tables, strict=True):
        finite = np.flatnonzero(np.isfinite(us))
        resources = [macs[finite], -table.channels_out[finite].astype(float)]
        kept.append(finite[undominated(np.zeros(len(finite)), us[finite], resources)])
    best_us = np.inf
    partners = int(np.prod([len(rows) for rows in kept[1:]]))
    step = max(1, CHUNK // max(1, partners))
    for low in range(0, len(kept[0]), step):
        grid = np.meshgrid(kept[0][low : low + step], *kept[1:], indexing="ij")
        options = tuple(column.ravel() for column in grid)
        combinations = option.admissible_combinations(width_in, totals, options)
        best_us = min(best_us, float(combinations.latency_us.min(initial=np.inf)))
    return best_us if np.isfinite(best_us) else None
