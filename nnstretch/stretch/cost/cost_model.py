"""Predicted latency of kernels, graphs and lowered plans on one chip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nnstretch.errors import UnsupportedOp
from nnstretch.graph import Graph
from nnstretch.kernel import Kernel
from nnstretch.predictor import Estimate, Predictor, require_estimate, require_time
from nnstretch.soc import Soc, processor_of
from nnstretch.stretch.cost.kernel_variants import kernel_with_counts
from nnstretch.stretch.lowering.lower import LoweredBranch, LoweredNetwork, LoweredSegment
from nnstretch.structure.kernel_fusion import fuse_kernels
from nnstretch.structure.segment_cost import BranchDemand, Residency, residencies, segment_cost
from nnstretch.trial import SegmentCost, Trial

FALLBACKS = ("nearest",)
"""How a kernel that was never measured may be estimated where the user allows it."""


@dataclass
class CostModel:
    """Latency of graphs on one chip; equal kernels are estimated once, new ones all together.

    A processor is named by its price key: alone, or beside others that slow its kernels.
    """

    soc: Soc
    fallback: str | None = None
    """`nearest` estimates a kernel never measured as the nearest kind that was; None refuses it."""
    estimates: dict[tuple[object, ...], Estimate] = field(default_factory=dict)
    fallback_kind: dict[tuple[object, ...], str] = field(default_factory=dict)
    """Kind that a fallback estimated, by the key of `estimates`."""
    fallbacks: dict[str, str] = field(default_factory=dict)
    """Kind that a fallback estimated, by name of kernel."""
    predictors: dict[str, Predictor] = field(default_factory=dict)
    """By price key."""

    def predictor(self, processor: str) -> Predictor:
        """Return the predictor of a price key. Raises UnknownName where the chip has none."""
        if processor not in self.predictors:
            self.soc.processor(processor_of(processor))
            self.predictors[processor] = self.soc.predictor(processor)
        return self.predictors[processor]

    def fuse_kernels(self, graph: Graph, processor: str) -> tuple[Kernel, ...]:
        """Fuse the graph as the backend of this processor does."""
        return fuse_kernels(graph, self.soc.rules(processor))

    def estimate_kernel(self, kernel: Kernel, processor: str) -> Estimate:
        """Estimate a kernel on a processor, once.

        Raises UnsupportedOp where its kind was never measured and no fallback is allowed, BadInput
        where the predictor gives no time.
        """
        key = (processor, *kernel.key)
        if key not in self.estimates:
            estimate = self.estimate_new(kernel, processor, key)
            require_estimate(estimate, kernel, processor)
            self.estimates[key] = estimate
        if key in self.fallback_kind:
            self.fallbacks[kernel.name] = self.fallback_kind[key]
        return self.estimates[key]

    def estimate_new(self, kernel: Kernel, processor: str, key: tuple[object, ...]) -> Estimate:
        """Ask the predictor, then the fallback where one is allowed."""
        predictor = self.predictor(processor)
        try:
            return predictor.estimate(kernel)
        except UnsupportedOp:
            if self.fallback is None:
                raise
        known = nearest_kind(kernel)
        self.fallback_kind[key] = known.kind
        return predictor.estimate(known)

    def outside(self, kernel: Kernel, processor: str) -> str:
        """Return how a kernel lies outside of what was measured; empty if not, or if unknown."""
        outside = getattr(self.predictor(processor), "outside", None)
        if outside is None or (processor, *kernel.key) in self.fallback_kind:
            return ""
        return str(outside(kernel))

    def estimate_total(self, kernels: Sequence[Kernel], processor: str) -> Estimate:
        """Sum over kernels; errors of one predictor do not cancel, so they add up too."""
        self.prefetch(kernels, processor)
        estimates = [self.estimate_kernel(kernel, processor) for kernel in kernels]
        return Estimate(sum(e.latency_us for e in estimates), sum(e.error_us for e in estimates))

    def prefetch(self, kernels: Iterable[Kernel], processor: str) -> None:
        """Estimate new kernels in one call, where the predictor has one and refuses none."""
        estimate_many = getattr(self.predictor(processor), "estimate_many", None)
        if estimate_many is None:
            return
        fresh: dict[tuple[object, ...], Kernel] = {}
        for kernel in kernels:
            key = (processor, *kernel.key)
            if key not in self.estimates:
                fresh[key] = kernel
        if len(fresh) < 2:
            return
        try:
            table = estimate_many(tuple(fresh.values()))
        except UnsupportedOp:
            return
        columns = (table.latency_us, table.error_us, table.low_us, table.high_us)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for key, (latency_us, error_us, low_us, high_us) in zip(fresh, rows, strict=True):
            require_time(latency_us, fresh[key], processor)
            self.estimates[key] = Estimate(latency_us, error_us, (low_us, high_us))

    def estimate_grid(
        self, kernel: Kernel, counts: Mapping[str, Any], processor: str
    ) -> np.ndarray:
        """Estimate a kernel with counts that are arrays, over the shape they broadcast to, us."""
        table = replace(kernel, **counts)
        predictor: Any = self.predictor(processor)
        has_grid = hasattr(predictor, "estimate_grid")
        try:
            if has_grid:
                return grid_times_us(predictor, table, processor)
            return self.estimate_each(kernel, counts, processor)
        except UnsupportedOp:
            if self.fallback is None:
                raise
        self.fallbacks[kernel.name] = nearest_kind(kernel).kind
        if has_grid:
            return grid_times_us(predictor, nearest_kind(table), processor)
        return self.estimate_each(kernel, counts, processor)

    def estimate_each(
        self, kernel: Kernel, counts: Mapping[str, Any], processor: str
    ) -> np.ndarray:
        """Estimate different kernels of a grid one by one, for predictors without arrays, us."""
        arrays = np.broadcast_arrays(*(np.asarray(count) for count in counts.values()))
        rows = np.stack([array.ravel() for array in arrays], axis=1).round().astype(np.int64)
        distinct, row = np.unique(rows, axis=0, return_inverse=True)
        times_us = []
        for numbers in distinct.tolist():
            variant = kernel_with_counts(kernel, dict(zip(counts, numbers, strict=True)))
            times_us.append(self.estimate_kernel(variant, processor).latency_us)
        return np.array(times_us)[row.ravel()].reshape(arrays[0].shape)

    def estimate_graph(self, graph: Graph, processor: str) -> Estimate:
        """Estimate a graph on a processor, us."""
        return self.estimate_total(self.fuse_kernels(graph, processor), processor)

    def estimate_alone(self, graph: Graph, processor: str) -> SegmentCost:
        """Return the cost of a whole network on one processor, all its inputs and outputs copied.

        Raises UnsupportedOp for a kernel never measured.
        """
        specs = graph.specs()
        estimate = self.estimate_graph(graph, processor)
        demand = BranchDemand(
            processor,
            estimate.latency_us,
            estimate.error_us,
            sum(value.spec.elements for value in graph.inputs) * self.soc.element_bytes,
            sum(specs[name].elements for name in graph.outputs) * self.soc.element_bytes,
            graph.macs,
            graph.params,
        )
        return segment_cost(self.soc, [demand])

    def branch_demand(self, branch: LoweredBranch, team: Sequence[str] = ()) -> BranchDemand:
        """Return the time, bytes and MACs that a branch of a team asks of its processor."""
        price_key = self.soc.price_key(branch.branch.processor, team)
        estimate = self.estimate_graph(branch.graph, price_key)
        bytes_in = branch.graph.inputs[0].spec.elements * self.soc.element_bytes
        bytes_out = branch.output.elements * self.soc.element_bytes
        return BranchDemand(
            branch.branch.processor,
            estimate.latency_us,
            estimate.error_us,
            bytes_in,
            bytes_out,
            branch.graph.macs,
            branch.graph.params,
        )

    def segment_cost(
        self,
        lowered: LoweredSegment,
        stay: Residency,
        processors: Sequence[str],
        originals_us: dict[tuple[str, str], float],
    ) -> SegmentCost:
        """Return the terms of a segment's predicted latency.

        `originals_us` keeps the latency of original layers, by start and end.
        """
        ends = lowered.segment.start, lowered.segment.end
        if ends not in originals_us:
            times_us = [self.estimate_graph(lowered.original, p).latency_us for p in processors]
            originals_us[ends] = min(times_us)
        team = lowered.processors
        return segment_cost(
            self.soc,
            [self.branch_demand(branch, team) for branch in lowered.branches],
            stay,
            start=lowered.segment.start,
            end=lowered.segment.end,
            original_us=originals_us[ends],
            original_macs=lowered.original.macs,
        )


def grid_times_us(predictor: Any, table: Kernel, processor: str) -> np.ndarray:
    """Return a predictor's times of a kernel with arrays of counts. Raises BadInput for others."""
    times_us = np.asarray(predictor.estimate_grid(table))
    for extreme_us in (times_us.min(initial=0.0), times_us.max(initial=0.0)):
        require_time(extreme_us, table, processor)
    return times_us


