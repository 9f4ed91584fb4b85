"""Bytes -> a checked ONNX model; whatever is wrong with the file is refused in one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import onnx
import onnx.inliner
import torch
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import external_data_helper, numpy_helper

from nnstretch.errors import BrokenFile, CannotCapture, UnsupportedOp
from nnstretch.files.read import MOST_MODEL_BYTES, MOST_TENSOR_BYTES, check_file, read_bytes

MIN_OPSET = 7
"""Before it, broadcasting was spelled out in attributes."""
CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
STANDARD_DOMAINS = ("", "ai.onnx")
CONVERTED_FLOAT_TYPES = frozenset({torch.float16, torch.bfloat16, torch.float64})


def load_onnx(path: Path) -> onnx.ModelProto:
    """Load an ONNX file and check it. Raises UnknownName, and whatever `parse_onnx` raises."""
    return parse_onnx(read_bytes(path, "model file", MOST_MODEL_BYTES), path)


def parse_onnx(data: bytes, path: Path, alone: bool = False) -> onnx.ModelProto:
    """Parse an ONNX model and check it; `path` says where the bytes came from.

    `alone`: numbers beside the file are refused, not read.

    Raises BrokenFile when the bytes are no valid ONNX model.
    """
    try:
        model = onnx.load_model_from_string(data)
    except DecodeError as error:
        raise BrokenFile(
            f"broken ONNX file, {path}, no ONNX protobuf: {first_line(error)}"
        ) from error
    if not model.graph.node:
        raise BrokenFile(f"broken ONNX file, {path}, {len(data)} bytes that hold no operator")
    refuse_unsupported(model, path)
    for tensor in iterate_tensors(model):
        if external_data_helper.uses_external_data(tensor):
            if alone:
                raise BrokenFile(
                    f"external data of {tensor.name}, {path}, the file must hold all its numbers"
                )
            load_external(tensor, path)
    try:
        onnx.checker.check_model(model)
        return onnx.inliner.inline_local_functions(model) if model.functions else model
    except Exception as error:
        # Broad on purpose: the checker is C++ and its bindings raise several types.
        raise BrokenFile(
            f"broken ONNX file, {path}, onnx.checker says: {first_line(error)}"
        ) from error


def first_line(error: Exception) -> str:
    """Return the first sentence of an error that may have many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:250]


def opset_version(model: onnx.ModelProto) -> int:
    """Return the version of the standard operator set that the model imports."""
    return next((int(o.version) for o in model.opset_import if o.domain in STANDARD_DOMAINS), 1)


def refuse_unsupported(model: onnx.ModelProto, path: Path) -> None:
    """Refuse what the checker would explain worse, or not at all.

    Raises UnsupportedOp or CannotCapture when the model uses what is not translated.
    """
    opset = opset_version(model)
    newest = onnx.defs.onnx_opset_version()
    if not MIN_OPSET <= opset <= newest:
        raise UnsupportedOp(
            f"unsupported opset {opset}, {path}, this version reads {MIN_OPSET} to {newest}"
        )
    if model.graph.sparse_initializer:
        raise UnsupportedOp(
            f"unsupported sparse initializer, {path}, {len(model.graph.sparse_initializer)} of them"
        )
    for node in model.graph.node:
        if is_deprecated(node, opset):
            raise UnsupportedOp(
                f"unsupported operator {node.op_type} {node.name or node.output[0]!r} in"
                f" {path.name}, ONNX deprecates it in opset {opset}, save the network in another"
            )
    local_functions = {(f.domain, f.name) for f in model.functions}
    for node in chain(model.graph.node, *(function.node for function in model.functions)):
        if node.op_type in CONTROL_FLOW and node.domain in STANDARD_DOMAINS:
            raise CannotCapture(
                f"cannot capture {path}, {node.op_type} {node.name or node.output[0]!r}, control"
                " flow inside the network"
            )
        if (
            node.domain not in STANDARD_DOMAINS
            and (node.domain, node.op_type) not in local_functions
        ):
            what = f"{node.domain}.{node.op_type} {node.name or node.output[0]!r}"
            raise UnsupportedOp(
                f"unsupported operator {what} in {path.name}, only ONNX's own are known"
            )


def is_deprecated(node: onnx.NodeProto, opset: int) -> bool:
    """Return whether an opset has a node's operator no more, or not yet in its later form."""
    if node.domain not in STANDARD_DOMAINS or not onnx.defs.has(node.op_type, opset, ""):
        return False
    return bool(onnx.defs.get_schema(node.op_type, opset, "").deprecated)


def iterate_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a model: of its graph, of local functions, and of nested graphs."""
    yield from iterate_graph_tensors(model.graph)
    for function in model.functions:
        for attribute in chain(function.attribute_proto, attributes_of(function.node)):
            yield from iterate_attribute_tensors(attribute)


def iterate_graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a graph: initializers, and those in attributes of its nodes."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for attribute in attributes_of(graph.node):
        yield from iterate_attribute_tensors(attribute)


def attributes_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.AttributeProto]:
    """Yield every attribute of nodes."""
    for node in nodes:
        yield from node.attribute


def iterate_attribute_tensors(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of an attribute, those of the graphs that it holds among them."""
    yield from (attribute.t, *attribute.tensors)
    for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
        yield from (sparse.values, sparse.indices)
    for graph in (attribute.g, *attribute.graphs):
        yield from iterate_graph_tensors(graph)


def load_external(tensor: onnx.TensorProto, path: Path) -> None:
    """Load numbers that lie beside the model, never outside its folder.

    A model file must not make us read any other file.

    Raises BrokenFile when the data lie outside the folder, or cannot be read.
    """
    folder = path.parent.resolve()
    location = next((e.value for e in tensor.external_data if e.key == "location"), "")
    target = (folder / location).resolve()
    if not location or Path(location).is_absolute() or not target.is_relative_to(folder):
        raise BrokenFile(
            f"external data {location!r} of {tensor.name}, {path}, it lies outside the model's"
            " folder"
        )
    try:
        check_file(target, "file", MOST_TENSOR_BYTES)
        external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
    except Exception as error:
        # Broad on purpose: offsets and lengths are the file's, and onnx checks them with several
        # types.
        raise BrokenFile(
            f"external data {location!r} of {tensor.name}, {path}, {first_line(error)}"
        ) from error


def to_torch_tensor(tensor: onnx.TensorProto, where: str) -> torch.Tensor:
    """Return numbers as PyTorch computes them: every float as float32.

    Raises BrokenFile when the tensor's bytes do not fit its type.
    """
    try:
        array = numpy_helper.to_array(tensor)
        narrow = array.dtype.name == "bfloat16"
        numbers = torch.from_numpy(array.astype("float32") if narrow else array.copy())
    except Exception as error:
        # Broad on purpose: a size that contradicts the data, or an element type that PyTorch has no
        # name for.
        raise BrokenFile(
            f"broken ONNX file, tensor {tensor.name!r} of {where}, {first_line(error)}"
        ) from error
    return numbers.float() if numbers.dtype in CONVERTED_FLOAT_TYPES else numbers


def read_attributes(node: onnx.NodeProto, where: str) -> dict[str, object]:
    """Return the attributes of a node by name. Raises UnsupportedOp when one has no value here."""
    attributes: dict[str, object] = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            value = to_torch_tensor(value, where)
        elif isinstance(value, bytes):
            value = value.decode(errors="replace")
        attributes[attribute.name] = value
    return attributes
