"""Operators of kernels as nodes of an ONNX graph.

One emitter for each kind; what has no ONNX form here is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isqrt, prod

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.structure.macs import ATTENTION

OPSET = 20
Attributes = dict[str, object]
ACTIVATIONS: dict[str, tuple[str, Attributes]] = {
    "relu": ("Relu", {}),
    "sigmoid": ("Sigmoid", {}),
    "tanh": ("Tanh", {}),
    "hardswish": ("HardSwish", {}),
    "hardsigmoid": ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    "leaky_relu": ("LeakyRelu", {"alpha": 0.01}),
    "elu": ("Elu", {}),
    "gelu": ("Gelu", {}),
    "softplus": ("Softplus", {}),
    "mish": ("Mish", {}),
    "exp": ("Exp", {}),
    "sqrt": ("Sqrt", {}),
    "neg": ("Neg", {}),
}
CLIPS = {
    "relu6": (0.0, 6.0),
    "hardtanh": (0.0, 6.0),
    "clamp": (0.0, 6.0),
    "clamp_min": (0.0, 3e38),
    "clamp_max": (-3e38, 6.0),
}
WINDOWS = {
    "max_pool2d": "MaxPool",
    "max_pool2d_with_indices": "MaxPool",
    "avg_pool2d": "AveragePool",
}


@dataclass
class OnnxModelBuilder:
    """An ONNX graph while it grows."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    count: int = 0

    def name(self) -> str:
        """Return a new value name."""
        self.count += 1
        return f"v{self.count}"

    def add(
        self, op: str, *inputs: str, outputs: int = 1, name: str = "", **attributes: object
    ) -> str:
        """Add a node and return the name of its result."""
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(
            helper.make_node(op, list(inputs), names, name=name or names[0], **attributes)  # type: ignore[arg-type]
        )
        return names[0]

    def weight(self, *shape: int, low: float = -0.1, high: float = 0.1) -> str:
        """Add a random weight and return its name."""
        return self.constant(
            np.random.default_rng(self.count).uniform(low, high, shape).astype(np.float32)
        )

    def constant(self, value: np.ndarray) -> str:
        """Add a constant and return its name."""
        name = self.name()
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def read(self, shape: Sequence[int]) -> str:
        """Add an input and return its name."""
        name = self.name()
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))
        return name

    def write(self, name: str) -> None:
        """Make a value an output."""
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))

    def bytes(self) -> bytes:
        """Return the model as a file's bytes."""
        graph = helper.make_graph(self.nodes, "kernels", self.inputs, self.outputs, self.weights)
        return bytes(
            helper.make_model(
                graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9
            ).SerializeToString()
        )


