"""ONNX products of matrices, and the bias that a file adds behind a layer."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from nnstretch.capture.onnx.graph_builder import OnnxValue
from nnstretch.capture.onnx.ops.norms import expand_parameter
from nnstretch.capture.onnx.translation_context import NodeContext, TranslationRule
from nnstretch.graph import Node, ValueRef


def gemm(call: NodeContext) -> OnnxValue:
    """Translate Gemm: alpha * A B + beta * C, with both factors folded into constants."""
    x = call.input(0)
    if call.get_attribute("transA", 0):
        x = call.emit("permute", x, (1, 0))
    weight = call.input(1)
    reads_bias = call.get_attribute("beta", 1.0) != 0  # not even where it is infinite
    bias = call.optional_input(2) if reads_bias else None
    if not weight.constant or (bias is not None and not bias.constant):
        return computed_gemm(call, x, weight, bias)
    if not call.get_attribute("transB", 0):
        weight = transpose_weight(call, weight)
    weight = scaled(call, weight, "alpha")
    if bias is None:
        return emit_linear(call, x, weight, None)
    bias = scaled(call, bias, "beta")
    if prod(bias.shape[:-1]) == 1:
        flat = call.emit("flatten.using_ints", bias)
        bias = expand_parameter(call, flat, weight.shape[:1])
    if bias.rank != 1:
        return call.emit("add.Tensor", emit_linear(call, x, weight, None), bias)
    return emit_linear(call, x, weight, bias)


def computed_gemm(
    call: NodeContext, x: OnnxValue, matrix: OnnxValue, bias: OnnxValue | None
) -> OnnxValue:
    """Translate a Gemm whose matrix or bias depends on the input."""
    if call.get_attribute("transB", 0):
        matrix = call.emit("permute", matrix, (1, 0))
    product = scaled(call, call.emit("matmul", x, matrix), "alpha")
    if bias is None:
        return product
    return call.emit("add.Tensor", product, scaled(call, bias, "beta"))


def scaled(call: NodeContext, value: OnnxValue, factor_name: str) -> OnnxValue:
    """Return a value times a factor among the attributes."""
    factor = call.get_attribute(factor_name, 1.0)
    return value if factor == 1 else call.emit("mul.Tensor", value, factor)


def transpose_weight(call: NodeContext, weight: OnnxValue) -> OnnxValue:
    """Return the transposed weight, the same one for every reader."""
    transposed = call.builder.transposed_weights
    key = id(weight.constant_data)
    if key not in transposed:
        transposed[key] = call.emit("contiguous", call.emit("permute", weight, (1, 0)))
    return transposed[key]


def emit_linear(
    call: NodeContext, x: OnnxValue, weight: OnnxValue, bias: OnnxValue | None
) -> OnnxValue:
    """Emit a linear layer."""
    return call.emit("linear", x, *call.layer_weights(weight, bias))


def matmul(call: NodeContext) -> OnnxValue:
    """Translate MatMul; with a constant matrix it is a linear layer."""
    x = call.input(0)
    y = call.input(1)
    if y.constant and y.rank == 2 and not x.constant:
        return emit_linear(call, x, transpose_weight(call, y), None)
    return call.emit("matmul", x, y)


def add_bias(call: NodeContext, x: OnnxValue, bias: OnnxValue) -> OnnxValue | None:
    """Fold a bias added behind a linear layer or a convolution into it; None where it is none."""
    builder = call.builder
    node = builder.nodes.get(x.name or "")
    if node is None or node.kind not in ("linear", "conv2d") or node.args[2] is not None:
        return None
    if not bias.constant or not is_bias(node, x, bias) or builder.count_readers(x) != 1:
        return None
    assert isinstance(node.args[1], ValueRef)
    path = node.args[1].name.rpartition(".")[0]
    data = bias.constant_data.flatten()
    name = builder.add_weight(f"{path}.bias" if path else "bias", data, trainable=True)
    args = (*node.args[:2], ValueRef(name), *node.args[3:])
    macs = node.macs + node.output.elements
    builder.nodes[node.name] = replace(node, args=args, macs=macs)
    return x


def is_bias(node: Node, x: OnnxValue, bias: OnnxValue) -> bool:
    """Return whether a constant has one number per channel of what a layer writes."""
    if bias.rank > x.rank:
        return False
    channel = x.rank - 1 if node.kind == "linear" else 1
    shape = [1] * x.rank
    shape[channel] = x.shape[channel]
    return (1,) * (x.rank - bias.rank) + bias.shape == tuple(shape)


PRODUCT_RULES: dict[str, TranslationRule] = {"Gemm": gemm, "MatMul": matmul}
