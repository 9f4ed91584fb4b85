"""Shapes that convolutions and pools of ONNX write. Source: the operators' page of ONNX 1.23."""

from __future__ import annotations

from nnstretch.bundle.model_files.rule_context import MAX_WINDOW, RuleContext, Shape, Shapes


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
