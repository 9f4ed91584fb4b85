"""An ONNX file -> Graph, in PyTorch's vocabulary, with weights under their modules' names.

The file is data that anybody may have written: nothing in it is executed or unpickled, external
tensors are read from its own folder only, and what is not understood is refused by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from math import prod
from pathlib import Path

import onnx
import torch

from nnstretch.capture.captured_network import CapturedNetwork
from nnstretch.capture.onnx.graph_builder import FixedBatch, GraphBuilder, OnnxValue, tensor_spec
from nnstretch.capture.onnx.inputs import InputSources, read_sources
from nnstretch.capture.onnx.load import load_onnx, opset_version, read_attributes, to_torch_tensor
from nnstretch.capture.onnx.names import clean_path
from nnstretch.capture.onnx.ops.elementwise import ONNX_TYPES
from nnstretch.capture.onnx.ops.table import TRANSLATION_RULES
from nnstretch.capture.onnx.pattern_fusion import fuse_patterns
from nnstretch.capture.onnx.translation_context import NodeContext
from nnstretch.errors import BrokenFile, CannotCapture, UnsupportedOp
from nnstretch.graph import Graph, InputShape, names_read
from nnstretch.graph import Value as GraphInput
from nnstretch.structure.cuts import prune_unread

SECOND_PROBE_FACTOR = 5
"""The second probe's batch: no size that other dimensions are likely to have."""


def read_onnx(path: Path, inputs: Sequence[InputShape] = ()) -> CapturedNetwork:
    """Read the network in an .onnx file at the batch it was saved with, 1 where that may vary.

    `inputs` close what the file leaves open. 16- and 64-bit floats become float32. Float
    initializers count as trainable except running statistics; constants made inside the graph do
    not. Raises UnknownName, BrokenFile, UnsupportedOp, CannotCapture or BadInput in one line.
    """
    path = Path(path)
    model = load_onnx(path)
    return capture_model(model, path, read_sources(model, path, inputs))


def capture_model(
    model: onnx.ModelProto, path: Path, sources: InputSources, constant_outputs: bool = False
) -> CapturedNetwork:
    """Capture a checked model. Raises CannotCapture when more than its batch varies.

    `constant_outputs`: allow outputs that do not depend on the input.
    """
    why = ""
    for batches in ((1, SECOND_PROBE_FACTOR), (1,)):
        try:
            builder = walk_nodes(model, path, sources, batches)
            return finish_graph(builder, model, path, sources, constant_outputs)
        except FixedBatch as reason:
            why = str(reason)
    raise CannotCapture(
        f"cannot capture {path}, its constants depend on more than the batch: {why}"
    )


def walk_nodes(
    model: onnx.ModelProto, path: Path, sources: InputSources, factors: tuple[int, ...]
) -> GraphBuilder:
    """Translate the model's nodes at every probed batch size."""
    graph = model.graph
    readers = Counter(filter(None, chain.from_iterable(node.input for node in graph.node)))
    readers.update(value.name for value in graph.output)
    first = sources[0][0].type.tensor_type.shape.dim[:1]
    builder = GraphBuilder(path.name, readers, open_batch=not any(d.dim_value > 0 for d in first))
    for source, shape in sources:
        builder.values[source.name] = add_graph_input(builder, source, shape, factors)
    builder.input = builder.values[sources[0][0].name]
    for tensor in graph.initializer:
        if tensor.name in readers:
            builder.values[tensor.name] = builder.add_constant(
                to_torch_tensor(tensor, path.name), source=tensor.name
            )
    opset = opset_version(model)
    with torch.no_grad():
        for node in graph.node:
            translate_node(builder, node, opset)
    return builder


