"""Lower bound on the bottleneck of any pipeline of given layers, whatever the split."""

from __future__ import annotations

import numpy as np

from nnstretch.partition.search.stage_costs import StageCostTable

STEPS = 400


def bottleneck_bound_us(table: StageCostTable, replicas: bool) -> float:
    """Return the larger of two bounds, us; copies and contention left out.

    One is the heaviest layer on its fastest processor (with replicas, on all processors). The other
    is all work divided at will: by the dual of that linear program, the busiest processor has at
    least `sum over layers of min over processors of share x time` for any shares that add up to 1,
    so the bound holds although the shares searched here need not be the best.
    """
    times_us = table.least_us
    fastest_us = times_us.min(axis=0)
    heaviest_us = float(fastest_us.max()) / (len(table.processors) if replicas else 1)
    if not np.isfinite(heaviest_us):
        return float("inf")
    shares = np.full(len(times_us), 1 / len(times_us))
    best_us = 0.0
    for step in range(STEPS):
        weighted = np.where(np.isfinite(times_us), shares[:, None] * times_us, np.inf)
        owner = weighted.argmin(axis=0)
        best_us = max(best_us, float(weighted.min(axis=0).sum()))
        load_us = np.array([times_us[p][owner == p].sum() for p in range(len(times_us))])
        if not load_us.max():
            break
        shares = shares * np.exp(0.5 / (1 + step) ** 0.5 * load_us / load_us.max())
        shares /= shares.sum()
    return max(best_us, heaviest_us)