def inputs_of(kernel: Kernel) -> tuple[tuple[int, ...], ...]:
    """Return shapes it reads; square maps where a description names only pixels."""
    if kernel.shapes_in:
        return kernel.shapes_in
    side = isqrt(kernel.hw_in)
    vector = kernel.hw_in == 1 and kernel.kind == "linear"
    shape = (
        (kernel.batch, kernel.cin)
        if vector
        else (kernel.batch, kernel.cin, side, kernel.hw_in // side)
    )
    return (shape,) * max(1, round(kernel.read_elements / prod(shape)))


def emit(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a kernel and its epilogue.

    What the epilogue adds comes after what the kernel itself reads.

    Raises UnsupportedOp when the kind has no ONNX form here.
    """
    operands = len(values) - kernel.epilogue.count("add")
    main, extra = values[:operands], values[operands:]
    if kernel.kind not in EMITTERS:
        raise UnsupportedOp(
            f"kind {kernel.kind!r} cannot be measured, kernel {kernel.name}, known are"
            f" {', '.join(EMITTERS)}"
        )
    out = EMITTERS[kernel.kind](model, kernel, main)
    for op in kernel.epilogue:
        out = model.add("Add", out, extra.pop(0)) if op == "add" else follow(model, kernel, op, out)
    return out


def follow(model: OnnxModelBuilder, kernel: Kernel, op: str, value: str) -> str:
    """Add an operator that follows a kernel and return its result.

    Raises UnsupportedOp when the operator has no ONNX form here.
    """
    if op in CLIPS:
        low, high = CLIPS[op]
        return model.add(
            "Clip",
            value,
            model.constant(np.float32(low)),  # type: ignore[arg-type]
            model.constant(np.float32(high)),  # type: ignore[arg-type]
        )
    if op == "silu":
        return model.add("Mul", value, model.add("Sigmoid", value))
    if op == "pow":
        return model.add("Pow", value, model.constant(np.float32(2.0)))  # type: ignore[arg-type]
    if op in ("shift", "scale"):
        return model.add("Add" if op == "shift" else "Mul", value, model.constant(np.float32(1.5)))  # type: ignore[arg-type]
    if op not in ACTIVATIONS:
        raise UnsupportedOp(
            f"operator {op!r} cannot be measured, kernel {kernel.name}, it has no ONNX form here"
        )
    name, attributes = ACTIVATIONS[op]
    return model.add(name, value, **attributes)  # type: ignore[arg-type]


def conv(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a convolution. Raises UnsupportedOp when it is not over maps."""
    window = kernel.kernel
    if len(inputs_of(kernel)[0]) != 4:
        raise UnsupportedOp(
            f"a convolution over {inputs_of(kernel)[0]} cannot be measured, kernel {kernel.name},"
            " it must be over maps"
        )
    weight = model.weight(kernel.cout, kernel.cin // kernel.groups, window, window)
    shape = {"kernel_shape": [window] * 2, "pads": padding(kernel), "strides": [kernel.stride] * 2}
    return model.add(
        "Conv",
        values[0],
        weight,
        model.weight(kernel.cout),
        group=kernel.groups,
        **shape,  # type: ignore[arg-type]
    )


def transposed_conv(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a transposed convolution whose map comes out with its size."""
    window = kernel.kernel
    weight = model.weight(kernel.cin, kernel.cout // kernel.groups, window, window)
    return model.add(
        "ConvTranspose",
        values[0],
        weight,
        model.weight(kernel.cout),
        group=kernel.groups,
        kernel_shape=[window] * 2,
        strides=[kernel.stride] * 2,
        output_shape=list(kernel.shape_out[-2:]),
    )


def padding(kernel: Kernel) -> list[int]:
    """Return padding that makes the map come out with its size, equal on both sides where
    possible.
    """
    sides = inputs_of(kernel)[0][-2:]
    outs = kernel.shape_out[-2:] or (isqrt(kernel.hw_out),) * 2
    total = [
        max(0, (out - 1) * kernel.stride + kernel.kernel - side)
        for side, out in zip(sides, outs, strict=True)
    ]
    return [-(-one // 2) for one in total] + [
        one // 2 if kernel.stride > 1 else -(-one // 2) for one in total
    ]


def linear(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a matrix product with bias."""
    if len(inputs_of(kernel)[0]) == 2:
        return model.add(
            "Gemm",
            values[0],
            model.weight(kernel.cout, kernel.cin),
            model.weight(kernel.cout),
            transB=1,
        )
    return model.add(
        "Add",
        model.add("MatMul", values[0], model.weight(kernel.cin, kernel.cout)),
        model.weight(kernel.cout),
    )


def pool(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a pooling. Raises UnsupportedOp when the operator has no ONNX form here."""
    if kernel.op not in WINDOWS:
        raise UnsupportedOp(
            f"operator {kernel.op!r} cannot be measured, kernel {kernel.name}, it has no ONNX form"
            " here"
        )
    window = [min(kernel.kernel, inputs_of(kernel)[0][-1])] * 2
    return model.add(
        WINDOWS[kernel.op],
        values[0],
        kernel_shape=window,
        strides=[kernel.stride] * 2,
        pads=padding(kernel),
    )


def gap(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a mean over all pixels."""
    rank = len(inputs_of(kernel)[0])
    return model.add(
        "ReduceMean",
        values[0],
        model.constant(np.arange(2, rank) if rank > 2 else np.array([1])),
        keepdims=1,
    )


BINARY = {"add": "Add", "sub": "Sub", "rsub": "Sub", "mul": "Mul", "div": "Div"}


def binary(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add an operator on two tensors, or on one and a number."""
    operand = values[1] if len(values) > 1 else model.constant(np.float32(1.5))  # type: ignore[arg-type]
    return model.add(BINARY.get(kernel.op, BINARY[kernel.kind]), values[0], operand)


def concat(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a concatenation."""
    return model.add("Concat", *values, axis=axis_of(kernel))


def axis_of(kernel: Kernel) -> int:
    """Return the axis along which a concatenation grows."""
    first = inputs_of(kernel)[0]
    return next(
        (i for i in range(len(first)) if kernel.shape_out and kernel.shape_out[i] != first[i]), 1
    )


def activation(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add an activation."""
    return follow(model, kernel, kernel.op, values[0])


def norm(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a normalization. Raises UnsupportedOp when it has no ONNX form."""
    if kernel.op == "batch_norm":
        return model.add(
            "BatchNormalization",
            values[0],
            *(model.weight(kernel.cin, low=0.5, high=1.5) for _ in range(4)),
        )
    if kernel.op == "layer_norm":
        width = inputs_of(kernel)[0][-1]
        return model.add(
            "LayerNormalization", values[0], model.weight(width), model.weight(width), axis=-1
        )
    raise UnsupportedOp(
        f"operator {kernel.op!r} cannot be measured, kernel {kernel.name}, it has no ONNX form here"
    )


def softmax(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a softmax over the last axis."""
    return model.add("Softmax", values[0], axis=-1)


def matmul(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a product of two computed matrices.

    Raises UnsupportedOp when the operator has no ONNX form here.
    """
    if kernel.op == ATTENTION:
        return attention(model, kernel, (values * 3)[:3])
    if kernel.op not in ("matmul", "bmm", "mm") or len(values) != 2:
        raise UnsupportedOp(
            f"operator {kernel.op!r} cannot be measured, kernel {kernel.name}, it has no ONNX form"
            " here"
        )
    return model.add("MatMul", values[0], values[1])


def attention(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add scaled dot-product attention as PyTorch's exporter writes it, without a mask."""
    rank = len(kernel.shapes_in[0])
    order = [*range(rank - 2), rank - 1, rank - 2]
    scale = model.constant(np.float32(kernel.shapes_in[0][-1] ** -0.25))  # type: ignore[arg-type]
    query = model.add("Mul", values[0], scale)
    key = model.add("Mul", model.add("Transpose", values[1], perm=order), scale)
    scores = model.add("Softmax", model.add("MatMul", query, key), axis=-1)
    return model.add("MatMul", scores, values[2])


def reshape(model: OnnxModelBuilder, kernel: Kernel, values: list[str]) -> str:
    """Add a movement of data. Raises UnsupportedOp when it has no ONNX form."""
    shape, axis = inputs_of(kernel)[0], 1
    if kernel.op in ("chunk", "split", "split_with_sizes", "unbind"):
        parts = max(2, kernel.write_elements // max(1, prod(kernel.shape_out)))
        axis = next(
            (i for i, (a, b) in enumerate(zip(shape, kernel.shape_out, strict=False)) if a != b), 1
        )
        return model.add("Split", values[0], outputs=parts, axis=axis, num_outputs=parts)
    if kernel.op in ("permute", "transpose", "channel_shuffle"):
        order = permutation(shape, kernel.shape_out)
        return model.add("Transpose", values[0], perm=order)
    if kernel.op == "slice":
        axis = next(
            (i for i, (a, b) in enumerate(zip(shape, kernel.shape_out, strict=True)) if a != b), 1
        )
        ends = model.constant(np.array([kernel.shape_out[axis]]))
        return model.add(
            "Slice",
            values[0],
            model.constant(np.array([0])),
            ends,
            model.constant(np.array([axis])),
        )
    if kernel.op == "upsample_nearest2d":
        scales = model.constant(
            np.array([b / a for a, b in zip(shape, kernel.shape_out, strict=True)], np.float32)
        )
        return model.add(
            "Resize",
            values[0],
            "",
            scales,
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
    if kernel.op in ("pad", "constant_pad_nd"):
        grown = [b - a for a, b in zip(shape, kernel.shape_out, strict=True)]
        pads = [g // 2 for g in grown] + [g - g // 2 for g in grown]
        return model.add("Pad", values[0], model.constant(np.array(pads)))
    raise UnsupportedOp(
        f"operator {kernel.op!r} cannot be measured, kernel {kernel.name}, it has no ONNX form here"
    )


def permutation(shape: tuple[int, ...], out: tuple[int, ...]) -> list[int]:
    """Return axes in the order in which the output has them.

    Equal sides keep their order unless nothing would move.
    """
    axes, order = list(range(len(shape))), []
    for size in out:
        axis = next((axis for axis in axes if shape[axis] == size), axes[0])
        axes.remove(axis)
        order.append(axis)
    return order if order != sorted(order) else [*order[:-2], order[-1], order[-2]]


EMITTERS: dict[str, Callable[[OnnxModelBuilder, Kernel, list[str]], str]] = {
    "conv": conv,
    "gconv": conv,
    "dwconv": conv,
    "linear": linear,
    "pool": pool,
    "gap": gap,
    "tconv": transposed_conv,
    "add": binary,
    "mul": binary,
    "concat": concat,
    "activation": activation,
    "norm": norm,
    "softmax": softmax,
    "matmul": matmul,
    "reshape": reshape,
}
