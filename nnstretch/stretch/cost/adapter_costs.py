"""Costs of adapters: layers that give a tensor other channels at the ends of a branch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nnstretch.graph import Graph, TensorSpec, Value
from nnstretch.stretch.cost.cost_arrays import Array, CostArrays
from nnstretch.stretch.cost.layout_costs import (
    BLOCK,
    PLAIN_BOUNDARY,
    BoundaryLayouts,
    LayoutModel,
)
from nnstretch.stretch.cost.polynomials import KernelPolynomials, LoweredPoint, fit_polynomials
from nnstretch.stretch.lowering.adapters import build_adapter

ORIGIN = 64, 256
"""Channels in and out around which polynomials are fitted, before residues are added."""


@dataclass
class AdapterCosts:
    """Costs of a 1x1 convolution and batch norm, or of a linear layer for tokens."""

    axis: int
    spec: TensorSpec
    layouts: LayoutModel
    forms: dict[tuple[int, int, BoundaryLayouts], KernelPolynomials] = field(default_factory=dict)
    narrow: dict[tuple[tuple[int, int], BoundaryLayouts], CostArrays] = field(default_factory=dict)

    def costs(
        self,
        width_in: Array,
        width_out: Array,
        ends: BoundaryLayouts = PLAIN_BOUNDARY,
        always: bool = False,
    ) -> CostArrays:
        """Return costs over broadcast widths; zero where both agree, unless `always`.

        Infinite where one is needed between tensors that hold no floating numbers.
        """
        width_in, width_out = np.broadcast_arrays(width_in, width_out)
        needed = np.full(width_in.shape, True) if always else width_in != width_out
        result = CostArrays.zeros(self.layouts.processors, width_in.shape)
        if not self.spec.is_floating:
            for us in result.latency_us.values():
                us[needed] = np.inf
            return result
        is_narrow = np.full(width_in.shape, False)
        if self.layouts.blocked:
            is_narrow = needed & (np.minimum(width_in, width_out) < BLOCK)
        classes = self.layouts.pair_residues(width_in, width_out)
        for number in np.unique(classes[needed & ~is_narrow]).tolist():
            rows = (classes == number) & needed & ~is_narrow
            widths = [width_in[rows], width_out[rows]]
            form = self.polynomials(int(widths[0][0]), int(widths[1][0]), ends)
            part = self.layouts.estimate_polynomials(form, widths, widths[0].shape)
            result.assign(rows.ravel(), part)
        pairs = zip(width_in[is_narrow].tolist(), width_out[is_narrow].tolist(), strict=True)
        for row, pair in zip(np.flatnonzero(is_narrow), pairs, strict=True):
            result.assign(np.array([row]), self.narrow_costs(pair, ends))
        return result

    def narrow_costs(self, widths: tuple[int, int], ends: BoundaryLayouts) -> CostArrays:
        """Return costs where fewer channels than a block are read or written, priced one by one."""
        if (widths, ends) not in self.narrow:
            graph, _ = self.lower(widths, ends)
            times_us = self.layouts.estimate_graph(graph, ends)
            latency_us = {p: np.array(us) for p, us in times_us.items()}
            costs = CostArrays(latency_us, np.array(graph.macs), np.array(graph.params))
            self.narrow[widths, ends] = costs
        return self.narrow[widths, ends]

    def polynomials(
        self, width_in: int, width_out: int, ends: BoundaryLayouts
    ) -> KernelPolynomials:
        """Return the polynomials of widths that are alike modulo the block, fitted once."""
        residues = width_in % BLOCK, width_out % BLOCK
        if (*residues, ends) not in self.forms:
            origin = ORIGIN[0] + residues[0], ORIGIN[1] + residues[1]
            form = fit_polynomials(lambda point: self.lower(point, ends), origin, (BLOCK, BLOCK))
            assert form is not None, "a 1x1 convolution is no quadratic polynomial"
            self.forms[*residues, ends] = form
        return self.forms[*residues, ends]

    def lower(self, point: tuple[int, ...], ends: BoundaryLayouts) -> LoweredPoint:
        """Return the graph of an adapter with these channels in and out, and its kernels."""
        shape = list(self.spec.shape)
        shape[self.axis] = point[0]
        entry = TensorSpec(tuple(shape), self.spec.dtype)
        nodes, weights = build_adapter("x", "x", entry, point[1], self.axis)
        graph = Graph("", (Value("x", entry),), tuple(weights), tuple(nodes), (nodes[-1].name,))
        return graph, self.layouts.kernels(graph, ends)
