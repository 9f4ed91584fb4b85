"""How large a space is, and what each constraint refuses in it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np

from nnstretch.stretch.search.constraints import SEGMENT_RULES, SegmentDemand
from nnstretch.stretch.search.search_space import SearchSpace
from nnstretch.stretch.search.segment_options import SegmentOption
from nnstretch.trial import Violation


def log10_size(space: SearchSpace) -> float:
    """Return plans in the space, constraints apart: products over all ways to place meeting
    points.
    """
    last, alone = len(space.cuts) - 1, len(space.processors)
    ways = [1] + [0] * last
    for j in range(1, last + 1):
        for i in range(j):
            options = len(space.depths(i, j)) * len(space.widths_at(j))
            branched = (
                sum(options ** len(processors) for processors in space.processor_sets())
                * len(space.merges)
                if j < last and space.original(i, j)[1]
                else 0
            )
            ways[j] += ways[i] * (alone + branched)
    return math.log10(ways[-1])


def least_macs(space: SearchSpace, options: Sequence[SegmentOption]) -> float:
    """Return the least MACs of a plan: every segment by itself, whatever width it reads and however
    long its branches take.
    """
    reach = {0: 0.0}
    for option in sorted(options, key=lambda option: option.i):
        first = (
            space.projected_head_costs(option.i, option.j).macs
            if option.merge == "project"
            else option.front.costs.macs.min(axis=0)
        )
        work = sum(
            float((first[table.first] + table.macs).min(initial=math.inf))
            for table in option.branch_tables
        )
        if option.branched:
            work = max(work, option.bounds.macs)
        reach[option.j] = min(reach.get(option.j, math.inf), reach.get(option.i, math.inf) + work)
    return reach[len(space.cuts) - 1]


def refusals(space: SearchSpace, known: Sequence[SegmentOption] = ()) -> dict[str, int]:
    """Count, over all segments and processor sets, those that each rule leaves no branches for.

    `no_stragglers` also counts single branches that are too slow, as `straggling_branches`. Lanes
    that are `known` are not made again.
    """
    counts: Counter[str] = Counter()
    last = len(space.cuts) - 1
    concat_options = {
        (option.i, option.j, option.processors): option
        for option in known
        if option.merge == "concat"
    }
    for (i, j), processors in product(
        [(a, b) for a in range(last) for b in range(a + 1, last)], space.processor_sets()
    ):
        if space.original(i, j)[1]:
            reason, slow = first_refusal(
                concat_options.get((i, j, processors)) or SegmentOption(space, i, j, processors),
                space.original_width(i),
            )
            counts["straggling_branches"] += slow
            counts[reason] += reason != ""
    names = (rule.name for rule in SEGMENT_RULES)
    return {name: counts[name] for name in (*names, "straggling_branches") if counts[name]}


def first_refusal(option: SegmentOption, width_in: int) -> tuple[str, int]:
    """Return the rule that leaves no branches, if one does, and how many options straggle."""
    totals = option.branch_totals(width_in)
    if totals is None:
        return "", 0
    straggling = sum(int(np.isinf(us).sum()) for us, _, _ in totals)
    violation = first_violation(option, width_in)
    return violation.rule if violation is not None else "", straggling


def first_violation(option: SegmentOption, width_in: int) -> Violation | None:
    """Return the first rule that leaves nothing, with the least that could be asked of it."""
    return next(option.bounds.violations(option.name, least_demand(option, width_in)), None)


def least_demand(option: SegmentOption, width_in: int) -> SegmentDemand:
    """Return the least time and, among options that keep pace, the most MACs of the branches.

    Each quantity by itself: no combination need have all of them.
    """
    costs = option.branch_costs(width_in)
    assert costs is not None, "every merge can start from the original width"
    slowest_us = max(float(us.min()) for us, _, _ in costs)
    most = [float(macs[option.bounds.keeps_pace(us)].max(initial=0.0)) for us, macs, _ in costs]
    communication_us = least_communication_us(option, width_in)
    return SegmentDemand(communication_us, slowest_us, max(most), sum(most))


def least_communication_us(option: SegmentOption, width_in: int) -> float:
    """Return what meeting costs at the least, over all branches of a segment option."""
    copies = [
        link.cost_us(option.bytes_in * width_in) + float(table.copy_out_us.min())
        for link, table in zip(option.copies_in, option.branch_tables, strict=True)
    ]
    handed = sum(int(table.channels_out.min()) for table in option.branch_tables)
    return max(copies) + option.sync_us + option.merge_us + option.merge_us_per_channel * handed
