"""Multiply-accumulates of one operator, counted from shapes alone.

Convolutions and linear layers count as pycls counts them (`complexity`, models/blocks.py): a
bias costs one per output element; everything else is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from nnstretch.graph import Argument, TensorSpec, ValueRef

CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d"})
TRANSPOSED = frozenset({"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"})
WEIGHTED = CONVOLUTIONS | TRANSPOSED | {"linear"}


def count_macs(
    kind: str, args: tuple[Argument, ...], output: TensorSpec, specs: Mapping[str, TensorSpec]
) -> int:
    """Return work of one call; `specs` holds the shape of everything it reads."""
    if kind not in WEIGHTED or not isinstance(args[1], ValueRef):
        return 0
    weight = specs[args[1].name].shape
    bias = output.elements if len(args) > 2 and isinstance(args[2], ValueRef) else 0
    if kind in TRANSPOSED:
        assert isinstance(args[0], ValueRef)
        return specs[args[0].name].elements * prod(weight[1:]) + bias
    return output.elements * prod(weight[1:]) + bias
