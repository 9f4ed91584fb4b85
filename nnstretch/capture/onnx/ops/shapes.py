"""ONNX operators that only reshape or repeat, with the batch kept open where it can be."""

from __future__ import annotations

from math import prod

import torch

from nnstretch.capture.onnx.graph_builder import (
    BATCH_SIZE,
    FixedBatch,
    OnnxValue,
    count_elements,
    require_batch_independent,
)
from nnstretch.capture.onnx.translation_context import NodeContext

MAX_RANGE_ELEMENTS = 2**24
Sizes = tuple[int, ...]


def shape(call: NodeContext) -> OnnxValue:
    """Translate Shape: a constant for every batch size."""
    x = call.input(0)
    start = call.get_attribute("start", 0)
    end = call.get_attribute("end", None)
    return OnnxValue(
        tuple(torch.tensor(p.shape[start:end], dtype=torch.int64) for p in x.probes), True
    )


def size(call: NodeContext) -> OnnxValue:
    """Translate Size: a constant for every batch size."""
    return OnnxValue(tuple(torch.tensor(p.numel()) for p in call.input(0).probes), True)


def reshape(call: NodeContext) -> OnnxValue:
    """Translate Reshape; 0 keeps a size, -1 is what remains."""
    x = call.input(0)
    sizes = call.optional_input(1)
    if sizes is None:
        sizes = call.builder.add_constant(
            torch.tensor(call.get_attribute("shape", ()), dtype=torch.int64)
        )
    target = call.require_constant(sizes)
    wanted: list[Sizes] = []
    for probe, source in zip(target.probes, x.probes, strict=True):
        wanted.append(resolve_target_shape(call, probe.tolist(), tuple(source.shape)))
    open_size = call.builder.open_batch and -1 in target.probes[0].tolist()
    constant_target = not (target.varies_with_batch or open_size)
    return emit_reshape(call, x, wanted, constant_target)


def resolve_target_shape(call: NodeContext, target: list[int], source: Sizes) -> Sizes:
    """Return a reshape's target without ONNX's 0 (copied) and -1 (the remainder)."""
    if not call.get_attribute("allowzero", 0):
        target = [source[i] if d == 0 and i < len(source) else d for i, d in enumerate(target)]
    known = prod(d for d in target if d != -1)
    remainder = count_elements(source) // known if known else 0
    return tuple(remainder if d == -1 else d for d in target)


def emit_reshape(
    call: NodeContext, x: OnnxValue, wanted: list[Sizes], constant_target: bool
) -> OnnxValue:
    """Emit a reshape whose target agrees with every probed batch size.

    Raises FixedBatch when the target fits one batch size only.
    """
    first = wanted[0]
    # A constant target says nothing of the other batch sizes.
    start = flatten_start(x, wanted[:1] if constant_target else wanted)
    if start is not None and start > 0:
        return call.emit("flatten.using_ints", x, start)
    if x.constant and x.varies_with_batch:
        raise FixedBatch(f"{call.location} reshapes a constant that depends on the batch")
    if x.constant or len(wanted) == 1 or all(p.shape == x.probes[0].shape for p in x.probes):
        return call.emit("reshape", x, first)
    assert call.builder.input is not None
    at = batch_dimension(x, first, call.builder.input.shape[0]) if constant_target else None
    if at is None:
        differing = varying_dimensions(wanted)
        if len(differing) != 1:
            raise FixedBatch(f"{call.location} reshapes to {wanted}")
        at = differing[0]
    return call.emit("reshape", x, (*first[:at], -1, *first[at + 1 :]))


def varying_dimensions(shapes: list[Sizes]) -> list[int]:
    """Return the dimensions whose size differs between shapes of one rank."""
    return [i for i, sizes in enumerate(zip(*shapes, strict=True)) if len(set(sizes)) > 1]


