"""Inputs and outputs of an ONNX model under the names of a pipeline's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from random import Random

import onnx
from onnx import helper

from nnstretch.errors import UnsupportedOp
from nnstretch.graph import TensorSpec

PLAIN = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.INT64: "int64",
}
TRIES = 8
MOST_DRAWN_BYTES = 128 << 20


def rename_io(
    model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str]
) -> onnx.ModelProto:
    """Return the model with its inputs and outputs called so, in order.

    Two inputs of one name become one; an inner tensor gives way.

    Raises UnsupportedOp where the model has another number of them.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph, weights = changed.graph, {tensor.name for tensor in model.graph.initializer}
    reads = [value for value in graph.input if value.name not in weights]
    if (len(reads), len(graph.output)) != (len(inputs), len(outputs)):
        raise UnsupportedOp(
            f"cannot name ends of {graph.name or 'a model'}, it has {len(reads)} inputs and"
            f" {len(graph.output)} outputs, expected {len(inputs)} and {len(outputs)}"
        )
    separate_outputs(graph, {value.name for value in reads} | weights)
    names = dict(zip((value.name for value in reads), inputs, strict=True))
    names |= dict(zip((value.name for value in graph.output), outputs, strict=True))
    rename_all(graph, names | free_names(graph, set(inputs) | set(outputs), names))
    first = {value.name: value for value in reversed(graph.input)}
    kept = list(first.values())[::-1]
    del graph.input[:]
    graph.input.extend(kept)
    return changed


def separate_outputs(graph: onnx.GraphProto, taken: set[str]) -> None:
    """Give an output that is an input, a weight or another output a tensor of its own."""
    seen = set(taken)
    for i, output in enumerate(graph.output):
        if output.name in seen:
            alone = f"{output.name}.output{i}"
            graph.node.append(helper.make_node("Identity", [output.name], [alone], name=alone))
            output.name = alone
        seen.add(output.name)


def free_names(
    graph: onnx.GraphProto, wanted: set[str], names: Mapping[str, str]
) -> dict[str, str]:
    """Return new names for inner tensors that have one of the wanted names."""
    used = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        used.update(node.input, node.output)
    taken = used | wanted
    renamed: dict[str, str] = {}
    for name in sorted(wanted & used):
        if name not in names:
            numbered = (f"{name}.{number}" for number in count())
            renamed[name] = next(free for free in numbered if free not in taken)
    return renamed


def rename_all(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename everywhere, bodies of control flow too."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for edge in (node.input, node.output):
            for i, name in enumerate(edge):
                edge[i] = names.get(name, name)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                rename_all(body, names)


def random_bytes(seed: int, size: int) -> bytes:
    """Return so many bytes, in pieces: Python draws less than 256 MiB at once."""
    generator = Random(seed)
    sizes = [min(MOST_DRAWN_BYTES, size - begin) for begin in range(0, size, MOST_DRAWN_BYTES)]
    return b"".join(map(generator.randbytes, sizes))


def weight_offsets(data: bytes, names: Sequence[str]) -> dict[str, tuple[TensorSpec, int]]:
    """Return type of some weights and where each begins in the file.

    Those that do not stand there byte by byte are left out.

    Each is filled with a pattern of its own, which is then looked for: a file of equal sizes has
    equal places.
    """
    model = onnx.load_from_string(data)
    wanted = [
        tensor
        for tensor in model.graph.initializer
        if tensor.name in set(names) and tensor.data_type in PLAIN and tensor.raw_data
    ]
    if model.SerializeToString(deterministic=True) != data:
        return {}
    offsets: dict[str, tuple[TensorSpec, int]] = {}
    for seed in range(TRIES):
        missing = [tensor for tensor in wanted if tensor.name not in offsets]
        for number, tensor in enumerate(missing):
            tensor.raw_data = random_bytes(seed * 1_000_003 + number, len(tensor.raw_data))
        marked = model.SerializeToString(deterministic=True)
        for tensor in missing:
            if marked.count(tensor.raw_data) == 1:
                offsets[tensor.name] = (
                    TensorSpec(tuple(tensor.dims), PLAIN[tensor.data_type]),
                    marked.index(tensor.raw_data),
                )
    return offsets
