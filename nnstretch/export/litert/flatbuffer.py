"""What is written in a .tflite.

The names of its tensors, which of them share a scale, and a description for viewers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

IDENTIFIER = b"TFL3"


@dataclass(frozen=True, slots=True)
class FileIO:
    """Names of the tensors at a file's edge."""

    inputs: tuple[str, ...]
    """In the order of the module's arguments."""
    output: str


def file_io(model: bytes) -> FileIO:
    """Return inputs and output of a file with one signature, as litert-torch writes it.

    Args_0, args_1, ...
    """
    parsed = parse_model(model)
    signature, graph = parsed.SignatureDefs(0), parsed.Subgraphs(0)
    inputs = [signature.Inputs(i) for i in range(signature.InputsLength())]
    inputs.sort(key=lambda input_: int(input_.Name().rpartition(b"_")[2]))
    names = tuple(graph.Tensors(input_.TensorIndex()).Name().decode() for input_ in inputs)
    return FileIO(names, graph.Tensors(signature.Outputs(0).TensorIndex()).Name().decode())


def tied_tensors(model: bytes) -> Iterator[tuple[str, str]]:
    """Yield activations of an int8 file that touch one operator and have the same scale and zero
    point, in pairs.

    Pooling, reshaping and padding hand their scale on; which operators do is the quantizer's to
    know, so it is read off its work.
    """
    parsed = parse_model(model)
    graph = parsed.Subgraphs(0)
    for operator in (graph.Operators(i) for i in range(graph.OperatorsLength())):
        ends = [operator.Inputs(i) for i in range(operator.InputsLength())]
        ends += [operator.Outputs(i) for i in range(operator.OutputsLength())]
        forms = {}
        for end in ends:
            if end >= 0:
                tensor = graph.Tensors(end)
                forms[tensor.Name().decode()] = quantization_of(tensor)
        for first, second in combinations(forms, 2):
            if forms[first] is not None and forms[first] == forms[second]:
                yield first, second


def quantization_of(tensor: Any) -> tuple[float, int] | None:
    """Scale and zero point; None where there is none, or one for each channel."""
    how = tensor.Quantization()
    if how is None or how.ScaleLength() != 1 or how.ZeroPointLength() != 1:
        return None
    return float(how.Scale(0)), int(how.ZeroPoint(0))


def with_description(model: bytes, text: str) -> bytes:
    """Return the file with a description, which Netron shows, and all weights inside the
    flatbuffer.

    From 256 KiB on, the quantizer writes weights behind the flatbuffer, at offsets that a new one
    would not keep and that older interpreters (tflite-runtime 2.14) do not know.
    """
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    root = schema.ModelT.InitFromPackedBuf(model, 0)
    root.description = text
    for buffer in root.buffers:
        if buffer.offset > 1:
            buffer.data = np.frombuffer(model, np.uint8, buffer.size, buffer.offset)
            buffer.offset = buffer.size = 0
    builder = flatbuffers.Builder(len(model) + 1024)
    builder.Finish(root.Pack(builder), IDENTIFIER)
    return bytes(builder.Output())


def parse_model(model: bytes) -> Any:
    """Parse the flatbuffer of a .tflite file."""
    from ai_edge_litert import schema_py_generated as schema

    return schema.Model.GetRootAs(model, 0)