def estimate_plan(
    stretched: LoweredNetwork,
    soc: Soc,
    cost_model: CostModel | None = None,
    processors: Sequence[str] = (),
    originals_us: dict[tuple[str, str], float] | None = None,
) -> Trial:
    """Estimate a lowered plan.

    The originals of its segments run on the fastest of `processors`, by default of the plan's own;
    `originals_us` carries their latencies, by start and end, to the next plan of the same network.
    Raises UnknownName for a processor the chip lacks, UnsupportedOp for a kernel never measured.
    """
    cost_model = cost_model or CostModel(soc)
    processors = processors or stretched.plan.processors
    originals_us = {} if originals_us is None else originals_us
    placements = [segment.processors for segment in stretched.segments]
    costs: list[SegmentCost] = []
    for segment, stay in zip(stretched.segments, residencies(placements), strict=True):
        costs.append(cost_model.segment_cost(segment, stay, processors, originals_us))
    plan, macs, params = stretched.plan, stretched.macs, stretched.params
    return Trial(plan, tuple(costs), macs, params, soc=soc.name)


def nearest_kind(kernel: Kernel) -> Kernel:
    """Return a kernel of as much work that is measured everywhere: a linear layer, else a sum."""
    plain = replace(kernel, epilogue=(), layout="", groups=1, kernel=1, stride=1)
    if np.any(kernel.macs):
        return replace(plain, kind="linear", op="linear", shapes_in=kernel.shapes_in[:1])
    shapes_in = (kernel.shape_out,) * 2 if kernel.shape_out else ()
    return replace(plain, kind="add", op="add", shapes_in=shapes_in)


def unmeasured_kinds(kernels: Iterable[Kernel], soc: Soc, processor: str) -> tuple[str, ...]:
    """Return kernels that are priced although none of their kind was measured, by name."""
    measured_kind = getattr(soc.predictor(processor), "measured_kind", None)
    if measured_kind is None:
        return ()
    return tuple(kernel.name for kernel in kernels if not measured_kind(kernel))


def uncovered_kernels(
    graph: Graph, soc: Soc, processors: Sequence[str], cost_model: CostModel | None = None
) -> tuple[Kernel, ...]:
    """Return kernels that some processor's predictor refuses, one of each name."""
    cost_model = cost_model or CostModel(soc)
    refused: dict[str, Kernel] = {}
    for processor in processors:
        for kernel in cost_model.fuse_kernels(graph, processor):
            try:
                cost_model.estimate_kernel(kernel, processor)
            except UnsupportedOp:
                refused.setdefault(kernel.name, kernel)
    return tuple(refused.values())
