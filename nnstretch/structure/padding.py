"""Maps that are padded by an operator of their own just before a window slides over them."""

from __future__ import annotations

from collections.abc import Mapping

from nnstretch.graph import Graph, Node, TensorSpec
from nnstretch.structure.arguments import argument
from nnstretch.structure.macs import CONVOLUTIONS

PADS = frozenset({"pad", "constant_pad_nd"})


def padded_as_same(graph: Graph) -> dict[str, Node]:
    """Return padding operators, by name, that do what TFLite's SAME does.

    Converters leave them to the convolution behind them.
    """
    readers = graph.consumers()
    specs = graph.specs()
    padding_by_name: dict[str, Node] = {}
    for node in graph.nodes:
        behind = readers.get(node.name, ())
        if node.kind not in PADS or len(behind) != 1 or node.name in graph.outputs:
            continue
        if is_same_padding(node, behind[0], specs):
            padding_by_name[node.name] = node
    return padding_by_name


def is_same_padding(pad: Node, reader: Node, specs: Mapping[str, TensorSpec]) -> bool:
    """Return whether zeros go around a map as SAME puts them: few, the odd one last."""
    if reader.kind not in CONVOLUTIONS or reader.inputs[0] != pad.name:
        return False
    if len(reader.output.shape) != 4 or not pads_with_zeros(pad):
        return False
    amounts = pad.args[1]
    if not isinstance(amounts, tuple) or len(amounts) != 4 or set(as_pair(reader, 4, 0)) != {0}:
        return False
    sizes = specs[pad.inputs[0]].shape[2:]
    windows = specs[reader.inputs[1]].shape[2:]
    strides = as_pair(reader, 3, 1)
    dilations = as_pair(reader, 5, 1)
    for axis in range(2):
        out = -(-sizes[axis] // strides[axis])
        extent = (out - 1) * strides[axis] + (windows[axis] - 1) * dilations[axis] + 1
        needed = max(0, extent - sizes[axis])
        before = needed // 2
        if amounts[2 - 2 * axis : 4 - 2 * axis] != (before, needed - before):
            return False
        if reader.output.shape[2 + axis] != out:
            return False
    return True


def pads_with_zeros(pad: Node) -> bool:
    """Return whether a pad's mode and value stand for zeros."""
    return all(value in ("constant", None, 0, 0.0) for value in pad.args[2:])


def as_pair(node: Node, position: int, default: int) -> tuple[int, ...]:
    """Return a number of a window for both axes; -1 for a word for padding."""
    value = argument(node, position, default)
    items = value if isinstance(value, tuple) else (value,)
    numbers = tuple(item if isinstance(item, int) else -1 for item in items)
    return numbers * 2 if len(numbers) == 1 else numbers
