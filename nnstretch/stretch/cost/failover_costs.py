"""Latency of every sub-graph of a plan on the chip's other processors, for failover."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.predictor import Estimate
from nnstretch.soc import Soc
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.lowering.lower import LoweredBranch, LoweredNetwork, LoweredSegment
from nnstretch.trial import AlternativeEstimates, Trial


def with_alternatives(trial: Trial, stretched: LoweredNetwork, soc: Soc) -> Trial:
    """Return the trial of a lowered plan with `Trial.alternatives` filled in."""
    cost_model = CostModel(soc)
    alternatives = [segment_alternatives(segment, cost_model) for segment in stretched.segments]
    return replace(trial, alternatives=tuple(alternatives))


def segment_alternatives(
    lowered: LoweredSegment, cost_model: CostModel
) -> tuple[AlternativeEstimates, ...]:
    """Return alternatives of each branch and, where there are several, of the merge behind them."""
    processors = frozenset(lowered.processors)
    rows = [branch_alternatives(branch, processors, cost_model) for branch in lowered.branches]
    if len(rows) > 1:
        rows.append(merge_alternatives(lowered, cost_model))
    return tuple(rows)


def branch_alternatives(
    lowered: LoweredBranch, team: frozenset[str], cost_model: CostModel
) -> AlternativeEstimates:
    """Estimate a branch of a team on other processors, as though it alone had moved.

    Data crosses from the host and back, and the others slow it down where they are.
    """
    soc = cost_model.soc
    planned = lowered.branch.processor
    bytes_in = lowered.graph.inputs[0].spec.elements * soc.element_bytes
    bytes_out = lowered.output.elements * soc.element_bytes

    def estimate_on(name: str) -> Estimate:
        concurrent = (team - {planned}) | {name}
        processor = soc.processor_among(name, concurrent)
        isolated = cost_model.estimate_graph(lowered.graph, soc.price_key(name, concurrent))
        slowdown = soc.contention_factor(concurrent) if len(concurrent) > 1 else 1.0
        copies_us = processor.copy_in.cost_us(bytes_in) + processor.copy_out.cost_us(bytes_out)
        return Estimate(copies_us + slowdown * isolated.latency_us, slowdown * isolated.error_us)

    return known_estimates(estimate_on, (name for name in soc.predictors if name != planned))


def merge_alternatives(lowered: LoweredSegment, cost_model: CostModel) -> AlternativeEstimates:
    """Estimate a merge: the host's time on a CPU, else a concatenation kernel and copies."""
    soc = cost_model.soc
    elements = sum(branch.output.elements for branch in lowered.branches)
    size_bytes = elements * soc.element_bytes

    def estimate_on(name: str) -> Estimate:
        processor = soc.processor(name)
        if processor.kind == "cpu":
            return Estimate(soc.merge.cost_us(size_bytes), 0.0)
        concat = cost_model.estimate_total([concat_kernel(lowered, elements)], name)
        copy_in_us = processor.copy_in.cost_us(size_bytes)
        copy_out_us = processor.copy_out.cost_us(size_bytes)
        return Estimate(copy_in_us + concat.latency_us + copy_out_us, concat.error_us)

    return known_estimates(estimate_on, soc.predictors)


def concat_kernel(lowered: LoweredSegment, elements: int) -> Kernel:
    """Return a meeting point as a kernel of an accelerator."""
    shapes = tuple(branch.output.shape for branch in lowered.branches)
    channels = sum(shape[lowered.axis] for shape in shapes)
    batch = shapes[0][0]
    pixels = max(1, elements // max(1, batch * channels))
    shape_out = list(shapes[0])
    shape_out[lowered.axis] = channels
    return Kernel(
        name=f"merge of {lowered.segment}",
        kind="concat",
        cin=channels,
        cout=channels,
        hw_in=pixels,
        hw_out=pixels,
        kernel=1,
        stride=1,
        groups=1,
        batch=batch,
        macs=0,
        read_elements=elements,
        write_elements=elements,
        weight_elements=0,
        op="cat",
        shapes_in=shapes,
        shape_out=tuple(shape_out),
    )


def known_estimates(
    estimate_on: Callable[[str], Estimate], names: Iterable[str]
) -> AlternativeEstimates:
    """Return estimates by processor, without those where an operator was never measured."""
    estimates: dict[str, Estimate] = {}
    for name in names:
        try:
            estimates[name] = estimate_on(name)
        except UnsupportedOp:
            continue
    return estimates
