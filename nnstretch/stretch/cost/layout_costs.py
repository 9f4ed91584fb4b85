"""How tensors cross cuts where runtimes keep maps in blocks of channels, and what it costs to lay
them out plainly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from nnstretch.graph import Graph
from nnstretch.stretch.cost.cost_arrays import BoundaryLayouts, boundary_layouts, layout_rules
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.cost.polynomials import Array
from nnstretch.structure.cuts import Cut
from nnstretch.structure.kernel_fusion import value_layouts
from nnstretch.structure.layout_conversion import BLOCKED, PLAIN, reorder_kernel


@dataclass
class LayoutCosts:
    """The cuts of one network on one chip."""

    graph: Graph
    cuts: tuple[Cut, ...]
    cost_model: CostModel
    processors: tuple[str, ...]
    left: dict[int, dict[str, Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rules = layout_rules(self.cost_model, self.processors)

    @cached_property
    def layouts(self) -> list[dict[str, str]]:
        """Return the layouts in the original, under every set of rules."""
        return [value_layouts(self.graph, r) for r in self.rules]

    def ends(self, blocked: Sequence[bool] = (), leave: bool = True) -> BoundaryLayouts:
        """Return the boundary layouts of a unit behind a tensor in blocks for some of the sets of
        rules.
        """
        return boundary_layouts(self.rules, blocked, leave)

    def blocked(self, k: int) -> tuple[bool, ...]:
        """Return whether the tensor at a cut is in blocks of channels inside a branch, as it is in
        the original: for each set of rules.
        """
        return tuple(layout.get(self.cuts[k].value) == BLOCKED for layout in self.layouts)

    def conversion_us(self, j: int, widths: Array) -> dict[str, Array]:
        """Return what it takes to hand an output of these widths over as a plain tensor, on each
        processor.
        """
        if j not in self.left:
            times_us = {p: np.zeros(len(widths)) for p in self.processors}
            for r, blocked in zip(self.rules, self.blocked(j), strict=True):
                for p in self.processors:
                    if blocked and self.cost_model.soc.rules(p) == r:
                        shape = self.graph.specs()[self.cuts[j].value].shape
                        copies = [
                            reorder_kernel(self.cuts[j].value, (shape[0], w, *shape[2:]), PLAIN)
                            for w in widths.tolist()
                        ]
                        self.cost_model.prefetch(copies, p)
                        times_us[p] = np.array(
                            [self.cost_model.estimate_kernel(copy, p).latency_us for copy in copies]
                        )
            self.left[j] = times_us
        return self.left[j]