def flatten_start(x: OnnxValue, wanted: list[Sizes]) -> int | None:
    """Return the dimension from which on the targets are one run of the source, or None."""
    start = len(wanted[0]) - 1
    if any(p.shape[start:] != x.probes[0].shape[start:] for p in x.probes):
        return None
    kept = all(p.shape[:start] == w[:start] for p, w in zip(x.probes, wanted, strict=False))
    if not 0 <= start < x.rank - 1 or not kept:
        return None
    return start if wanted[0][start] == count_elements(x.shape[start:]) else None


def batch_dimension(x: OnnxValue, wanted: Sizes, batch: int) -> int | None:
    """Return the dimension of a target that carries the batch.

    The one behind as many elements as in the source. Where dimensions are merged, the batch goes
    into the one before it; where a merged one is divided, it comes out as the part of the batch's
    own size.
    """
    if count_elements(wanted) != count_elements(x.shape):
        return None
    at = varying_dimensions([tuple(p.shape) for p in x.probes])[0]
    before = count_elements(x.shape[:at])
    after = count_elements(x.shape[at + 1 :])
    heads = [count_elements(wanted[:k]) for k in range(len(wanted))]
    last = before * x.shape[at]
    inside = [k for k, head in enumerate(heads) if before <= head <= last and wanted[k] == batch]
    if len(wanted) > x.rank and inside:
        return inside[0]
    position = heads.index(before) if before in heads else None
    if position and len(wanted) < x.rank and count_elements(wanted[position:]) == after:
        return position - 1
    return position


def flatten(call: NodeContext) -> OnnxValue:
    """Translate Flatten: two dimensions, divided at an axis."""
    x = call.input(0)
    axis = call.get_attribute("axis", 1)
    axis = axis + x.rank if axis < 0 else axis
    if axis == 1 and x.rank > 1:
        return call.emit("flatten.using_ints", x, 1)
    wanted: list[Sizes] = []
    for p in x.probes:
        wanted.append((p.shape[:axis].numel(), p.shape[axis:].numel()))
    return emit_reshape(call, x, wanted, constant_target=False)


def squeeze(call: NodeContext) -> OnnxValue:
    """Translate Squeeze. Raises UnsupportedOp when it could drop the batch."""
    x = call.input(0)
    axes = call.int_values(1, "axes")
    if axes is None:
        if any(1 in p.shape[:1] for p in x.probes) and not x.constant:
            raise call.unsupported_error("without axes it would also drop a batch of one")
        axes = tuple(i for i, d in enumerate(x.shape) if d == 1)
    return call.emit("squeeze.dims", x, axes) if axes else x


def unsqueeze(call: NodeContext) -> OnnxValue:
    """Translate Unsqueeze."""
    x = call.input(0)
    axes = call.int_values(1, "axes") or ()
    for axis in sorted(a % (x.rank + len(axes)) for a in axes):
        x = call.emit("unsqueeze", x, axis)
    return x


def transpose(call: NodeContext) -> OnnxValue:
    """Translate Transpose."""
    x = call.input(0)
    order = tuple(call.get_attribute("perm", tuple(reversed(range(x.rank)))))
    return call.emit("permute", x, order)


def concat(call: NodeContext) -> OnnxValue:
    """Translate Concat; a constant beside a batch (a class token) is repeated for every input."""
    values = [call.input(i) for i in range(len(call.node.input)) if call.node.input[i]]
    values = [v for v in values if v.shape != (0,)] or values[:1]
    moving = next((v for v in values if not v.constant), None)
    axis = call.get_attribute("axis") % values[0].rank
    if moving is not None:
        require_batch_independent(moving, axis, call.location)
        for i, value in enumerate(values):
            if value.constant and not value.varies_with_batch:
                values[i] = expand_along_batch(call, value, moving, axis)
    return call.emit("cat", tuple(values), axis)


