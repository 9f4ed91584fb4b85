"""What every sub-graph of a plan would take on the chip's other processors.

Where its work goes when its own one fails.
"""

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
    """Return the trial of `stretched`, with `Trial.elsewhere` filled in."""
    cost_model = CostModel(soc)
    return replace(
        trial,
        alternatives=tuple(
            segment_alternatives(segment, cost_model) for segment in stretched.segments
        ),
    )


def segment_alternatives(
    lowered: LoweredSegment, cost_model: CostModel
) -> tuple[AlternativeEstimates, ...]:
    """Return the estimates of each branch elsewhere, and behind them those of the merge."""
    used = [branch.branch.processor for branch in lowered.branches]
    rows = [
        branch_alternatives(branch, frozenset(used) - {branch.branch.processor}, cost_model)
        for branch in lowered.branches
    ]
    return (*rows, merge_alternatives(lowered, cost_model)) if len(rows) > 1 else tuple(rows)


def branch_alternatives(
    lowered: LoweredBranch, beside: frozenset[str], cost_model: CostModel
) -> AlternativeEstimates:
    """Return estimates of a branch on other processors, as though it alone had moved.

    Data crosses from the host and back, and the others slow it down where they are.
    """
    soc, width = cost_model.soc, cost_model.soc.element_bytes
    bytes_in, bytes_out = (
        lowered.graph.inputs[0].spec.elements * width,
        lowered.output.elements * width,
    )

    def on(name: str) -> Estimate:
        processor, alone = soc.processor(name), cost_model.estimate_graph(lowered.graph, name)
        together = beside | {name}
        slowdown = soc.contention_factor(together) if len(together) > 1 else 1.0
        copies_us = processor.copy_in.cost_us(bytes_in) + processor.copy_out.cost_us(bytes_out)
        return Estimate(copies_us + slowdown * alone.latency_us, slowdown * alone.error_us)

    return known_estimates(
        on, (name for name in soc.predictors if name != lowered.branch.processor)
    )


def merge_alternatives(lowered: LoweredSegment, cost_model: CostModel) -> AlternativeEstimates:
    """Return estimates of a merge.

    The host's time on a CPU, else a concatenation kernel and copies.
    """
    soc = cost_model.soc
    outputs = [branch.output for branch in lowered.branches]
    elements = sum(output.elements for output in outputs)
    size_bytes = elements * soc.element_bytes

    def on(name: str) -> Estimate:
        processor = soc.processor(name)
        if processor.kind == "cpu":
            return Estimate(soc.merge.cost_us(size_bytes), 0.0)
        concat_us = cost_model.estimate_total([concat_kernel(lowered, elements)], name)
        return Estimate(
            processor.copy_in.cost_us(size_bytes)
            + concat_us.latency_us
            + processor.copy_out.cost_us(size_bytes),
            concat_us.error_us,
        )

    return known_estimates(on, soc.predictors)


def concat_kernel(lowered: LoweredSegment, elements: int) -> Kernel:
    """Return a meeting point as a kernel of an accelerator."""
    shapes = tuple(branch.output.shape for branch in lowered.branches)
    channels = sum(shape[lowered.axis] for shape in shapes)
    batch = shapes[0][0]
    pixels = max(1, elements // max(1, batch * channels))
    shape_out = tuple(
        channels if axis == lowered.axis else size for axis, size in enumerate(shapes[0])
    )
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
        shape_out=shape_out,
    )


def known_estimates(on: Callable[[str], Estimate], names: Iterable[str]) -> AlternativeEstimates:
    """Return estimates of those processors that have one.

    An operator nobody measured there leaves it out.
    """
    estimates: dict[str, Estimate] = {}
    for name in names:
        try:
            estimates[name] = on(name)
        except UnsupportedOp:
            continue
    return estimates
