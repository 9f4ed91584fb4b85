"""A stretched network on a chip: every term of its predicted latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nnstretch.errors import UnsupportedOp
from nnstretch.graph import Graph
from nnstretch.protocols import Estimate, Kernel
from nnstretch.soc import Soc
from nnstretch.stretch.lower import LoweredBranch, LoweredSegment, Stretched
from nnstretch.structure.cost import BranchWork, Stay, segment_cost, stays
from nnstretch.structure.kernels import kernels
from nnstretch.trial import SegmentCost, Trial


@dataclass
class Pricer:
    """Latency of graphs on one chip; equal kernels are estimated once."""

    soc: Soc
    estimates: dict[tuple[object, ...], Estimate] = field(default_factory=dict)

    def kernel(self, kernel: Kernel, processor: str) -> Estimate:
        """Raise UnsupportedOp, naming the kernel, where its kind was never measured."""
        key = (processor, *kernel.key)
        if key not in self.estimates:
            self.soc.processor(processor)
            self.estimates[key] = self.soc.predictors[processor].estimate(kernel)
        return self.estimates[key]

    def graph(self, graph: Graph, processor: str) -> Estimate:
        """Sum over its kernels; errors of one predictor do not cancel, so they add up, too."""
        found = [self.kernel(kernel, processor) for kernel in kernels(graph)]
        return Estimate(sum(e.latency_us for e in found), sum(e.error_us for e in found))

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


def price(stretched: Stretched, soc: Soc, pricer: Pricer | None = None) -> Trial:
    """The trial of a plan. Raises UnknownName for a processor the chip lacks, UnsupportedOp for a kernel never measured."""
    pricer = pricer or Pricer(soc)
    processors = stretched.plan.processors
    placements = [[branch.branch.processor for branch in segment.branches] for segment in stretched.segments]
    costs = tuple(pricer.segment(s, stay, processors) for s, stay in zip(stretched.segments, stays(placements), strict=True))
    return Trial(stretched.plan, costs, stretched.macs, stretched.params)


def uncovered(graph: Graph, soc: Soc, processors: Sequence[str], pricer: Pricer | None = None) -> tuple[str, ...]:
    """Kernels that some processor's predictor refuses, by name."""
    pricer = pricer or Pricer(soc)
    names: list[str] = []
    for kernel in kernels(graph):
        try:
            for processor in processors:
                pricer.kernel(kernel, processor)
        except UnsupportedOp:
            names.append(kernel.name)
    return tuple(names)
