"""One unit lowered and priced one pair of widths at a time, where no polynomials describe it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nnstretch.errors import BadPlan
from nnstretch.graph import Graph
from nnstretch.plan import Branch
from nnstretch.stretch.cost.cost_arrays import Array, CostArrays
from nnstretch.stretch.cost.layout_costs import BoundaryLayouts, LayoutModel
from nnstretch.stretch.lowering.section import Section, resize_section


@dataclass(frozen=True, slots=True)
class PairCost:
    """Cost of a unit at one pair of widths."""

    latency_us: dict[str, float]
    """By processor; empty where no such unit can be built."""
    macs: int
    params: int


@dataclass
class LoweredUnit:
    """One unit at pairs of widths, every pair lowered once."""

    section: Section
    layouts: LayoutModel
    pairs: dict[tuple[int, int, BoundaryLayouts], PairCost] = field(default_factory=dict)

    def costs(self, width_in: Array, width_out: Array, ends: BoundaryLayouts) -> CostArrays:
        """Return the costs at broadcast widths."""
        width_in, width_out = np.broadcast_arrays(width_in, width_out)
        pairs = zip(width_in.ravel().tolist(), width_out.ravel().tolist(), strict=True)
        costs = [self.pair_cost(*pair, ends) for pair in pairs]
        latency_us: dict[str, Array] = {}
        for p in self.layouts.processors:
            times_us = [cost.latency_us.get(p, np.inf) for cost in costs]
            latency_us[p] = np.array(times_us).reshape(width_in.shape)
        macs = np.array([cost.macs for cost in costs]).reshape(width_in.shape)
        params = np.array([cost.params for cost in costs]).reshape(width_in.shape)
        return CostArrays(latency_us, macs, params)

    def pair_cost(self, width_in: int, width_out: int, ends: BoundaryLayouts) -> PairCost:
        """Return the cost at one pair of widths."""
        key = width_in, width_out, ends
        if key not in self.pairs:
            try:
                graph = self.graph(width_in, width_out)
            except BadPlan:
                self.pairs[key] = PairCost({}, 0, 0)
            else:
                latency_us = self.layouts.estimate_graph(graph, ends)
                self.pairs[key] = PairCost(latency_us, graph.macs, graph.params)
        return self.pairs[key]

    def graph(self, width_in: int, width_out: int) -> Graph:
        """Return the unit, adapters included. Raises BadPlan for widths it cannot have."""
        return resize_section(self.section, Branch(""), width_in, width_out, "")[0]
