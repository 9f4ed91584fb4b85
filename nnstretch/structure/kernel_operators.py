"""Which operators cost nothing, and what kind of kernel the others open."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from nnstretch.graph import Node, TensorSpec, ValueRef
from nnstretch.kernel import ACTIVATIONS
from nnstretch.structure.arguments import conv_groups
from nnstretch.structure.macs import CONVOLUTIONS, TRANSPOSED

SHAPE_ONLY = frozenset({"sym_size", "size", "dim", "numel"})
"""They read a shape, not data, so they neither cost anything nor keep two nodes from fusing."""
_FREE_NAMES = """
    view _unsafe_view reshape flatten unflatten squeeze unsqueeze expand expand_as getitem
    dropout feature_dropout alpha_dropout contiguous alias detach identity lift_fresh_copy
    to _to_copy type_as view_as reshape_as clone
    ones zeros full arange empty scalar_tensor
"""
FREE = SHAPE_ONLY | frozenset(_FREE_NAMES.split())
_NAMES_OF_KIND = {
    "linear": "linear addmm",
    "pool": """
        max_pool1d max_pool2d max_pool2d_with_indices avg_pool1d avg_pool2d
        adaptive_max_pool2d adaptive_avg_pool2d adaptive_avg_pool1d
    """,
    "gap": "mean sum amax",
    "add": "add sub rsub",
    "mul": "mul div",
    "concat": "cat concat stack",
    "norm": "batch_norm layer_norm group_norm instance_norm rms_norm linalg_vector_norm",
    "matmul": """
        matmul linalg_matmul bmm mm mv inner baddbmm addbmm addmv einsum tensordot
        scaled_dot_product_attention
    """,
    "softmax": "softmax _softmax log_softmax",
    "reshape": """
        permute transpose t swapaxes movedim numpy_T chunk split split_with_sizes slice unbind
        select index_select index roll flip pad constant_pad_nd repeat tile unfold im2col
        pixel_shuffle pixel_unshuffle channel_shuffle upsample_nearest2d
    """,
}
CHANNELS_FIRST = frozenset(
    ["max_pool1d", "avg_pool1d", "adaptive_avg_pool1d", "batch_norm", "group_norm", "instance_norm"]
)
"""Operators whose channels are axis 1 also where three axes look like those of tokens."""
MOVING = frozenset({"view", "reshape", "_unsafe_view", "permute", "transpose"})
"""They move numbers or only rename dimensions, so the tensor behind them serves as well."""
KINDS = dict.fromkeys(ACTIVATIONS, "activation")
for _kind, _names in _NAMES_OF_KIND.items():
    KINDS.update(dict.fromkeys(_names.split(), _kind))
TRANSPOSED_KIND = "tconv"
CONV_KINDS = ("conv", "gconv", "dwconv", TRANSPOSED_KIND)


def is_free(node: Node) -> bool:
    """Return whether a node is free: a view, or Python arithmetic on shapes."""
    return node.kind in FREE or node.op.startswith(("py.", "sym_"))


def refs_once(node: Node) -> bool:
    """Return False for `x + x`, which reads one value through two arguments."""
    return sum(isinstance(item, ValueRef) for item in node.args) == len(node.inputs)


def kernel_kind(node: Node, specs: Mapping[str, TensorSpec]) -> str:
    """Return the kind of kernel that a node opens; its operator where no kind is known."""
    if node.kind in CONVOLUTIONS:
        groups = conv_groups(node)
        if groups == 1:
            return "conv"
        return "dwconv" if groups == specs[node.inputs[0]].shape[1] else "gconv"
    if node.kind in TRANSPOSED:
        return TRANSPOSED_KIND
    kind = KINDS.get(node.kind, node.op)
    if kind == "pool" and node.kind.startswith("adaptive") and prod(node.output.shape[2:]) == 1:
        return "gap"
    return kind
