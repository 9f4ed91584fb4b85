"""Branch combinations of one segment option whose lower bound is good enough."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.entry_bins import exact_entries
from nnstretch.stretch.search.bounds.lagrangian import (
    candidate_relaxations,
    deadline_costs,
    offsets_us,
)
from nnstretch.stretch.search.bounds.multipliers import CostToGo
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.label_setting.branch_join import BranchJoin
from nnstretch.stretch.search.label_setting.branch_options import branch_options
from nnstretch.stretch.search.options.segment_option import SegmentOption


def candidate_combinations(
    option: SegmentOption,
    width: int,
    values: CostToGo,
    rows: Sequence[int],
    limits: NetworkLimits,
    slack_us: float,
    most: int,
    is_proof: bool = True,
) -> tuple[tuple[Array, ...] | None, float]:
    """Return options of every branch, as parallel arrays, with a bound to the output of `slack_us`.

    `width` is what it reads, `rows` how it is relaxed. Of more than `most` combinations, those of
    the least bounds; fewer are looked at where what is left out costs no proof. The second value is
    the least bound of what was left out nevertheless, infinite where nothing was. None where no
    combination is good enough.
    """
    entries = exact_entries(option, width)
    if entries is None:
        return None, np.inf
    table = deadline_costs(option, entries, values, rows)
    costs = table.costs
    if not np.isfinite(costs).any():
        return None, np.inf
    relaxations = candidate_relaxations(option, values).take(rows)
    tails_us = offsets_us(option, relaxations, values).min(axis=0)
    row = int((costs[:, 0].min(axis=1) + tails_us).argmax())
    best, tail_us = relaxations.take([row]), float(tails_us[row])
    branches = branch_options(option, width, best, values)
    asked = option, table.take(row), branches, limits, slack_us - tail_us, most
    join = BranchJoin(*asked, is_proof=is_proof)
    options = join.run()
    return options, join.discarded_us + tail_us
