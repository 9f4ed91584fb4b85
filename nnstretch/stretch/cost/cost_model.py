"""A stretched network on a chip: every term of its predicted latency."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nnstretch.errors import UnsupportedOp
from nnstretch.graph import Graph
from nnstretch.kernel import Kernel
from nnstretch.predictor import Estimate
from nnstretch.soc import Soc
from nnstretch.stretch.lowering.lower import LoweredBranch, LoweredNetwork, LoweredSegment
from nnstretch.structure.kernel_fusion import fuse_kernels
from nnstretch.structure.segment_cost import BranchDemand, Residency, residencies, segment_cost
from nnstretch.trial import SegmentCost, Trial

FALLBACKS = ("nearest",)
"""How a kernel nobody measured may be priced where the user allows it."""


@dataclass
class CostModel:
    """Latency of graphs on one chip; equal kernels are estimated once, new ones all together."""

    soc: Soc
    fallback: str | None = None
    """`nearest` prices a kernel never measured as the nearest kind that was; None refuses it."""
    estimates: dict[tuple[object, ...], Estimate] = field(default_factory=dict)
    fallback_kind: dict[tuple[object, ...], str] = field(default_factory=dict)
    fallbacks: dict[str, str] = field(default_factory=dict)
    """Kernels that a fallback priced, and as what."""

    def fuse_kernels(self, graph: Graph, processor: str) -> tuple[Kernel, ...]:
        """Fuse the graph as the backend of this processor does."""
        return fuse_kernels(graph, self.soc.rules(processor))

    def estimate_kernel(self, kernel: Kernel, processor: str) -> Estimate:
        """Raise UnsupportedOp, naming the kernel, where its kind was never measured and no fallback
        is allowed.
        """
        key = (processor, *kernel.key)
        if key not in self.estimates:
            self.soc.processor(processor)
            self.estimates[key] = self.estimate_kernels(kernel, processor, key)
        if key in self.fallback_kind:
            self.fallbacks[kernel.name] = self.fallback_kind[key]
        return self.estimates[key]

    def estimate_kernels(self, kernel: Kernel, processor: str, key: tuple[object, ...]) -> Estimate:
        """Estimate a table of kernels on a processor; with a key, once."""
        predictor = self.soc.predictors[processor]
        try:
            return predictor.estimate(kernel)
        except UnsupportedOp:
            if self.fallback is None:
                raise
        known = nearest_kind(kernel)
        self.fallback_kind[key] = known.kind
        return predictor.estimate(known)

    def estimate_total(self, kernels: Sequence[Kernel], processor: str) -> Estimate:
        """Sum over kernels; errors of one predictor do not cancel, so they add up, too."""
        self.prefetch(kernels, processor)
        estimates = [self.estimate_kernel(kernel, processor) for kernel in kernels]
        return Estimate(sum(e.latency_us for e in estimates), sum(e.error_us for e in estimates))

    def prefetch(self, kernels: Iterable[Kernel], processor: str) -> None:
        """Estimate what is new all at once, where the predictor can.

        What it refuses is left to `kernel`.
        """
        many = getattr(self.soc.predictors.get(processor), "estimate_many", None)
        fresh = (
            {key: k for k in kernels if (key := (processor, *k.key)) not in self.estimates}
            if many
            else {}
        )
        if not many or len(fresh) < 2:
            return
        try:
            numbers = many(tuple(fresh.values()))
        except UnsupportedOp:
            return
        rows = zip(
            numbers.latency_us.tolist(),
            numbers.error_us.tolist(),
            numbers.low_us.tolist(),
            numbers.high_us.tolist(),
            strict=True,
        )
        for key, (latency_us, error_us, low_us, high_us) in zip(fresh, rows, strict=True):
            self.estimates[key] = Estimate(latency_us, error_us, (low_us, high_us))

    def estimate_grid(
        self, kernel: Kernel, counts: Mapping[str, Any], processor: str
    ) -> np.ndarray:
        """Estimate a kernel of which some counts are arrays that broadcast against each other,
        us.
        """
        many = replace(kernel, **counts)
        predictor: Any = self.soc.predictors[processor]
        try:
            if hasattr(predictor, "estimate_grid"):
                return np.asarray(predictor.estimate_grid(many))
            return self.estimate_each(kernel, counts, processor)
        except UnsupportedOp:
            if self.fallback is None:
                raise
        self.fallbacks[kernel.name] = nearest_kind(kernel).kind
        return (
            np.asarray(predictor.estimate_grid(nearest_kind(many)))
            if hasattr(predictor, "estimate_grid")
            else self.estimate_each(kernel, counts, processor)
        )

    def estimate_each(
        self, kernel: Kernel, counts: Mapping[str, Any], processor: str
    ) -> np.ndarray:
        """Estimate for predictors that know nothing of arrays; equal kernels are estimated once."""
        arrays = np.broadcast_arrays(*(np.asarray(count) for count in counts.values()))
        rows = np.stack([array.ravel() for array in arrays], axis=1).round().astype(np.int64)
        different, at = np.unique(rows, axis=0, return_inverse=True)
        changes: list[dict[str, Any]] = [
            dict(zip(counts, map(int, row), strict=True)) for row in different
        ]
        variants = [replace(kernel, **change) for change in changes]
        return np.array(
            [self.estimate_kernel(variant, processor).latency_us for variant in variants]
        )[at.ravel()].reshape(arrays[0].shape)

    def estimate_graph(self, graph: Graph, processor: str) -> Estimate:
        """Estimate a graph on a processor, us."""
        return self.estimate_total(self.fuse_kernels(graph, processor), processor)

    def branch_demand(self, branch: LoweredBranch) -> BranchDemand:
        """Return what a branch asks of its processor: time, bytes in and out, MACs."""
        estimate = self.estimate_graph(branch.graph, branch.branch.processor)
        width = self.soc.element_bytes
        bytes_in, bytes_out = (
            branch.graph.inputs[0].spec.elements * width,
            branch.output.elements * width,
        )
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
        """Return the predicted latency of a lowered segment with its terms.

        `originals_us` remembers the original layers by start and end.
        """
        ends = lowered.segment.start, lowered.segment.end
        if ends not in originals_us:
            originals_us[ends] = min(
                self.estimate_graph(lowered.original, p).latency_us for p in processors
            )
        return segment_cost(
            self.soc,
            [self.branch_demand(branch) for branch in lowered.branches],
            stay,
            start=lowered.segment.start,
            end=lowered.segment.end,
            original_us=originals_us[ends],
            original_macs=lowered.original.macs,
        )


def estimate_plan(
    stretched: LoweredNetwork,
    soc: Soc,
    cost_model: CostModel | None = None,
    processors: Sequence[str] = (),
    originals_us: dict[tuple[str, str], float] | None = None,
) -> Trial:
    """Estimate a plan; its originals run on the fastest of `processors`, by default of the plan's
    own.

    `originals_us` carries the latencies of original segments, by start and end, from one plan of
    the same network and processors to the next.

    Raises UnknownName for a processor the chip lacks, UnsupportedOp for a kernel never measured.
    """
    cost_model = cost_model or CostModel(soc)
    processors = processors or stretched.plan.processors
    placements = [
        [branch.branch.processor for branch in segment.branches] for segment in stretched.segments
    ]
    originals_us = {} if originals_us is None else originals_us
    costs = tuple(
        cost_model.segment_cost(s, stay, processors, originals_us)
        for s, stay in zip(stretched.segments, residencies(placements), strict=True)
    )
    return Trial(stretched.plan, costs, stretched.macs, stretched.params)


def nearest_kind(kernel: Kernel) -> Kernel:
    """Return the kind measured everywhere that does the same amount of work.

    Arithmetic as a linear layer, the rest as a sum.
    """
    plain = replace(kernel, epilogue=(), layout="", groups=1, kernel=1, stride=1)
    if np.any(kernel.macs):
        return replace(plain, kind="linear", op="linear", shapes_in=kernel.shapes_in[:1])
    return replace(
        plain, kind="add", op="add", shapes_in=(kernel.shape_out,) * 2 if kernel.shape_out else ()
    )


def uncovered_kernels(
    graph: Graph, soc: Soc, processors: Sequence[str], cost_model: CostModel | None = None
) -> tuple[str, ...]:
    """Return kernels that some processor's predictor refuses, by name."""
    cost_model = cost_model or CostModel(soc)
    names: dict[str, None] = {}
    for processor in processors:
        for kernel in cost_model.fuse_kernels(graph, processor):
            try:
                cost_model.estimate_kernel(kernel, processor)
            except UnsupportedOp:
                names[kernel.name] = None
    return tuple(names)
