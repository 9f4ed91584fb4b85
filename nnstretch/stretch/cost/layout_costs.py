"""Memory layouts of runtimes: what maps in blocks of channels (NCHWc) change in costs.

A runtime with blocked maps copies between layouts at the ends of what it runs blocked, and costs
depend on widths modulo the block. All of that is here; elsewhere nothing asks for layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nnstretch.graph import Graph
from nnstretch.kernel import FusionRules
from nnstretch.stretch.cost.cost_arrays import Array, CostArrays
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.cost.polynomials import KernelPolynomials, KernelsByRules
from nnstretch.structure.kernel_fusion import fuse_kernels
from nnstretch.structure.layout_conversion import BLOCKED, PLAIN

BLOCK = 16
"""Channels modulo which kernels of blocked maps look alike; below it, each width differs."""


@dataclass(frozen=True, slots=True)
class BoundaryLayouts:
    """Layouts of the tensors that a graph reads and writes."""

    blocked: tuple[bool, ...] = ()
    """Whether what is read is blocked, for every set of fusion rules; nowhere where empty."""
    leave: bool = False
    """Whether what is written stays in the layout it has."""

    def kernels(self, graph: Graph, rules: Sequence[FusionRules]) -> KernelsByRules:
        """Return the kernels of a graph under every set of rules."""
        flags = self.blocked or (False,) * len(rules)
        kernels = []
        for rule, flag in zip(rules, flags, strict=True):
            layout = BLOCKED if flag and rule.blocked else PLAIN
            kernels.append(fuse_kernels(graph, rule, layout, self.leave))
        return tuple(kernels)


PLAIN_BOUNDARY = BoundaryLayouts()


@dataclass(frozen=True)
class LayoutModel:
    """Kernel costs on the processors of one chip, whatever layouts their runtimes use."""

    cost_model: CostModel
    processors: tuple[str, ...]
    """Price keys: every processor alone, and beside those that slow its kernels."""

    @cached_property
    def rules(self) -> tuple[FusionRules, ...]:
        """Return the fusion rules of the processors, each once."""
        return tuple(dict.fromkeys(self.cost_model.soc.rules(p) for p in self.processors))

    @cached_property
    def rule_number(self) -> dict[str, int]:
        """Return the number of each processor's fusion rules."""
        return {p: self.rules.index(self.cost_model.soc.rules(p)) for p in self.processors}

    @cached_property
    def blocked(self) -> bool:
        """Return whether some runtime keeps maps in blocks of channels."""
        return any(rules.blocked for rules in self.rules)

    @cached_property
    def largest_block(self) -> int:
        """Return the channels of the largest block; 1 where all maps are plain."""
        return max([1, *(rules.blocked.block for rules in self.rules if rules.blocked)])

    def boundary(self, blocked: Sequence[bool] = (), leave: bool = False) -> BoundaryLayouts:
        """Return boundary layouts; the plain ones where no runtime has blocked maps."""
        if not self.blocked:
            return PLAIN_BOUNDARY
        pairs = zip(self.rules, blocked or (False,) * len(self.rules), strict=True)
        flags = tuple(flag and bool(rules.blocked) for rules, flag in pairs)
        return BoundaryLayouts(flags if any(flags) else (), leave)

    def entered(self, blocked: bool, leave: bool) -> BoundaryLayouts:
        """Return the boundary of what reads plain tensors, or blocks where a runtime has any."""
        return self.boundary((blocked,) * len(self.rules), leave)

    def behind_adapter(self, leave: bool) -> BoundaryLayouts:
        """Return the boundary of what reads an adapter's output, blocked wherever it can be."""
        return self.entered(True, leave)

    def kernels(self, graph: Graph, ends: BoundaryLayouts) -> KernelsByRules:
        """Return the kernels of a graph under every set of rules."""
        return ends.kernels(graph, self.rules)

    def pair_residues(self, width_in: Array, width_out: Array) -> Array:
        """Return a number that pairs of widths share whose kernels look alike."""
        if not self.blocked:
            return np.zeros_like(width_in)
        return width_in % BLOCK * BLOCK + width_out % BLOCK

    def residue_or_width(self, widths: Array) -> Array:
        """Return a number that widths share whose kernels look alike, narrow ones apart."""
        return np.where(widths < BLOCK, widths, BLOCK + widths % BLOCK)

    def estimate_graph(self, graph: Graph, ends: BoundaryLayouts) -> dict[str, float]:
        """Estimate a graph on every processor, us."""
        kernels = self.kernels(graph, ends)
        return {
            p: self.cost_model.estimate_total(kernels[self.rule_number[p]], p).latency_us
            for p in self.processors
        }

    def estimate_polynomials(
        self, form: KernelPolynomials, widths: Sequence[Array], shape: tuple[int, ...]
    ) -> CostArrays:
        """Estimate kernels at arrays of group widths, over the shape they broadcast to."""
        steps = form.steps(widths)
        latency_us: dict[str, Array] = {}
        for processor in self.processors:
            total: Array | float = 0.0
            for kernel, quadratics in form.kernels[self.rule_number[processor]]:
                counts = {name: quadratic.at(steps) for name, quadratic in quadratics.items()}
                total = total + self.cost_model.estimate_grid(kernel, counts, processor)
            latency_us[processor] = np.broadcast_to(total, shape)
        macs = np.broadcast_to(np.rint(form.macs.at(steps)), shape)
        return CostArrays(latency_us, macs, np.broadcast_to(np.rint(form.params.at(steps)), shape))
