"""A stretched network on a chip: every term of its predicted latency."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nnstretch.errors import UnsupportedOp
from nnstretch.graph import Graph
from nnstretch.protocols import Estimate, Kernel
from nnstretch.soc import Soc
from nnstretch.stretch.lower import LoweredBranch, LoweredSegment, Stretched
from nnstretch.structure.cost import BranchWork, Stay, segment_cost, stays
from nnstretch.structure.kernels import kernels
from nnstretch.trial import SegmentCost, Trial

FALLBACKS = ("nearest",)
"""How a kernel nobody measured may be priced where the user allows it."""


@dataclass
class Pricer:
    """Latency of graphs on one chip; equal kernels are estimated once, new ones all together."""

    soc: Soc
    fallback: str | None = None
    """`nearest` prices a kernel never measured as the nearest kind that was; None refuses it."""
    estimates: dict[tuple[object, ...], Estimate] = field(default_factory=dict)
    fallen: dict[tuple[object, ...], str] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)
    """Kernels that a fallback priced, and as what."""

    def kernels(self, graph: Graph, processor: str) -> tuple[Kernel, ...]:
        """As the backend of this processor fuses the graph."""
        return kernels(graph, self.soc.rules(processor))

    def kernel(self, kernel: Kernel, processor: str) -> Estimate:
        """Raise UnsupportedOp, naming the kernel, where its kind was never measured and no fallback is allowed."""
        key = (processor, *kernel.key)
        if key not in self.estimates:
            self.soc.processor(processor)
            self.estimates[key] = self.estimated(kernel, processor, key)
        if key in self.fallen:
            self.replaced[kernel.name] = self.fallen[key]
        return self.estimates[key]

    def estimated(self, kernel: Kernel, processor: str, key: tuple[object, ...]) -> Estimate:
        predictor = self.soc.predictors[processor]
        try:
            return predictor.estimate(kernel)
        except UnsupportedOp:
            if self.fallback is None:
                raise
        known = nearest(kernel)
        self.fallen[key] = known.kind
        return predictor.estimate(known)

    def price(self, found: Sequence[Kernel], processor: str) -> Estimate:
        """Sum over kernels; errors of one predictor do not cancel, so they add up, too."""
        self.learn(found, processor)
        estimates = [self.kernel(kernel, processor) for kernel in found]
        return Estimate(sum(e.latency_us for e in estimates), sum(e.error_us for e in estimates))

    def learn(self, found: Iterable[Kernel], processor: str) -> None:
        """Estimate what is new all at once, where the predictor can; what it refuses is left to `kernel`."""
        many = getattr(self.soc.predictors.get(processor), "estimate_many", None)
        fresh = {key: k for k in found if (key := (processor, *k.key)) not in self.estimates} if many else {}
        if not many or len(fresh) < 2:
            return
        try:
            numbers = many(tuple(fresh.values()))
        except UnsupportedOp:
            return
        rows = zip(numbers.latency_us.tolist(), numbers.error_us.tolist(), numbers.low_us.tolist(), numbers.high_us.tolist(), strict=True)
        for key, (latency_us, error_us, low_us, high_us) in zip(fresh, rows, strict=True):
            self.estimates[key] = Estimate(latency_us, error_us, (low_us, high_us))

    def grid(self, kernel: Kernel, counts: Mapping[str, Any], processor: str) -> np.ndarray:
        """Latencies in microseconds where some counts of a kernel are arrays that broadcast against each other."""
        many = replace(kernel, **counts)
        predictor: Any = self.soc.predictors[processor]
        try:
            if hasattr(predictor, "estimate_grid"):
                return np.asarray(predictor.estimate_grid(many))
            return self.one_by_one(kernel, counts, processor)
        except UnsupportedOp:
            if self.fallback is None:
                raise
        self.replaced[kernel.name] = nearest(kernel).kind
        return np.asarray(predictor.estimate_grid(nearest(many))) if hasattr(predictor, "estimate_grid") else self.one_by_one(
            kernel, counts, processor
        )

    def one_by_one(self, kernel: Kernel, counts: Mapping[str, Any], processor: str) -> np.ndarray:
        """For predictors that know nothing of arrays; equal kernels are estimated once."""
        arrays = np.broadcast_arrays(*(np.asarray(count) for count in counts.values()))
        rows = np.stack([array.ravel() for array in arrays], axis=1).round().astype(np.int64)
        different, at = np.unique(rows, axis=0, return_inverse=True)
        changes: list[dict[str, Any]] = [dict(zip(counts, map(int, row), strict=True)) for row in different]
        found = [replace(kernel, **change) for change in changes]
        return np.array([self.kernel(one, processor).latency_us for one in found])[at.ravel()].reshape(arrays[0].shape)

    def graph(self, graph: Graph, processor: str) -> Estimate:
        return self.price(self.kernels(graph, processor), processor)

    def work(self, branch: LoweredBranch) -> BranchWork:
        estimate = self.graph(branch.graph, branch.branch.processor)
        width = self.soc.element_bytes
        bytes_in, bytes_out = branch.graph.inputs[0].spec.elements * width, branch.output.elements * width
        return BranchWork(
            branch.branch.processor, estimate.latency_us, estimate.error_us, bytes_in, bytes_out, branch.graph.macs, branch.graph.params
        )

    def segment(self, lowered: LoweredSegment, stay: Stay, processors: Sequence[str]) -> SegmentCost:
        fastest_us = min(self.graph(lowered.original, p).latency_us for p in processors)
        return segment_cost(
            self.soc,
            [self.work(branch) for branch in lowered.branches],
            stay,
            start=lowered.segment.start,
            end=lowered.segment.end,
            original_us=fastest_us,
            original_macs=lowered.original.macs,
        )


def price(stretched: Stretched, soc: Soc, pricer: Pricer | None = None, processors: Sequence[str] = ()) -> Trial:
    """The trial of a plan; its originals run on the fastest of `processors`, by default of the plan's own.

    Raises UnknownName for a processor the chip lacks, UnsupportedOp for a kernel never measured.
    """
    pricer = pricer or Pricer(soc)
    processors = processors or stretched.plan.processors
    placements = [[branch.branch.processor for branch in segment.branches] for segment in stretched.segments]
    costs = tuple(pricer.segment(s, stay, processors) for s, stay in zip(stretched.segments, stays(placements), strict=True))
    return Trial(stretched.plan, costs, stretched.macs, stretched.params)


def nearest(kernel: Kernel) -> Kernel:
    """The kind measured everywhere that does the same amount of work: arithmetic as a linear layer, the rest as a sum."""
    plain = replace(kernel, epilogue=(), layout="", groups=1, kernel=1, stride=1)
    if np.any(kernel.macs):
        return replace(plain, kind="linear", op="linear", shapes_in=kernel.shapes_in[:1])
    return replace(plain, kind="add", op="add", shapes_in=(kernel.shape_out,) * 2 if kernel.shape_out else ())


def uncovered(graph: Graph, soc: Soc, processors: Sequence[str], pricer: Pricer | None = None) -> tuple[str, ...]:
    """Kernels that some processor's predictor refuses, by name."""
    pricer = pricer or Pricer(soc)
    names: dict[str, None] = {}
    for processor in processors:
        for kernel in pricer.kernels(graph, processor):
            try:
                pricer.kernel(kernel, processor)
            except UnsupportedOp:
                names[kernel.name] = None
    return tuple(names)
