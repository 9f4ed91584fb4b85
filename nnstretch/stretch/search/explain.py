"""Why branches may or may not meet at one cut.

Every segment that ends there, against every rule, in numbers.

Segments start from tensors of the original width, as in `counts.refusals`, and rules are asked in
the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.lowering.meeting_points import first_blocks, has_pixels
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.dominance import undominated
from nnstretch.stretch.search.search_space import Array, SearchSpace
from nnstretch.stretch.search.segment_options import SegmentOption
from nnstretch.stretch.search.statistics import first_violation
from nnstretch.structure.cuts import INPUT, OUTPUT, Cut, before_window
from nnstretch.trial import Violation

Options = list[tuple[Array, Array, Array]]
"""For every branch of a segment, over (depth, width): latency in us, MACs, parameters."""
CHUNK = 1_000_000
"""Combinations that are priced at once."""


@dataclass(frozen=True, slots=True)
class RemainingOptions:
    """Of one branch's options, those that do not straggle."""

    processor: str
    kept: int
    of: int


@dataclass(frozen=True, slots=True)
class SegmentVerdict:
    """Segment on one set of processors.

    The rule that forbids branches there, or what is left and how fast that is.
    """

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
        where = f"{self.start} -> {self.end} on {'+'.join(self.processors)}" + (
            " (project)" if self.merge == "project" else ""
        )
        if self.first_violation is not None:
            return f"{where}: {format_violation(self.first_violation)}"
        counts = ", ".join(f"{table.processor} {table.kept} of {table.of}" for table in self.left)
        if self.fastest_us is None:
            return f"{where}: each rule alone leaves branches ({counts}), all together leave none"
        times = (
            f"fastest {format_amount(self.fastest_us, 'us')}, original"
            f" {format_amount(self.original_us, 'us')}"
        )
        speed = f"{times} ({self.original_us / self.fastest_us:.2f}x)"
        return f"{where}: allowed, branches left {counts}, {speed}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """All there is to say about one cut."""

    cut: str
    reason: str
    """Why nothing meets at this cut at all; empty at a meeting point."""
    verdicts: tuple[SegmentVerdict, ...] = ()
    idle: tuple[str, ...] = ()
    """Starts from which no convolution or linear layer lies on the way, so there is nothing to
    branch.
    """

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the explanation, one line a segment."""
        if self.reason:
            return (f"{self.cut} is no meeting point: {self.reason}",)
        return (
            *(f"{start} -> {self.cut}: no weighted work to branch" for start in self.idle),
            *map(str, self.verdicts),
        )


def format_amount(value: float, unit: str) -> str:
    """Return `812 us`, `28.5 us`, `2.08e+08 MACs`."""
    return f"{round(value, 1):.10g} {unit}" if unit == "us" else f"{value:.4g} {unit}"


def format_violation(violation: Violation) -> str:
    """Return `cost_amortised needs 812 us, limit 640 us`.

    `capacity has 7e+05 MACs, limit at least 8e+05 MACs`.
    """
    unit = violation.unit
    demand, limit = format_amount(violation.demand, unit), format_amount(violation.limit, unit)
    return (
        f"{violation.rule} has {demand}, limit at least {limit}"
        if violation.sense == "at least"
        else f"{violation.rule} needs {demand}, limit {limit}"
    )


def explain(space: SearchSpace, name: str) -> Explanation:
    """Explain every segment that ends at a cut.

    Raises BadPlan, with the names that there are, for a cut the network lacks.
    """
    cut = space.analysis.cut(name)
    if reason := why_no_meeting(space.analysis, cut):
        return Explanation(cut.name, reason)
    j = next(k for k, previous in enumerate(space.cuts) if previous.position == cut.position)
    starts = range(j)
    worked = [i for i in starts if space.original(i, j)[1]]
    options = [
        SegmentOption(space, i, j, processors, merge)
        for i in worked
        for processors in space.processor_sets()
        for merge in space.merges
    ]
    idle = tuple(space.cuts[i].name for i in starts if i not in worked)
    reason = (
        "only one processor is given, so nothing runs at once" if not space.processor_sets() else ""
    )
    return Explanation(cut.name, reason, tuple(judge_option(option) for option in options), idle)


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
    free = {
        c.value: whole.roots(whole.shapes[c.value][0][whole.axis(c.value)]) - whole.pinned.keys()
        for c in analysis.cuts
    }
    behind = [
        c.name
        for c in analysis.block_ends
        if c.position > cut.position and free[c.value] & free[cut.value]
    ]
    return behind[-1] if behind else "a later tensor"


def block_ranges(analysis: NetworkAnalysis) -> list[tuple[int, int]]:
    """Return node ranges of blocks.

    Cuts strictly inside are no meeting points, unless another block ends there.
    """
    repeats = [
        (r.start.position, r.end.position) for stage in analysis.stages for r in stage.repeats
    ]
    return first_blocks(analysis.graph, analysis.stages) + repeats


def judge_option(option: SegmentOption) -> SegmentVerdict:
    """Judge one segment option, from a tensor of the original width, by the four rules."""
    width_in = option.space.original_width(option.i)
    cuts = option.space.cuts
    about = (
        cuts[option.i].name,
        cuts[option.j].name,
        option.processors,
        option.merge,
        option.original[0],
    )
    if broken := first_violation(option, width_in):
        return SegmentVerdict(*about, broken)
    totals = option.branch_totals(width_in) or []
    remaining = tuple(
        RemainingOptions(p, int(np.isfinite(us).sum()), len(us))
        for p, (us, _, _) in zip(option.processors, totals, strict=True)
    )
    return SegmentVerdict(*about, None, remaining, fastest_us(option, width_in, totals))


def fastest_us(option: SegmentOption, width_in: int, totals: Options) -> float | None:
    """Return the least latency of all combinations that no rule refuses.

    An option is left out where another of its branch is no slower, has no fewer MACs and hands no
    more over: every rule and the latency are at least as content with that one.
    """
    kept = []
    for (us, macs, _), table in zip(totals, option.branch_tables, strict=True):
        finite = np.flatnonzero(np.isfinite(us))
        kept.append(
            finite[
                undominated(
                    np.zeros(len(finite)),
                    us[finite],
                    [macs[finite], -table.channels_out[finite].astype(float)],
                )
            ]
        )
    best = np.inf
    rows = max(1, CHUNK // max(1, int(np.prod([len(k) for k in kept[1:]]))))
    for low in range(0, len(kept[0]), rows):
        grid = np.meshgrid(kept[0][low : low + rows], *kept[1:], indexing="ij")
        combinations = option.admissible_combinations(
            width_in, totals, tuple(g.ravel() for g in grid)
        )
        best = min(best, float(combinations.latency_us.min(initial=np.inf)))
    return best if np.isfinite(best) else None