def expand_along_batch(
    call: NodeContext, value: OnnxValue, beside: OnnxValue, axis: int
) -> OnnxValue:
    """Expand a constant along the batch axis of the value it is joined with."""
    varying = varying_dimensions([tuple(p.shape) for p in beside.probes])
    open_dims = [i for i in varying if i != axis]
    if not open_dims:
        return value
    batch_dim = open_dims[0]
    if value.shape[batch_dim] != 1:
        value = single_batch_entry(call, value, batch_dim)
    sizes: list[object] = [-1] * value.rank
    sizes[batch_dim] = BATCH_SIZE
    return call.emit("expand", value, tuple(sizes))


def single_batch_entry(call: NodeContext, value: OnnxValue, axis: int) -> OnnxValue:
    """Return a constant that holds the same numbers for every input of the batch, once.

    Raises FixedBatch when the constant differs between inputs.
    """
    first = call.emit("slice.Tensor", value, axis, 0, 1)
    if not torch.equal(first.constant_data.expand_as(value.constant_data), value.constant_data):
        raise FixedBatch(f"{call.location} joins a constant that differs between inputs")
    return call.emit("clone", first)


def broadcast_shape(first: Sizes, second: list[int]) -> Sizes:
    """Return the shape that two shapes broadcast to."""
    return tuple(torch.broadcast_shapes(first, tuple(second)))  # type: ignore[no-untyped-call]


def expand(call: NodeContext) -> OnnxValue:
    """Translate Expand. Raises FixedBatch when the target fits one batch size only."""
    x = call.input(0)
    target = call.require_constant(call.input(1))
    wanted: list[Sizes] = []
    for probe, source in zip(target.probes, x.probes, strict=True):
        wanted.append(broadcast_shape(tuple(source.shape), probe.tolist()))
    if x.constant and not target.varies_with_batch:
        if x.shape == wanted[0]:
            return x
        return call.emit("clone", call.emit("expand", x, wanted[0]))
    if all(v.shape == w for v, w in zip(x.probes, wanted, strict=True)):
        return x
    assert call.builder.input is not None
    batches = tuple(p.shape[0] for p in call.builder.input.probes)
    lead = len(wanted[0]) - x.rank
    sizes: list[object] = []
    for i, column in enumerate(zip(*wanted, strict=True)):
        if i >= lead and tuple(p.shape[i - lead] for p in x.probes) == column:
            sizes.append(-1)
        elif len(set(column)) == 1:
            sizes.append(column[0])
        elif column == batches:
            sizes.append(BATCH_SIZE)
        else:
            raise FixedBatch(f"{call.location} expands to {wanted}")
    return call.emit("expand", x, tuple(sizes))


def constant_of_shape(call: NodeContext) -> OnnxValue:
    """Translate ConstantOfShape."""
    sizes = call.require_constant(call.input(0))
    fill = call.get_attribute("value")
    fill = torch.zeros(1) if fill is None else fill
    filled = call.builder.add_constant(fill.reshape(()))
    if not sizes.varies_with_batch:
        return call.emit("clone", call.emit("expand", filled, tuple(sizes.constant_data.tolist())))
    return OnnxValue(
        tuple(fill.reshape(()).expand(tuple(p.tolist())).clone() for p in sizes.probes), True
    )


def range_(call: NodeContext) -> OnnxValue:
    """Translate Range over constants.

    Raises UnsupportedOp when the range is empty of sense or too long.
    """
    bounds = [call.require_constant(call.input(i)).probes for i in range(3)]
    tensors: list[torch.Tensor] = []
    for low, high, step in zip(*bounds, strict=True):
        if not step or abs((high - low) / step) > MAX_RANGE_ELEMENTS:
            raise call.unsupported_error(
                f"a range from {low.item()} to {high.item()} in steps of {step.item()}"
            )
        tensors.append(torch.arange(low.item(), high.item(), step.item(), dtype=low.dtype))
    return OnnxValue(tuple(tensors), True)


SHAPE_RULES = {
    "Shape": shape,
    "Size": size,
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Transpose": transpose,
    "Concat": concat,
    "Expand": expand,
    "ConstantOfShape": constant_of_shape,
    "Range": range_,
}
