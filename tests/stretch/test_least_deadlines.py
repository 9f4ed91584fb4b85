"""No branches of a segment are faster than the deadline from which a bound looks at them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.brute_force import Instance, random_instance
from support.search_bounds import crossings, slack, space_of

from nnstretch.stretch.search.bounds.branch_costs import entry_features
from nnstretch.stretch.search.bounds.cost_to_go import cost_to_go
from nnstretch.stretch.search.bounds.entry_bins import bin_entries, width_bins
from nnstretch.stretch.search.bounds.multipliers import (
    Multipliers,
    SegmentMultipliers,
    SeparableMultipliers,
)
from nnstretch.stretch.search.bounds.separable_bounds import least_deadline
from nnstretch.stretch.search.options.segment_options import segment_options
from nnstretch.stretch.search.space.cost_tables import CostTables


def undemanding(seed: int) -> Instance:
    """Branches that all have more MACs than their segment needs."""
    one = random_instance(seed)
    limits = replace(one.limits, min_depth=1.0, min_width=0.5, main_macs=0.0, segment_macs=0.1)
    return replace(one, limits=limits)


@pytest.mark.parametrize("share", [-3.0, -0.3, 0.0, 0.3])
@pytest.mark.parametrize("seed", range(20))
def test_no_branches_are_faster_than_the_least_deadline(seed: int, share: float) -> None:
    """At any multipliers, also where an upper limit on those of the network makes MACs dear.

    `share` is what a MAC of the network is worth, over what it takes on the fastest processor.
    """
    space = space_of(undemanding(seed))
    tables = CostTables(space)
    us, macs = tables.original(0, space.last)
    every = list(segment_options(tables))
    prices = Multipliers(share * min(us.values()) / macs)
    values = cost_to_go(space, every, prices, None, 1.0)
    for number, row, width, combinations in crossings(every, space):
        option = every[number]
        if not option.branched:
            continue
        starts = width_bins(space, option.i, 1.0)
        entries, totals = bin_entries(option, starts), option.branch_totals(width)
        assert entries is not None
        assert totals is not None
        features = [entry_features(entry) for entry in entries]
        known = values.separable[option.j, option.processors, option.merge]
        nothing = np.zeros(len(known))
        free = SeparableMultipliers(known.shares, SegmentMultipliers(nothing, nothing))
        chosen = zip(totals, combinations.options, strict=True)
        slowest_us = np.maximum.reduce([total.us[options] for total, options in chosen])
        for tried in (known, free):
            by_bin = least_deadline(option, features, tried, values).max(axis=0)
            first_us = float(by_bin[min(row, len(by_bin) - 1)])
            assert first_us <= float(slowest_us.min()) + slack(first_us), option.name
