"""What a kernel's shapes say: axes, padding and orders that its description leaves out."""

from __future__ import annotations

from math import isqrt, prod

from nnstretch.kernel import Kernel
from nnstretch.structure.kernel_operators import TRANSPOSED_KIND

Shape = tuple[int, ...]


def input_shapes(kernel: Kernel) -> tuple[Shape, ...]:
    """Return the shapes that a kernel reads; square maps where only pixels are known."""
    if kernel.shapes_in:
        return kernel.shapes_in
    if kernel.hw_in == 1 and kernel.kind == "linear":
        shape: Shape = (kernel.batch, kernel.cin)
    else:
        side = isqrt(kernel.hw_in)
        shape = (kernel.batch, kernel.cin, side, kernel.hw_in // side)
    return (shape,) * max(1, round(kernel.read_elements / prod(shape)))


def operand_count(kernel: Kernel) -> int:
    """Return how many inputs the main operator reads; the others are sums of the epilogue."""
    return len(input_shapes(kernel)) - kernel.epilogue.count("add")


def window_of(kernel: Kernel) -> tuple[int, int]:
    """Return the height and width of a convolution's window.

    A kernel knows the longer side, and its work tells how many taps there are. Where the maps do
    not tell which side is the longer one, the window is wider than high.
    """
    (height, width), (height_out, width_out) = map_sides(kernel)
    written = kernel.batch * kernel.cout * height_out * width_out
    slides = written * max(1, kernel.cin // kernel.groups)
    rows, columns = height - height_out * kernel.stride, width - width_out * kernel.stride
    if kernel.kind == TRANSPOSED_KIND:
        read = kernel.batch * kernel.cin * height * width
        slides = read * max(1, kernel.cout // kernel.groups)
        rows, columns = height_out - height * kernel.stride, width_out - width * kernel.stride
    side = kernel.kernel
    # A bias adds no whole row of taps.
    short_side = min(side, max(1, kernel.macs // max(1, slides * side)))
    # What strides leave over of rows is less than the window's; a longer window takes more.
    is_upright = width == 1 < height or rows >= short_side or rows - columns >= kernel.stride
    return (side, short_side) if is_upright else (short_side, side)


def pool_window(kernel: Kernel) -> tuple[int, int]:
    """Return the height and width of a pool's window: a square where it is not described, but
    along an axis of one pixel.
    """
    if len(kernel.window) == 2:
        return kernel.window[0], kernel.window[1]
    sides, outs = map_sides(kernel)
    rows, columns = (
        1 if side == out == 1 else kernel.kernel for side, out in zip(sides, outs, strict=True)
    )
    return rows, columns


def window_strides(kernel: Kernel, window: tuple[int, int]) -> tuple[int, int]:
    """Return the strides of rows and columns that give a map its described size.

    A kernel is described by the larger one.
    """
    larger = max(1, kernel.stride)
    strides = range(larger, 0, -1)
    rows, columns = (
        next((stride for stride in strides if is_stride(stride, *axis)), larger)
        for axis in zip(*map_sides(kernel), window, strict=True)
    )
    return rows, columns


def is_stride(stride: int, side: int, out: int, reach: int) -> bool:
    """Return whether an axis is `out` long behind windows of this stride, usually padded."""
    begin, end = axis_padding(stride, side, out, reach)
    return begin <= reach // 2 and (side + begin + end - reach) // stride + 1 == out


def window_padding(kernel: Kernel, window: tuple[int, int]) -> list[int]:
    """Return the padding that gives a map its described size: both begins, then both ends.

    Both ends are alike where that is possible.
    """
    axes = zip(window_strides(kernel, window), *map_sides(kernel), window, strict=True)
    begins, ends = zip(*(axis_padding(*axis) for axis in axes), strict=True)
    return [*begins, *ends]


def axis_padding(stride: int, side: int, out: int, reach: int) -> tuple[int, int]:
    """Return the padding at both ends of an axis that gives it its described size."""
    total = max(0, (out - 1) * stride + reach - side)
    begin = -(-total // 2)
    return begin, total // 2 if stride > 1 else begin


def map_sides(kernel: Kernel) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return height and width of the map that is read, then of the map that is written."""
    height, width = input_shapes(kernel)[0][-2:]
    height_out, width_out = kernel.shape_out[-2:] or (isqrt(kernel.hw_out),) * 2
    return (height, width), (height_out, width_out)


def changed_axis(shape: Shape, out: Shape, default: int) -> int:
    """Return the first axis whose size differs between two shapes."""
    for axis, (size, size_out) in enumerate(zip(shape, out, strict=False)):
        if size != size_out:
            return axis
    return default


def growth(shape: Shape, out: Shape) -> list[tuple[int, int]]:
    """Return how much each axis grows at its begin and at its end."""
    more = [size_out - size for size, size_out in zip(shape, out, strict=True)]
    return [(size // 2, size - size // 2) for size in more]


def permutation(shape: Shape, out: Shape) -> list[int]:
    """Return axes in the order in which the output has them.

    Equal sides keep their order unless nothing would move.
    """
    axes, order = list(range(len(shape))), []
    for size in out:
        axis = next((axis for axis in axes if shape[axis] == size), axes[0])
        axes.remove(axis)
        order.append(axis)
    return order if order != sorted(order) else [*order[:-2], order[-1], order[-2]]
