"""Shapes that ONNX operators write, by a rule each; None where a rule or a shape is not known.

A rule refuses what no runtime could compute: axes, groups, indices and sizes out of range, sides
that do not meet. Source: the operators' page of ONNX 1.23.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from math import prod

from nnstretch.bundle.model_files.onnx_file import OnnxAttribute, OnnxNode

Shape = tuple[int, ...]
MAX_WINDOW = 1 << 16
"""Of a kernel, a stride, a dilation or a pad."""
NO_ATTRIBUTE = OnnxAttribute()


@dataclass(frozen=True, slots=True)
class RuleContext:
    """A node with what is known of its inputs."""

    node: OnnxNode
    shapes: tuple[Shape | None, ...]
    """None for an input that was left out, or whose shape is not known."""
    numbers: tuple[Shape | None, ...]
    """Values of inputs that are few integers and known."""
    opset: int

    def shape(self, index: int) -> Shape | None:
        """Return an input's shape where it is known."""
        return self.shapes[index] if index < len(self.shapes) else None

    def known_numbers(self, index: int) -> Shape | None:
        """Return an input's integers where they are known."""
        return self.numbers[index] if index < len(self.numbers) else None

    def given(self, index: int) -> bool:
        """Return whether an input is there."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def integers(self, name: str, default: Shape = ()) -> Shape:
        """Return an attribute's numbers."""
        return self.node.attributes[name].integers if name in self.node.attributes else default

    def integer(self, name: str, default: int) -> int:
        """Return an attribute's number."""
        return (self.integers(name) or (default,))[0]

    def text(self, name: str) -> str:
        """Return an attribute's text."""
        return self.node.attributes.get(name, NO_ATTRIBUTE).text

    def axis(self, rank: int, default: int, most: int | None = None) -> int:
        """Return the attribute `axis`, counted from the front. Raises ValueError out of range."""
        return front_axis(self.integer("axis", default), rank, most)

    def settings(self, name: str, index: int) -> Shape | None:
        """Return numbers that older operators have as an attribute and newer ones as an input."""
        if name in self.node.attributes:
            return self.integers(name)
        return self.known_numbers(index)


Shapes = tuple[Shape | None, ...]
Rule = Callable[[RuleContext], Shapes]


def front_axis(axis: int, rank: int, most: int | None = None) -> int:
    """Return an axis counted from the front. Raises ValueError where there is none."""
    limit = rank - 1 if most is None else most
    if not -rank <= axis <= limit:
        raise ValueError(f"axis {axis} of a tensor of {rank} axes")
    return axis + rank if axis < 0 else axis


def broadcast(shapes: tuple[Shape, ...]) -> Shape:
    """Return what tensors become together. Raises ValueError where they do not meet."""
    sizes: list[int] = []
    for sides in zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1):
        wide = set(sides) - {1}
        if len(wide) > 1:
            raise ValueError(f"shapes {' and '.join(map(str, shapes))[:120]} do not broadcast")
        sizes.append(wide.pop() if wide else 1)
    return tuple(sizes[::-1])


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


def window_settings(context: RuleContext, spatial: int) -> tuple[Shape, Shape, Shape]:
    """Return strides, dilations and pads. Raises ValueError for wrong counts or sizes."""
    strides = context.integers("strides", (1,) * spatial)
    dilations = context.integers("dilations", (1,) * spatial)
    pads = context.integers("pads", (0,) * (2 * spatial))
    if (len(strides), len(dilations), len(pads)) != (spatial, spatial, 2 * spatial):
        raise ValueError(f"strides, dilations and pads do not fit {spatial} axes")
    if not all(1 <= step <= MAX_WINDOW for step in (*strides, *dilations)):
        raise ValueError(f"strides {strides}, dilations {dilations}, from 1 to {MAX_WINDOW}")
    if not all(0 <= pad <= MAX_WINDOW for pad in pads):
        raise ValueError(f"pads {pads}, from 0 to {MAX_WINDOW}")
    return strides, dilations, pads


def slide(context: RuleContext, sides: Shape, kernel: Shape) -> Shape:
    """Return the sides that a sliding window writes. Raises ValueError where it does not fit."""
    spatial = len(sides)
    if len(kernel) != spatial or not all(1 <= side <= MAX_WINDOW for side in kernel):
        raise ValueError(f"a kernel of {kernel} on {sides}")
    strides, dilations, pads = window_settings(context, spatial)
    automatic = context.text("auto_pad")
    written: list[int] = []
    for axis, side in enumerate(sides):
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        if automatic.startswith("SAME"):
            written.append(-(-side // strides[axis]))
            continue
        padded = side + (0 if automatic == "VALID" else pads[axis] + pads[axis + spatial])
        room = padded - reach
        if room < 0:
            raise ValueError(f"a kernel of {kernel} on {sides}, it does not fit")
        steps = room // strides[axis]
        written.append(steps + 1)
    return tuple(written)


def conv(context: RuleContext) -> Shapes:
    """Return a convolution's output: channels of the filters, sides of the window."""
    source, filters = context.shape(0), context.shape(1)
    if source is None or filters is None:
        return (None,)
    groups = context.integer("group", 1)
    fits = len(source) == len(filters) >= 3 and groups >= 1
    if not fits or filters[1] * groups != source[1] or filters[0] % groups:
        raise ValueError(f"filters of {filters} in {groups} groups on {source}")
    kernel = context.integers("kernel_shape", filters[2:])
    if kernel != filters[2:]:
        raise ValueError(f"kernel_shape {kernel[:8]} with filters of {filters}")
    bias = context.shape(2)
    if context.given(2) and bias not in (None, (filters[0],)):
        raise ValueError(f"a bias of {bias} for {filters[0]} channels")
    return ((source[0], filters[0], *slide(context, source[2:], kernel)),)


def conv_transpose(context: RuleContext) -> Shapes:
    """Return a transposed convolution's output."""
    source, filters = context.shape(0), context.shape(1)
    if source is None or filters is None:
        return (None,)
    groups, spatial = context.integer("group", 1), len(source) - 2
    if not (len(source) == len(filters) >= 3 and groups >= 1) or filters[0] != source[1]:
        raise ValueError(f"filters of {filters} in {groups} groups on {source}")
    strides, dilations, pads = window_settings(context, spatial)
    extra = context.integers("output_padding", (0,) * spatial)
    if len(extra) != spatial or not all(0 <= side <= MAX_WINDOW for side in extra):
        raise ValueError(f"output_padding {extra[:8]} on {source}")
    if context.text("auto_pad") not in ("", "NOTSET") or context.integers("output_shape"):
        return (None,)
    sides: list[int] = []
    for axis, side in enumerate(source[2:]):
        reach = dilations[axis] * (filters[2 + axis] - 1) + 1
        padded = strides[axis] * (side - 1) + extra[axis] + reach
        sides.append(padded - pads[axis] - pads[axis + spatial])
    if min(sides) < 1:
        raise ValueError(f"it writes sides of {tuple(sides)}")
    return ((source[0], filters[1] * groups, *sides),)


def pool(context: RuleContext) -> Shapes:
    """Return a pooling's output, and that of its indices."""
    source = context.shape(0)
    if source is None:
        return (None, None)
    if len(source) < 3:
        raise ValueError(f"pooling of {source}")
    shape = (*source[:2], *slide(context, source[2:], context.integers("kernel_shape")))
    if context.integer("ceil_mode", 0):
        return (None, None)  # whether a last window may begin in the padding differs by version
    return (shape, shape)


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
