"""How large a space is, and what each rule refuses in it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from nnstretch.stretch.search.constraints import SEGMENT_RULES, SegmentDemand
from nnstretch.stretch.search.options.option_costs import OptionCosts
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.trial import Violation


def log10_size(tables: CostTables) -> float:
    """Return the logarithm of the number of plans, rules apart, over all meeting points."""
    space = tables.space
    plans = [1] + [0] * space.last
    for j in range(1, space.last + 1):
        for i in range(j):
            ways = len(space.processors)
            if j < space.last and tables.original(i, j)[1]:
                branches = len(space.depths(i, j)) * len(space.widths_at(j))
                teams = sum(branches ** len(team) for team in space.processor_sets())
                ways += teams * len(space.merges)
            plans[j] += plans[i] * ways
    return math.log10(plans[-1])


def least_macs(tables: CostTables, options: Sequence[SegmentOption]) -> float:
    """Return a lower bound on the MACs of a plan: the least of every segment by itself."""
    reach = {0: 0.0}
    for option in sorted(options, key=lambda option: option.i):
        if option.merge == "project":
            first = tables.projected_head_costs(option.i, option.j).macs
        else:
            first = option.head.costs.macs.min(axis=0)
        macs = 0.0
        for table in option.branch_tables:
            macs += float((first[table.first] + table.macs).min(initial=math.inf))
        if option.branched:
            macs = max(macs, option.bounds.macs)
        reach[option.j] = min(reach.get(option.j, math.inf), reach.get(option.i, math.inf) + macs)
    return reach[tables.space.last]


def refusals(tables: CostTables, known: Sequence[SegmentOption] = ()) -> dict[str, int]:
    """Count segments and processor sets that each rule leaves no branches for.

    Single branches that are too slow count as `straggling_branches`. Options that are `known` are
    not made again.
    """
    space = tables.space
    concat = {(o.i, o.j, o.processors): o for o in known if o.merge == "concat"}
    counts: Counter[str] = Counter()
    for i in range(space.last):
        for j in range(i + 1, space.last):
            if not tables.original(i, j)[1]:
                continue
            for team in space.processor_sets():
                option = concat.get((i, j, team)) or SegmentOption(tables, i, j, team)
                rule, straggling = first_refusal(option)
                counts["straggling_branches"] += straggling
                counts[rule] += rule != ""
    names = [*(rule.name for rule in SEGMENT_RULES), "straggling_branches"]
    return {name: counts[name] for name in names if counts[name]}


def costs_from_original(option: SegmentOption) -> list[OptionCosts]:
    """Return the costs of branches that read the original width, from which every merge starts."""
    costs = option.branch_costs(option.space.original_width(option.i))
    assert costs is not None
    return costs


def first_refusal(option: SegmentOption) -> tuple[str, int]:
    """Return the rule that leaves no branches, or nothing, and how many branches straggle."""
    costs = costs_from_original(option)
    keeps_pace = [option.bounds.keeps_pace(branch.us) for branch in costs]
    straggling = sum(rows.size - int(np.count_nonzero(rows)) for rows in keeps_pace)
    violation = first_violation(option, costs)
    return violation.rule if violation is not None else "", straggling


def first_violation(option: SegmentOption, costs: Sequence[OptionCosts]) -> Violation | None:
    """Return the first rule that leaves nothing, with the least that could be asked of it.

    `costs` are those of branches that read the original width.
    """
    return next(option.bounds.violations(option.name, least_demand(option, costs)), None)


def least_demand(option: SegmentOption, costs: Sequence[OptionCosts]) -> SegmentDemand:
    """Return the least latencies and, of branches that keep pace, the most MACs.

    Each quantity by itself: no combination need have all of them.
    """
    slowest_us = max(float(branch.us.min()) for branch in costs)
    most_macs = []
    for branch in costs:
        keeps_pace = option.bounds.keeps_pace(branch.us)
        most_macs.append(float(branch.macs[keeps_pace].max(initial=0.0)))
    communication_us = least_communication_us(option)
    original = option.original[1]
    return SegmentDemand(communication_us, slowest_us, max(most_macs), sum(most_macs), original)


def least_communication_us(option: SegmentOption) -> float:
    """Return the least cost of meeting, over branches that read the original width, us."""
    width_in = option.space.original_width(option.i)
    copies_us = []
    channels_out = 0
    for link, table in zip(option.copies_in, option.branch_tables, strict=True):
        in_us = link.cost_us(option.bytes_in * width_in)
        copies_us.append(in_us + float(table.copy_out_us.min()))
        channels_out += int(table.channels_out.min())
    merge_us = option.merge_us_per_channel * channels_out
    return max(copies_us) + option.sync_us + option.merge_us + merge_us
