"""Write a .tflite file operator by operator, without a converter.

Milliseconds a model, random weights.

Layout is LiteRT's: NHWC maps, OHWI filters. In int8, activations have one scale and zero point a
tensor, weights one scale a channel, biases are int32, as ai-edge-quantizer writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

SCALE, ZERO_POINT = 0.05, -3
"""Of an int8 activation where nothing fixes them; kernels take the same time for other values."""
WEIGHT_SCALE = 0.01
ELEMENT_TYPES = {
    "float32": schema.TensorType.FLOAT32,
    "int8": schema.TensorType.INT8,
    "int32": schema.TensorType.INT32,
}


class TfliteModelBuilder:
    """A graph that grows; values are tensor indices."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.tensors: list[Any] = []
        self.buffers: list[Any] = [schema.BufferT()]
        self.operators: list[Any] = []
        self.codes: dict[str, int] = {}
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.unread = 0
        """Which input the next `read` gives."""

    def read(self, shape: Sequence[int]) -> int:
        """Return the next input of the model, made where there is none yet."""
        if self.unread == len(self.inputs):
            self.inputs.append(self.activation(shape))
        self.unread += 1
        return self.inputs[self.unread - 1]

    def reread(self) -> None:
        """Begin another copy of the kernels, which reads the same inputs from the first one on."""
        self.unread = 0

    def op(
        self,
        name: str,
        inputs: Sequence[int],
        shape: Sequence[int],
        options: str = "",
        like: int | None = None,
        scale: tuple[float, int] | None = None,
        second: bool = False,
        **fields: Any,
    ) -> int:
        """Append an operator with the fields of its options.

        Its output has the scale of `like`, the one given, or the usual.
        """
        quantisation = self.tensors[like].quantization if like is not None else None
        value = self.activation(shape, scale, quantisation)
        operator = schema.OperatorT()
        operator.opcodeIndex = self.codes.setdefault(name, len(self.codes))
        operator.inputs, operator.outputs = list(inputs), [value]
        if options:
            option_table = getattr(schema, f"{options}T")()
            for key, field in fields.items():
                setattr(option_table, key, field)
            if second:
                operator.builtinOptions2, operator.builtinOptions2Type = (
                    option_table,
                    getattr(schema.BuiltinOptions2, options),
                )
            else:
                operator.builtinOptions, operator.builtinOptionsType = (
                    option_table,
                    getattr(schema.BuiltinOptions, options),
                )
        self.operators.append(operator)
        return value

    def activation(
        self, shape: Sequence[int], scale: tuple[float, int] | None = None, quantisation: Any = None
    ) -> int:
        """Add an activation tensor and return its index."""
        tensor = self.tensor(shape, self.dtype, None)
        if self.dtype == "int8":
            step, zero_point = scale or (SCALE, ZERO_POINT)
            tensor.quantization = quantisation or steps([step], [zero_point])
        return len(self.tensors) - 1

    def weight(self, shape: Sequence[int], axis: int) -> int:
        """Add random weights; one scale for each index of `axis` in int8."""
        tensor = self.tensor(shape, self.dtype, noise(prod(shape), self.dtype))
        if self.dtype == "int8":
            tensor.quantization = steps([WEIGHT_SCALE] * shape[axis], [0] * shape[axis], axis)
        return len(self.tensors) - 1

    def bias(self, size: int, source: int) -> int:
        """Add a bias and return its index."""
        if self.dtype == "float32":
            return self.weight((size,), 0)
        tensor = self.tensor((size,), "int32", np.zeros(size, np.int32))
        tensor.quantization = steps(
            [WEIGHT_SCALE * float(self.tensors[source].quantization.scale[0])] * size, [0] * size, 0
        )
        return len(self.tensors) - 1

    def constant(self, shape: Sequence[int], value: float | None = None) -> int:
        """Add an activation that never changes: one number everywhere, or random ones."""
        elements = prod(shape)
        if value is None:
            data = noise(elements, self.dtype)
        elif self.dtype == "int8":
            data = np.full(elements, 127, np.int8)
        else:
            data = np.full(elements, value, np.float32)
        tensor = self.tensor(shape, self.dtype, data)
        if self.dtype == "int8":
            tensor.quantization = steps([abs(value) / 127 if value else SCALE], [0])
        return len(self.tensors) - 1

    def first_number(self, value: int) -> int:
        """Return a tensor's first number."""
        corner = [1] * len(self.shape(value))
        return self.op(
            "SLICE",
            (value, self.integers([0] * len(corner)), self.integers(corner)),
            corner,
            "SliceOptions",
            like=value,
        )

    def lowest_value(self, like: int) -> int:
        """Return what a maximum ignores, in the scale of another value."""
        data = (
            np.full(1, -128, np.int8)
            if self.dtype == "int8"
            else np.full(1, np.finfo(np.float32).min, np.float32)
        )
        tensor = self.tensor((), self.dtype, data)
        tensor.quantization = self.tensors[like].quantization
        return len(self.tensors) - 1

    def integers(self, values: Any) -> int:
        """Add a tensor of int32 constants and return its index."""
        data = np.asarray(values, np.int32)
        self.tensor(data.shape, "int32", data)
        return len(self.tensors) - 1

    def tensor(self, shape: Sequence[int], dtype: str, data: Any) -> Any:
        """Add a tensor with its buffer."""
        tensor = schema.TensorT()
        tensor.name = f"t{len(self.tensors)}".encode()
        tensor.shape, tensor.type = [int(side) for side in shape], ELEMENT_TYPES[dtype]
        tensor.buffer = 0
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
            self.buffers.append(buffer)
            tensor.buffer = len(self.buffers) - 1
        self.tensors.append(tensor)
        return tensor

    def shape(self, value: int) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return tuple(self.tensors[value].shape)

    def bytes(self) -> bytes:
        """Return the model as a file's bytes."""
        graph = schema.SubGraphT()
        graph.name = b"main"
        graph.tensors, graph.operators = self.tensors, self.operators
        graph.inputs, graph.outputs = self.inputs, self.outputs
        model = schema.ModelT()
        model.version, model.description = 3, b"kernels"
        model.subgraphs, model.buffers = [graph], self.buffers
        model.operatorCodes = [operator_code(name) for name in self.codes]
        builder = flatbuffers.Builder(1 << 16)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def operator_code(name: str) -> Any:
    """Return an operator's code as the schema stores it."""
    code = schema.OperatorCodeT()
    code.builtinCode = getattr(schema.BuiltinOperator, name)
    code.deprecatedBuiltinCode = min(code.builtinCode, 127)
    code.version = 1
    return code


def steps(scales: Sequence[float], zero_points: Sequence[int], axis: int = 0) -> Any:
    """Return quantization parameters as the schema stores them."""
    parameters = schema.QuantizationParametersT()
    parameters.scale, parameters.zeroPoint = (
        np.asarray(scales, np.float32),
        np.asarray(zero_points, np.int64),
    )
    parameters.quantizedDimension = axis
    return parameters


@cache
def noise_block(dtype: str) -> np.ndarray:
    """Return a block of random weights, drawn once for each dtype."""
    rng = np.random.default_rng(0)
    if dtype == "int8":
        return rng.integers(-127, 128, 1 << 20, dtype=np.int8)
    return 0.05 * rng.standard_normal(1 << 20, dtype=np.float32)


def noise(elements: int, dtype: str) -> np.ndarray:
    """Return a block of random numbers, repeated: values do not change how long a product takes."""
    return np.resize(noise_block(dtype), elements)
