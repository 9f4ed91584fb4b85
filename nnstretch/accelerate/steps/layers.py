"""C1: layers, the operators that one tile loop computes.

A layer is an anchor (a convolution, a product, or any other operator) and the element-wise
operators right behind it that nothing else reads in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.accelerate.chip_graph import IN_PLACE, ChipGraph
from nnstretch.accelerate.operator_work import is_matrix
from nnstretch.structure.slices.operator_sets import SOFTMAXES


def layers_of(chip: ChipGraph, operators: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return operators in execution order as layers."""
    layers: list[list[str]] = []
    for name in operators:
        if layers and joins(chip, layers[-1], name):
            layers[-1].append(name)
        else:
            layers.append([name])
    return tuple(tuple(layer) for layer in layers)


def joins(chip: ChipGraph, layer: Sequence[str], name: str) -> bool:
    """Return whether an operator is computed in the tile loop of the layer before it."""
    node = chip.nodes[name]
    last = layer[-1]
    if node.kind not in IN_PLACE or node.kind in SOFTMAXES or is_matrix(chip, name):
        return False
    read_once = chip.readers.get(last) == (name,) and last not in chip.outputs
    same_shape = chip.specs[last].shape == node.output.shape
    return read_once and same_shape and last in node.inputs
