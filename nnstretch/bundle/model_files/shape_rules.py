"""Shapes that ONNX operators write, by a rule each; None where a rule or a shape is not known.

A rule refuses what no runtime could compute: axes, groups, indices and sizes out of range, sides
that do not meet. Source: the operators' page of ONNX 1.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from nnstretch.bundle.model_files.rule_context import (
    Rule,
    RuleContext,
    Shapes,
    broadcast,
    front_axis,
)
from nnstretch.bundle.model_files.window_rules import conv, conv_transpose, pool


def same(context: RuleContext) -> Shapes:
    """Return the first input's shape."""
    return (context.shape(0),)


def elementwise(context: RuleContext) -> Shapes:
    """Return the inputs' shape, broadcast."""
    known = [shape for shape in context.shapes if shape is not None]
    if len(known) != len(context.node.inputs):
        return (None,)
    return (broadcast(tuple(known)),)


def concat(context: RuleContext) -> Shapes:
    """Return inputs side by side along an axis."""
    known = [shape for shape in context.shapes if shape is not None]
    if not known or len(known) != len(context.shapes):
        return (None,)
    axis = context.axis(len(known[0]), 1)
    around = {(*shape[:axis], *shape[axis + 1 :]) for shape in known}
    if len(around) > 1 or len({len(shape) for shape in known}) > 1:
        raise ValueError(f"shapes {' and '.join(map(str, known))[:120]} side by side on {axis}")
    return ((*known[0][:axis], sum(shape[axis] for shape in known), *known[0][axis + 1 :]),)


def global_pool(context: RuleContext) -> Shapes:
    """Return one number for each channel."""
    source = context.shape(0)
    if source is None:
        return (None,)
    if len(source) < 3:
        raise ValueError(f"pooling of {source}")
    return ((*source[:2], *(1 for _ in source[2:])),)


def batch_norm(context: RuleContext) -> Shapes:
    """Return the input's shape; statistics are one for each channel."""
    source = context.shape(0)
    for index in range(1, 5):
        shape = context.shape(index)
        if source is not None and shape is not None and shape != source[1:2]:
            raise ValueError(f"statistics of {shape} for a tensor of {source}")
    return (source,)


def gemm(context: RuleContext) -> Shapes:
    """Return a matrix product with a bias."""
    rows, columns, bias = context.shape(0), context.shape(1), context.shape(2)
    if rows is None or columns is None:
        return (None,)
    if len(rows) != 2 or len(columns) != 2:
        raise ValueError(f"a product of {rows} and {columns}")
    if context.integer("transA", 0):
        rows = rows[::-1]
    if context.integer("transB", 0):
        columns = columns[::-1]
    if rows[1] != columns[0]:
        raise ValueError(f"a product of {rows} and {columns}")
    shape = (rows[0], columns[1])
    if bias is not None and broadcast((bias, shape)) != shape:
        raise ValueError(f"a bias of {bias} for {shape}")
    return (shape,)


def matmul(context: RuleContext) -> Shapes:
    """Return a product of stacks of matrices."""
    first, second = context.shape(0), context.shape(1)
    if first is None or second is None:
        return (None,)
    if not first or not second:
        raise ValueError(f"a product of {first} and {second}")
    rows = (1, *first) if len(first) == 1 else first
    columns = (*second, 1) if len(second) == 1 else second
    if rows[-1] != columns[-2]:
        raise ValueError(f"a product of {first} and {second}")
    ends = (*rows[-2:-1][: len(first) > 1], *columns[-1:][: len(second) > 1])
    return ((*broadcast((rows[:-2], columns[:-2])), *ends),)


def flatten(context: RuleContext) -> Shapes:
    """Return two axes."""
    source = context.shape(0)
    if source is None:
        return (None,)
    axis = context.axis(len(source), 1, most=len(source))
    return ((prod(source[:axis]), prod(source[axis:])),)


