"""An ONNX file's graph as plain values; the numbers of its weights are counted, not read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from nnstretch.bundle.model_files import onnx_schema as schema
from nnstretch.bundle.model_files.protobuf import (
    ProtoMessage,
    read_integers,
    read_message,
    shorten_name,
)

MAX_RANK = 16
MAX_AXIS = 1 << 31
MAX_NODES = 100_000
MAX_NAME = 4096
"""Characters of a name in a file."""
MAX_SHAPE_NUMBERS = 256
"""Elements. Integer tensors up to this size are read: they may say shapes, axes and indices."""

INTEGER_FORMS = {"int32": "<i4", "int64": "<i8"}
"""numpy's names of raw integers."""


@dataclass(frozen=True, slots=True)
class OnnxTensor:
    """A constant: shape and element type, and its numbers where they are few integers."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    numbers: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class OnnxAttribute:
    """An attribute of a node; only what says shapes is kept of its value."""

    integers: tuple[int, ...] = ()
    text: str = ""
    tensor: OnnxTensor | None = None


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One operator call."""

    op: str
    name: str
    inputs: tuple[str, ...]
    """Empty names are inputs that were left out."""
    outputs: tuple[str, ...]
    attributes: Mapping[str, OnnxAttribute]

    def __str__(self) -> str:
        return f"{self.op[:40]} {shorten_name(self.name or self.outputs[0])}"


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """A tensor as the file declares it."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    """None where the rank is open, and for an axis of open size."""


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """The one graph of a file."""

    opset: int
    nodes: tuple[OnnxNode, ...]
    initializers: tuple[OnnxTensor, ...]
    inputs: tuple[DeclaredTensor, ...]
    outputs: tuple[DeclaredTensor, ...]
    values: tuple[DeclaredTensor, ...]
    """What the file declares of inner tensors."""


def read_onnx(data: bytes, opsets: range, ir_versions: range) -> OnnxGraph:
    """Read a file of known versions that holds everything it needs.

    Raises ValueError for anything else: external data, functions, control flow, training,
    sparse tensors, operators of other domains, wrong sizes.
    """
    model = read_message(memoryview(data), schema.MODEL, "the ONNX model")
    for what in ("training_info", "functions"):
        if model.holds(what):
            raise ValueError(f"it holds {what}, a sub-graph has operators only")
    if (ir_version := model.integer("ir_version")) not in ir_versions:
        raise ValueError(
            f"IR version {ir_version}, known are {ir_versions[0]} to {ir_versions[-1]}"
        )
    if not model.holds("graph"):
        raise ValueError("it holds no graph")
    opset = _read_opset(model, opsets)
    graph = read_message(model.piece("graph"), schema.GRAPH, "the graph")
    if graph.holds("sparse_initializer"):
        raise ValueError("it holds sparse_initializer, weights are dense")
    nodes = graph.pieces.get("node", [])
    if not 1 <= len(nodes) <= MAX_NODES:
        raise ValueError(f"{len(nodes)} operators, needed are 1 to {MAX_NODES}")
    return OnnxGraph(
        opset,
        tuple(map(_read_node, nodes)),
        tuple(map(read_tensor, graph.pieces.get("initializer", ()))),
        tuple(map(_read_value, graph.pieces.get("input", ()))),
        tuple(map(_read_value, graph.pieces.get("output", ()))),
        tuple(map(_read_value, graph.pieces.get("value_info", ()))),
    )


def _read_opset(model: ProtoMessage, opsets: range) -> int:
    """Return the version of the standard operators; imports of unused domains are let be."""
    versions = []
    for piece in model.pieces.get("opset_import", ()):
        opset = read_message(piece, schema.OPSET, "an imported operator set")
        if opset.text("domain") in ("", "ai.onnx"):
            versions.append(opset.integer("version"))
    if len(versions) != 1 or versions[0] not in opsets:
        shown = ", ".join(map(str, versions[:3])) or "none"
        raise ValueError(f"opset {shown}, known are {opsets[0]} to {opsets[-1]}")
    return versions[0]


def _read_node(piece: memoryview) -> OnnxNode:
    message = read_message(piece, schema.NODE, "an operator")
    op = message.text("op_type")
    inputs = tuple(map(_check_name, message.texts("input")))
    outputs = tuple(map(_check_name, message.texts("output")))
    if not op or not any(outputs):
        raise ValueError(f"operator {shorten_name(op)} without a type or an output")
    domain = message.text("domain")
    node = OnnxNode(op, message.text("name"), inputs, outputs, {})
    if domain not in ("", "ai.onnx") or message.text("overload"):
        raise ValueError(f"{node} of domain {shorten_name(domain)}, only ONNX's own are known")
    attributes: dict[str, OnnxAttribute] = {}
    for part in message.pieces.get("attribute", ()):
        name, attribute = _read_attribute(part, str(node))
        if name in attributes:
            raise ValueError(f"{node}, attribute {shorten_name(name)} is there twice")
        attributes[name] = attribute
    return OnnxNode(op, node.name, inputs, outputs, attributes)


def _read_attribute(piece: memoryview, node: str) -> tuple[str, OnnxAttribute]:
    message = read_message(piece, schema.ATTRIBUTE, f"an attribute of {node}")
    name = message.text("name")
    if message.holds("g") or message.holds("graphs"):
        raise ValueError(f"{node}, attribute {shorten_name(name)} is a graph, control flow")
    field = schema.ATTRIBUTE_FIELDS.get(message.integer("type"))
    if not name or field is None:
        raise ValueError(
            f"{node}, attribute {shorten_name(name)} of type {message.integer('type')}, unknown"
        )
    for another in schema.ATTRIBUTE_FIELDS.values():
        if another != field and message.holds(another):
            raise ValueError(
                f"{node}, attribute {shorten_name(name)}, it holds {field} and {another}"
            )
    if field == "t":
        return name, OnnxAttribute(tensor=read_tensor(message.piece("t")))
    if field == "s":
        return name, OnnxAttribute(text=message.piece("s").tobytes()[:80].decode(errors="replace"))
    integers = tuple(message.integers.get(field, [0] if field == "i" else []))
    return name, OnnxAttribute(integers)


def read_tensor(piece: memoryview) -> OnnxTensor:
    """Read a constant. Raises ValueError where its bytes do not fit its shape."""
    message = read_message(piece, schema.TENSOR, "a constant")
    name = _check_name(message.text("name"))
    where = f"constant {shorten_name(name)}"
    if message.holds("external_data") or message.integer("data_location"):
        raise ValueError(f"{where}, its data lie outside the file, the file must hold them")
    code = message.integer("data_type")
    if code not in schema.ELEMENT_TYPES:
        raise ValueError(f"{where} of element type {code}, unknown")
    dtype, _, _ = schema.ELEMENT_TYPES[code]
    shape = tuple(message.integers.get("dims", ()))
    if len(shape) > MAX_RANK or any(not 0 <= size < MAX_AXIS for size in shape):
        raise ValueError(f"{where} of shape {str(shape)[:80]}, sizes are from 0 to {MAX_AXIS - 1}")
    _check_data(message, code, prod(shape), where)
    return OnnxTensor(name, shape, dtype, _small_integers(message, dtype, prod(shape)))


def _check_data(message: ProtoMessage, code: int, elements: int, where: str) -> None:
    dtype, element_bytes, field = schema.ELEMENT_TYPES[code]
    fields = [name for name in schema.DATA_FIELDS if message.holds(name)]
    if not fields and elements == 0:
        return
    if len(fields) != 1 or fields[0] not in ("raw_data", field):
        raise ValueError(f"{where}, its numbers are in {', '.join(fields) or 'no field'}")
    data = message.piece(fields[0])
    if fields[0] == "raw_data":
        stored, needed = len(data), elements * element_bytes
    elif field in schema.FIXED_DATA:
        stored, needed = len(data), elements * schema.FIXED_DATA[field]
    else:
        stored, needed = _count_varints(data), elements
    if stored != needed:
        raise ValueError(
            f"{where}, {fields[0]} has {stored} where {elements} of {dtype} need {needed}"
        )


def _count_varints(data: memoryview) -> int:
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) < 0x80))


def _small_integers(message: ProtoMessage, dtype: str, elements: int) -> tuple[int, ...] | None:
    if dtype not in INTEGER_FORMS or elements > MAX_SHAPE_NUMBERS:
        return None
    if message.holds("raw_data"):
        return tuple(np.frombuffer(message.piece("raw_data"), INTEGER_FORMS[dtype]).tolist())
    return tuple(read_integers(message.piece(f"{dtype}_data"), message.what))


def _read_value(piece: memoryview) -> DeclaredTensor:
    message = read_message(piece, schema.VALUE, "a declared tensor")
    name = _check_name(message.text("name"))
    where = f"tensor {shorten_name(name)}"
    kind = read_message(message.piece("type"), schema.TYPE, f"the type of {where}")
    tensor = read_message(kind.piece("tensor_type"), schema.TENSOR_TYPE, f"the type of {where}")
    code = tensor.integer("elem_type")
    if code not in schema.ELEMENT_TYPES:
        raise ValueError(f"{where} of element type {code}, unknown")
    shape = _read_shape(tensor, where) if tensor.holds("shape") else None
    return DeclaredTensor(name, schema.ELEMENT_TYPES[code][0], shape)


def _read_shape(tensor: ProtoMessage, where: str) -> tuple[int | None, ...]:
    sizes: list[int | None] = []
    message = read_message(tensor.piece("shape"), schema.SHAPE, f"the shape of {where}")
    for piece in message.pieces.get("dim", ()):
        dimension = read_message(piece, schema.DIMENSION, f"an axis of {where}")
        size = dimension.integer("dim_value", -1)
        if dimension.holds("dim_value") and not 0 <= size < MAX_AXIS:
            raise ValueError(f"{where} has an axis of {size}, sizes are from 0 to {MAX_AXIS - 1}")
        sizes.append(size if dimension.holds("dim_value") else None)
    if len(sizes) > MAX_RANK:
        raise ValueError(f"{where} has {len(sizes)} axes, limit {MAX_RANK}")
    return tuple(sizes)


def _check_name(name: str) -> str:
    if len(name) > MAX_NAME:
        raise ValueError(f"name {shorten_name(name)} of {len(name)} characters, limit {MAX_NAME}")
    return name
