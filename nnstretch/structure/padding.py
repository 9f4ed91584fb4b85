"""Maps that are padded by an operator of their own just before a window slides over them."""

from __future__ import annotations

from collections.abc import Mapping

from nnstretch.graph import Argument, Graph, Node, TensorSpec
from nnstretch.structure.cuts import PADS
from nnstretch.structure.macs import CONVOLUTIONS


def padded_as_same(graph: Graph) -> dict[str, Node]:
    """Return padding operators, by name, that say what TFLite's SAME says.

    Converters leave them to the convolution behind them.
    """
    readers, specs = graph.consumers(), graph.specs()
    padding_by_name = {}
    for node in graph.nodes:
        behind = readers.get(node.name, ())
        if (
            node.kind in PADS
            and len(behind) == 1
            and node.name not in graph.outputs
            and is_same_padding(node, behind[0], specs)
        ):
            padding_by_name[node.name] = node
    return padding_by_name


def is_same_padding(pad: Node, reader: Node, specs: Mapping[str, TensorSpec]) -> bool:
    """Return whether zeros go around a map as SAME puts them.

    No more than windows need, the odd one at the end.
    """
    if (
        reader.kind not in CONVOLUTIONS
        or reader.inputs[0] != pad.name
        or len(reader.output.shape) != 4
        or not pads_with_zeros(pad)
    ):
        return False
    amounts, shape = pad.args[1], specs[pad.inputs[0]].shape
    if not isinstance(amounts, tuple) or len(amounts) != 4 or set(as_pair(reader, 4, 0)) != {0}:
        return False
    strides, dilations, window = (
        as_pair(reader, 3, 1),
        as_pair(reader, 5, 1),
        specs[reader.inputs[1]].shape[2:],
    )
    for axis in range(2):
        before, after = amounts[2 - 2 * axis], amounts[3 - 2 * axis]
        out = -(-shape[2 + axis] // strides[axis])
        needed = max(
            0,
            (out - 1) * strides[axis] + (window[axis] - 1) * dilations[axis] + 1 - shape[2 + axis],
        )
        if (before, after) != (needed // 2, needed - needed // 2) or reader.output.shape[
            2 + axis
        ] != out:
            return False
    return True


def pads_with_zeros(pad: Node) -> bool:
    """Return whether a pad's mode and value stand for zeros."""
    arguments = pad.args[2:]
    return all(value in ("constant", None, 0, 0.0) for value in arguments)


def as_pair(node: Node, place: int, otherwise: int) -> tuple[int, ...]:
    """Return a number of a window for both axes; -1 for a word for padding."""
    argument: Argument = node.args[place] if place < len(node.args) else otherwise
    sides = tuple(
        side if isinstance(side, int) else -1
        for side in (argument if isinstance(argument, tuple) else (argument,))
    )
    return sides * 2 if len(sides) == 1 else sides
