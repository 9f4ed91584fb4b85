"""Rule of every kind of operator: the box of an output -> boxes of what the operator reads.

Weights are included. A window of a convolution or pooling reads a halo; an operator that mixes a
dimension (softmax, norm, mean) reads it whole.
"""

from __future__ import annotations

from collections.abc import Callable

from nnstretch.chip.boxes import Box
from nnstretch.errors import UnsupportedOp
from nnstretch.graph import Node
from nnstretch.structure.macs import CONVOLUTIONS
from nnstretch.structure.slices.mixing import (
    batch_norm_boxes,
    embedding_boxes,
    gated_boxes,
    layer_norm_boxes,
    linear_boxes,
    matmul_boxes,
    mixed_axes_boxes,
    reduction_boxes,
    sample_norm_boxes,
    samples_boxes,
)
from nnstretch.structure.slices.operator_sets import (
    ELEMENTWISE,
    POOLS,
    REDUCTIONS,
    RESHAPES,
    SOFTMAXES,
    TRANSPOSES,
    Reads,
    Specs,
)
from nnstretch.structure.slices.views import (
    cat_boxes,
    elementwise_boxes,
    expand_boxes,
    pad_boxes,
    reshape_boxes,
    select_boxes,
    slice_boxes,
    transpose_boxes,
)
from nnstretch.structure.slices.windows import adaptive_pool_boxes, convolution_boxes, pool_boxes

Rule = Callable[[Node, Box, Specs], Reads]
RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, elementwise_boxes),
    **dict.fromkeys(CONVOLUTIONS, convolution_boxes),
    **dict.fromkeys(POOLS, pool_boxes),
    **dict.fromkeys(("adaptive_avg_pool2d", "adaptive_avg_pool1d"), adaptive_pool_boxes),
    "linear": linear_boxes,
    **dict.fromkeys(("matmul", "bmm", "mm", "addmm", "baddbmm"), matmul_boxes),
    "batch_norm": batch_norm_boxes,
    **dict.fromkeys(("layer_norm", "rms_norm"), layer_norm_boxes),
    **dict.fromkeys(("group_norm", "instance_norm"), sample_norm_boxes),
    **dict.fromkeys(SOFTMAXES, mixed_axes_boxes),
    **dict.fromkeys(REDUCTIONS, reduction_boxes),
    **dict.fromkeys(("cat", "concat"), cat_boxes),
    **dict.fromkeys(RESHAPES, reshape_boxes),
    **dict.fromkeys(TRANSPOSES, transpose_boxes),
    "slice": slice_boxes,
    "select": select_boxes,
    **dict.fromkeys(("expand", "expand_as"), expand_boxes),
    "constant_pad_nd": pad_boxes,
    "embedding": embedding_boxes,
    "glu": gated_boxes,
    **dict.fromkeys(("upsample_nearest2d", "pixel_shuffle", "channel_shuffle"), samples_boxes),
}


def input_boxes(node: Node, box: Box, specs: Specs) -> Reads:
    """Return the box of each value and weight that a part of a node's output needs.

    Raises UnsupportedOp for an operator without a rule.
    """
    rule = RULES.get(node.kind)
    if rule is None:
        raise UnsupportedOp(
            f"no rule of slices for {node.op}, node {node.name}, its output cannot be computed in"
            " parts"
        )
    return rule(node, box, specs)