def reshape(context: RuleContext) -> Shapes:
    """Return the sizes asked for; at most one is left to be computed."""
    source, sizes = context.shape(0), context.settings("shape", 1)
    if source is None or sizes is None:
        return (None,)
    wanted: list[int] = []
    for axis, size in enumerate(sizes):
        if size == 0 and not context.integer("allowzero", 0):
            if axis >= len(source):
                raise ValueError(f"{source} as {sizes[:16]}")
            size = source[axis]
        wanted.append(size)
    if wanted.count(-1) == 1:
        factor = prod(size for size in wanted if size != -1)
        wanted[wanted.index(-1)] = prod(source) // factor if factor > 0 else -1
    if any(size < 0 for size in wanted) or prod(wanted) != prod(source):
        raise ValueError(f"{source} as {sizes[:16]}, the numbers of elements differ")
    return (tuple(wanted),)


def transpose(context: RuleContext) -> Shapes:
    """Return axes in another order."""
    source = context.shape(0)
    if source is None:
        return (None,)
    order = context.integers("perm", tuple(range(len(source)))[::-1])
    if sorted(order) != list(range(len(source))):
        raise ValueError(f"perm {order[:16]} of a tensor of {len(source)} axes")
    return (tuple(source[axis] for axis in order),)


def reduce(context: RuleContext) -> Shapes:
    """Return what is left where axes are reduced to one number."""
    source, axes = context.shape(0), context.settings("axes", 1)
    if source is None or (axes is None and context.given(1)):
        return (None,)
    if not axes and context.integer("noop_with_empty_axes", 0):
        return (source,)
    reduced = {front_axis(axis, len(source)) for axis in axes or range(len(source))}
    if context.integer("keepdims", 1):
        return (tuple(1 if axis in reduced else size for axis, size in enumerate(source)),)
    return (tuple(size for axis, size in enumerate(source) if axis not in reduced),)


def arg_reduce(context: RuleContext) -> Shapes:
    """Return what is left where one axis becomes an index."""
    source = context.shape(0)
    if source is None:
        return (None,)
    axis = context.axis(len(source), 0)
    kept = (1,) if context.integer("keepdims", 1) else ()
    return ((*source[:axis], *kept, *source[axis + 1 :]),)


def along_axis(context: RuleContext) -> Shapes:
    """Return the input's shape; the axis has to be one of it."""
    source = context.shape(0)
    if source is not None:
        context.axis(len(source), -1)
    return (source,)


def constant(context: RuleContext) -> Shapes:
    """Return a constant's shape."""
    attributes = context.node.attributes
    if "value" in attributes:
        tensor = attributes["value"].tensor
        return (None if tensor is None else tensor.shape,)
    if "value_ints" in attributes:
        return ((len(attributes["value_ints"].integers),),)
    return ((),) if "value_int" in attributes or "value_float" in attributes else (None,)


RULES: Mapping[str, Rule] = (
    dict.fromkeys(
        (
            *("Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Celu", "Sigmoid", "HardSigmoid"),
            *("HardSwish", "Tanh", "Softplus", "Softsign", "Gelu", "Mish", "Erf", "Exp", "Log"),
            *("Sqrt", "Reciprocal", "Neg", "Abs", "Floor", "Ceil", "Round", "Sign", "Sin", "Cos"),
            *("Not", "Identity", "Clip", "Cast", "Dropout", "QuantizeLinear", "DequantizeLinear"),
            *("InstanceNormalization", "GroupNormalization", "LRN", "CumSum", "IsNaN", "Trilu"),
        ),
        same,
    )
    | dict.fromkeys(
        (
            *("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Mean", "Sum", "Equal", "Less"),
            *("Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Xor", "Where", "Mod"),
        ),
        elementwise,
    )
    | dict.fromkeys(
        (
            *("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1"),
            *("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
        ),
        reduce,
    )
    | dict.fromkeys(("Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization"), along_axis)
    | dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), pool)
    | dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), global_pool)
    | dict.fromkeys(("ArgMax", "ArgMin"), arg_reduce)
    | {
        "Concat": concat,
        "Conv": conv,
        "ConvTranspose": conv_transpose,
        "BatchNormalization": batch_norm,
        "Gemm": gemm,
        "MatMul": matmul,
        "Flatten": flatten,
        "Reshape": reshape,
        "Transpose": transpose,
        "Constant": constant,
    }
)
