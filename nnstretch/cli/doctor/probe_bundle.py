"""A small network in a runtime's format, written without that format's library where it may lack.

Two equal branches read one input; each is a few matrix products with a ReLU behind each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.bundle.archive import digest
from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import FORMATS, Manifest, Port, Subgraph
from nnstretch.graph import TensorSpec

ROWS, COLUMNS, DEPTH = 128, 256, 4
"""34 million multiply-accumulates a branch: a millisecond or a few, on one core."""
PROCESSORS = ("cpu0", "cpu1")
OPSET, IR_VERSION = 17, 8
FLOAT = 1
"""ONNX's code of float32."""


def probe_weights() -> list[np.ndarray]:
    """Draw weights that keep numbers near 1 from layer to layer."""
    generator = np.random.default_rng(0)
    shape = (DEPTH, COLUMNS, COLUMNS)
    return list(generator.standard_normal(shape, np.float32) * np.float32((2 / COLUMNS) ** 0.5))


def probe_output(x: np.ndarray, weights: Sequence[np.ndarray]) -> np.ndarray:
    """Compute a branch in numpy."""
    for weight in weights:
        x = np.maximum(x @ weight, 0)
    return x


def probe_bundle(form: str) -> Bundle:
    """Return the network as a bundle in `onnx` or `litert` form.

    Raises ImportError where the LiteRT form needs packages that are not there.
    """
    spec = TensorSpec((ROWS, COLUMNS))
    x = Port("x", spec)
    subgraphs: list[Subgraph] = []
    files: dict[str, bytes] = {}
    for processor in PROCESSORS:
        y = Port(f"y.{processor}", spec)
        weights = probe_weights()
        data = onnx_file(y.name, weights) if form == "onnx" else tflite_file(weights)
        file = f"{processor}{FORMATS[form]}"
        files[file] = data
        sha256 = digest(data)
        subgraphs.append(
            Subgraph(processor, processor, file, sha256, len(data), (x,), (y,), format=form)
        )
    outputs = tuple(sub.outputs[0] for sub in subgraphs)
    return Bundle(Manifest("probe", None, (x,), outputs, tuple(subgraphs), 0.0), files, "probe")


def onnx_file(output: str, weights: Sequence[np.ndarray]) -> bytes:
    """Write the branch as an ONNX file: fields of onnx.proto by their numbers."""
    graph = field(2, b"probe")
    read = "x"
    for number, weight in enumerate(weights):
        last = number == len(weights) - 1
        product, written = f"p{number}", output if last else f"h{number}"
        graph += field(1, onnx_node("MatMul", (read, f"w{number}"), product))
        graph += field(1, onnx_node("Relu", (product,), written))
        sizes = b"".join(field(1, size) for size in weight.shape)
        raw = weight.astype("<f4").tobytes()
        graph += field(5, sizes + field(2, FLOAT) + field(8, f"w{number}".encode()) + field(9, raw))
        read = written
    graph += field(11, onnx_value("x")) + field(12, onnx_value(output))
    opset = field(1, b"") + field(2, OPSET)
    return field(1, IR_VERSION) + field(7, graph) + field(8, opset)


def onnx_node(op: str, inputs: Sequence[str], output: str) -> bytes:
    """Return a node without attributes."""
    reads = b"".join(field(1, name.encode()) for name in inputs)
    return reads + field(2, output.encode()) + field(4, op.encode())


def onnx_value(name: str) -> bytes:
    """Return the declaration of a tensor of the probe's shape."""
    sizes = b"".join(field(1, field(1, size)) for size in (ROWS, COLUMNS))
    tensor = field(1, FLOAT) + field(2, sizes)
    return field(1, name.encode()) + field(2, field(1, tensor))


def field(number: int, value: int | bytes) -> bytes:
    """Return a field of a protobuf message: a number, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    """Return a number in base 128, low digits first."""
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def tflite_file(weights: Sequence[np.ndarray]) -> bytes:
    """Write the branch as a .tflite file. Raises ImportError without LiteRT's schema."""
    from nnstretch.profile.kernel_models.tflite_builder import TfliteModelBuilder

    builder = TfliteModelBuilder("float32")
    value = builder.read((ROWS, COLUMNS))
    for weight in weights:
        builder.tensor(weight.shape, "float32", np.ascontiguousarray(weight.T))
        inputs = (value, len(builder.tensors) - 1, -1)
        options = "FullyConnectedOptions"
        value = builder.op(
            "FULLY_CONNECTED", inputs, (ROWS, COLUMNS), options, fusedActivationFunction=1
        )
    builder.outputs = [value]
    return builder.bytes()