def add_graph_input(
    builder: GraphBuilder,
    source: onnx.ValueInfoProto,
    shape: tuple[int, ...],
    factors: tuple[int, ...],
) -> OnnxValue:
    """Add an input with one probe for every batch size."""
    name = builder.names.make_unique(clean_path(source.name).replace(".", "_"))
    kind = ONNX_TYPES[source.type.tensor_type.elem_type]
    batched = factors if shape else (1,)
    probes = tuple(
        torch.empty((*(d * f for d in shape[:1]), *shape[1:]), dtype=kind, device="meta")
        for f in batched
    )
    builder.specs[name] = tensor_spec(probes[0])
    return OnnxValue(probes, False, name)


def translate_node(builder: GraphBuilder, node: onnx.NodeProto, opset: int) -> None:
    """Translate one node of the file.

    Raises UnsupportedOp without a rule; BrokenFile when the node contradicts itself; FixedBatch
    when it may do so at the second probe only.
    """
    call = NodeContext(builder, node, opset, read_attributes(node, builder.file))
    rule = TRANSLATION_RULES.get(node.op_type)
    if rule is None:
        raise UnsupportedOp(f"unsupported operator {call.location}, no rule translates it")
    if missing := [name for name in node.input if name and name not in builder.values]:
        raise BrokenFile(
            f"broken ONNX file, {call.location}, it reads {missing[0]!r} before it exists"
        )
    try:
        result = rule(call)
    except (
        TypeError,
        IndexError,
        ValueError,
        ZeroDivisionError,
        OverflowError,
        RuntimeError,
    ) as error:
        # A rule reads ranks, sizes and attributes as the operator's definition promises them; at
        # the second probe's batch, nobody promised them.
        if builder.input is not None and len(builder.input.probes) > 1:
            raise FixedBatch(f"{call.location}: {error}") from error
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BrokenFile(
            f"broken ONNX file, {call.location}, its attributes do not fit its inputs: {reason}"
        ) from error
    results = result if isinstance(result, tuple) else (result,)
    for name, value in zip(node.output, results, strict=False):
        if name:
            builder.values[name] = value


def finish_graph(
    builder: GraphBuilder,
    model: onnx.ModelProto,
    path: Path,
    sources: InputSources,
    constant_outputs: bool,
) -> CapturedNetwork:
    """Return graph and weights of a finished walk.

    Raises CannotCapture when an output does not depend on the input and may not be constant.
    """
    names = [str(builder.values[source.name].name) for source, _ in sources]
    outputs: list[str] = []
    for value in model.graph.output:
        computed = builder.values.get(value.name)
        if constant_outputs and computed is not None and computed.constant:
            computed = builder.copy_constant(computed)
        if computed is None or computed.constant or computed.name is None:
            raise CannotCapture(
                f"cannot capture {path}, output {value.name} does not depend on the input"
            )
        if not builder.drops_windows:
            check_output_shape(value, computed, path)
        outputs.append(computed.name)
    nodes = fuse_patterns(builder.nodes, tuple(outputs))
    kept = prune_unread(tuple(nodes.values()), outputs)
    read = set(names_read(kept))
    weights = tuple(weight for weight in builder.weights.values() if weight.name in read)
    entries = tuple(GraphInput(name, builder.specs[name]) for name in names)
    graph = Graph(clean_path(path.stem).replace(".", "_"), entries, weights, kept, tuple(outputs))
    tensors = {weight.name: builder.tensors[weight.name] for weight in weights}
    called = tuple(value.name for value in model.graph.output)
    return CapturedNetwork(graph, tensors, output_names=called)


def check_output_shape(value: onnx.ValueInfoProto, computed: OnnxValue, path: Path) -> None:
    """Check that declared and computed shape of an output agree. Raises BrokenFile otherwise."""
    said = [d.dim_value for d in value.type.tensor_type.shape.dim]
    if not value.type.tensor_type.HasField("shape") or not all(said) or not prod(said):
        return
    if tuple(said[1:]) != computed.shape[1:]:
        raise BrokenFile(
            f"broken ONNX file, output {value.name} of {path}, it declares {said}, its operators"
            f" compute {list(computed.shape)}"
        )
