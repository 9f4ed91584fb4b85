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
    alternatives: list[tuple[AlternativeEstimates, ...]] = []
    for segment, cost in zip(stretched.segments, trial.segments, strict=True):
        # An only branch takes its synchronisation with it; where several meet it is paid anyway.
        paid_us = cost.sync_us if len(cost.branches) > 1 else 0.0
        alternatives.append(segment_alternatives(segment, cost_model, paid_us))
    return replace(trial, alternatives=tuple(alternatives))


def segment_alternatives(
    lowered: LoweredSegment, cost_model: CostModel, paid_us: float
) -> tuple[AlternativeEstimates, ...]:
    """Return alternatives of each branch and, where there are several, of the merge behind them.

    `paid_us`: synchronisation that the segment pays wherever its branches run.
    """
    processors = frozenset(lowered.processors)
    rows: list[AlternativeEstimates] = []
    for branch in lowered.branches:
        rows.append(branch_alternatives(branch, processors, cost_model, paid_us))
    if len(rows) > 1:
        rows.append(merge_alternatives(lowered, cost_model))
    return tuple(rows)


def branch_alternatives(
    lowered: LoweredBranch, team: frozenset[str], cost_model: CostModel, paid_us: float
) -> AlternativeEstimates:
    """Estimate a branch of a team on other processors, as though it alone had moved.

    Data crosses from the host and back, the host waits for it longer than `paid_us` where that is
    less than its synchronisation there, and the others slow it down where they are.
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
        crossing_us = copies_us + max(0.0, processor.sync_us - paid_us)
        return Estimate(crossing_us + slowdown * isolated.latency_us, slowdown * isolated.error_us)

    return known_estimates(estimate_on, (name for name in soc.predictors if name != planned))


def merge_alternatives(lowered: LoweredSegment, cost_model: CostModel) -> AlternativeEstimates:
    """Estimate a merge on every processor.

    On a CPU it takes the host's time, elsewhere a concatenation kernel, copies, synchronisation.
    """
    soc = cost_model.soc
    elements = sum(branch.output.elements for branch in lowered.branches)
    size_bytes = elements * soc.element_bytes

    def estimate_on(name: str) -> Estimate:
        processor = soc.processor(name)
        if processor.kind == "cpu":
            return Estimate(soc.merge.cost_us(size_bytes), 0.0)
        concat = cost_model.estimate_total([concat_kernel(lowered, elements)], name)
        copy_in_us = processor.copy_in.cost_us(size_bytes)
        out_us = processor.copy_out.cost_us(size_bytes) + processor.sync_us
        return Estimate(copy_in_us + concat.latency_us + out_us, concat.error_us)

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
