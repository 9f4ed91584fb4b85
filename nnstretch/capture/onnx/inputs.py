"""What an ONNX file reads from outside, with every size that it leaves open closed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import onnx

from nnstretch.capture.onnx.ops.elementwise import ONNX_TYPES
from nnstretch.errors import BadInput, CannotCapture, UnsupportedOp
from nnstretch.graph import InputShape

InputSources = Sequence[tuple[onnx.ValueInfoProto, tuple[int, ...]]]
"""Inputs and their shapes; the batch is the first one's."""
OpenShape = list[int | str]
"""Sizes of an input; those that are open by the file's name for them, `?` where it has none."""
EXAMPLE_SIDE, EXAMPLE_LENGTH = 224, 128
"""Sizes of a map and of anything else that a message suggests."""


def read_sources(model: onnx.ModelProto, path: Path, wanted: Sequence[InputShape]) -> InputSources:
    """Return what the network reads and its shapes; an open batch is 1 where nothing is wanted.

    Raises CannotCapture where it reads nothing, BadInput where sizes stay open or do not fit.
    """
    values = external_inputs(model)
    if not values:
        raise CannotCapture(f"cannot capture {path}, it reads no input")
    names = [value.name for value in values]
    shapes = {name: shape.shape for name, shape in match_inputs(wanted, names, str(path)).items()}
    open_shapes = [declared_shape(value, path, shapes.get(value.name)) for value in values]
    closed = []
    for value, sizes in zip(values, open_shapes, strict=True):
        closed.append(close_sizes(sizes, value.name, path, shapes.get(value.name)))
    if any(isinstance(size, str) for size in chain.from_iterable(closed)):
        raise open_sizes_error(path, names, open_shapes, closed)
    return [(value, tuple(map(int, sizes))) for value, sizes in zip(values, closed, strict=True)]


def external_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return what the network reads from outside."""
    stored = {tensor.name for tensor in model.graph.initializer}
    read = {value.name for value in model.graph.output}
    read.update(chain.from_iterable(node.input for node in model.graph.node))
    return [value for value in model.graph.input if value.name not in stored and value.name in read]


def match_inputs(
    wanted: Sequence[InputShape], names: Sequence[str], network: str
) -> dict[str, InputShape]:
    """Return what is wanted of each input, matched by name, else by position. Raises BadInput."""
    matched: dict[str, InputShape] = {}
    for position, shape in enumerate(wanted):
        if shape.name and shape.name not in names:
            raise BadInput(
                f"no input {shape.name!r:.80}, {network}, its inputs are {', '.join(names)}"
            )
        if position >= len(names):
            raise BadInput(
                f"{len(wanted)} input shapes, {network}, its inputs are {', '.join(names)}"
            )
        name = shape.name or names[position]
        if name in matched:
            raise BadInput(f"input {name} is given twice, {network}, by position and by name")
        matched[name] = shape
    return matched


def declared_shape(
    value: onnx.ValueInfoProto, path: Path, wanted: tuple[int, ...] | None
) -> OpenShape:
    """Return an input's sizes as the file says them.

    Raises UnsupportedOp for an element type, BadInput where not even a rank is said.
    """
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or tensor.elem_type not in ONNX_TYPES:
        raise UnsupportedOp(
            f"unsupported input {value.name} of {path}, element type {tensor.elem_type}"
        )
    if not tensor.HasField("shape"):
        if wanted is None:
            raise BadInput(
                f"no shape of input {value.name}, {path}, the file does not say it, say it:"
                f" --input '{value.name}=1,3,{EXAMPLE_SIDE},{EXAMPLE_SIDE}'"
            )
        return list(wanted)
    sizes: OpenShape = []
    for dim in tensor.shape.dim:
        sizes.append(dim.dim_value if dim.dim_value > 0 else dim.dim_param or "?")
    return sizes


def close_sizes(
    sizes: OpenShape, name: str, path: Path, wanted: tuple[int, ...] | None
) -> OpenShape:
    """Close open sizes by the wanted shape, an open batch by 1. Raises BadInput when ranks differ.

    Sizes that the file fixes stay: another wanted one is a matter of capturing again.
    """
    if wanted is None:
        return [1 if i == 0 and isinstance(s, str) else s for i, s in enumerate(sizes)]
    if len(wanted) != len(sizes):
        raise BadInput(
            f"wrong input shape {'x'.join(map(str, wanted))}, {path}, its input {name} is"
            f" {shape_text(sizes)}"
        )
    pairs = zip(wanted, sizes, strict=True)
    return [chosen if isinstance(size, str) else size for chosen, size in pairs]


def open_sizes_error(
    path: Path, names: list[str], shapes: list[OpenShape], closed: list[OpenShape]
) -> BadInput:
    """Return the refusal of open sizes: which they are, and what to type."""
    described, examples = [], []
    for name, declared, sizes in zip(names, shapes, closed, strict=True):
        example = example_shape(sizes)
        examples.append(f"{name}={example}" if len(names) > 1 else example)
        if any(isinstance(size, str) for size in sizes):
            described.append(f"{name} is {shape_text(declared)}")
    return BadInput(
        f"open input shape, {path}, {', '.join(described)}: say the open sizes, for instance"
        f" --input '{';'.join(examples)}'"
    )


def example_shape(sizes: OpenShape) -> str:
    """Return a shape to type for one with open sizes."""
    side = EXAMPLE_SIDE if len(sizes) == 4 else EXAMPLE_LENGTH
    return ",".join(str(side if isinstance(size, str) else size) for size in sizes) or "()"


def shape_text(sizes: OpenShape) -> str:
    """Return sizes as a message shows them: `?x3xHxW`."""
    return "x".join(
        f"[{s}]" if isinstance(s, str) and not s.isalnum() and s != "?" else str(s) for s in sizes
    )
