"""ONNX operators that pick, cut or pad: never along the batch."""

from __future__ import annotations

import torch

from nnstretch.capture.onnx.graph_builder import (
    OnnxValue,
    count_elements,
    require_batch_independent,
)
from nnstretch.capture.onnx.ops.shapes import emit_reshape
from nnstretch.capture.onnx.translation_context import NodeContext, TranslationRule

INT32_MAX = 2**31 - 1


def split(call: NodeContext) -> tuple[OnnxValue, ...]:
    """Translate Split into equal parts or given sizes.

    Raises UnsupportedOp when the sizes do not add up.
    """
    x = call.input(0)
    axis = call.get_attribute("axis", 0) % x.rank
    require_batch_independent(x, axis, call.location)
    sizes = call.int_values(1, "split")
    count = call.get_attribute("num_outputs", len(call.node.output))
    total = x.shape[axis]
    if sizes is None or (len(set(sizes)) == 1 and sum(sizes) == total):
        whole = total // count if total % count == 0 else total // count + 1
        if sizes is not None or len(range(0, total, whole)) == count:
            return call.emit_all("chunk", x, len(sizes) if sizes else count, axis)
    if sizes is None or sum(sizes) != total:
        raise call.unsupported_error(f"{list(sizes or ())} does not divide {total} into {count}")
    return call.emit_all("split_with_sizes", x, sizes, axis)


def slice_(call: NodeContext) -> OnnxValue:
    """Translate Slice, axis by axis. Raises UnsupportedOp when starts or ends are missing."""
    x = call.input(0)
    starts = call.int_values(1, "starts")
    ends = call.int_values(2, "ends")
    if starts is None or ends is None:
        raise call.unsupported_error("without starts or ends")
    axes = call.int_values(3, "axes")
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = call.int_values(4, "steps") or (1,) * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        x = slice_axis(call, x, axis % x.rank, start, end, step)
    return x


def slice_axis(
    call: NodeContext, x: OnnxValue, axis: int, start: int, end: int, step: int
) -> OnnxValue:
    """Emit a slice of one axis; bounds are clamped to the axis."""
    total = x.shape[axis]
    if start == 0 and end >= total and step == 1:
        return x
    require_batch_independent(x, axis, call.location)
    if step < 0:
        # ONNX begins at the front where a start lies before it; Python takes nothing there.
        picked = range(total)[max(start, -total) : end if end >= -total else None : step]
        if picked == range(total)[::-1]:
            return call.emit("flip", x, (axis,))
        index = call.builder.add_constant(torch.tensor(picked, dtype=torch.int64))
        return call.emit("index_select", x, axis, index)
    return call.emit("slice.Tensor", x, axis, start, min(end, INT32_MAX), step)


def gather(call: NodeContext) -> OnnxValue:
    """Translate Gather with constant indices, or with ids of rows of a constant table.

    Ids are not counted from the end: PyTorch refuses negative ones whenever it runs. Raises
    UnsupportedOp when indices into anything else come from the input.
    """
    x = call.input(0)
    index = call.input(1)
    axis = call.get_attribute("axis", 0) % x.rank
    if x.constant and not index.constant:
        if axis or x.rank != 2:
            raise call.unsupported_error(
                f"indices from the input along dimension {axis} of {list(x.shape)}"
            )
        return call.emit("embedding", x, index)
    whole = gather_as_reshape(call, x, index)
    if whole is not None:
        return whole
    require_batch_independent(x, axis, call.location)
    where = call.require_constant(index).constant_data
    if where.dim() == 0:
        return call.emit("select.int", x, axis, int(where))
    where = torch.where(where < 0, where + x.shape[axis], where)
    picked = call.emit("index_select", x, axis, call.builder.add_constant(where.flatten()))
    if where.dim() == 1:
        return picked
    wanted = [(*p.shape[:axis], *where.shape, *p.shape[axis + 1 :]) for p in x.probes]
    return emit_reshape(call, picked, wanted, constant_target=False)


def gather_as_reshape(call: NodeContext, x: OnnxValue, index: OnnxValue) -> OnnxValue | None:
    """Return a gather of all numbers in order as a reshape: so torch.onnx spells as_strided."""
    if x.rank != 1 or x.constant or not index.constant:
        return None
    wanted = [tuple(p.shape) for p in index.probes]
    for probe in index.probes if index.varies_with_batch else index.probes[:1]:
        if not torch.equal(probe.flatten(), torch.arange(probe.numel())):
            return None
    if count_elements(wanted[0]) != x.shape[0]:
        return None
    return emit_reshape(call, x, wanted, constant_target=not index.varies_with_batch)


def scatter_nd(call: NodeContext) -> OnnxValue:
    """Translate ScatterND of constants: masks that the exporter writes region by region.

    Raises UnsupportedOp when the update is not an assignment.
    """
    x, where, updates = (call.require_constant(call.input(i)) for i in range(3))
    if call.get_attribute("reduction", "none") != "none":
        raise call.unsupported_error(f"reduction {call.get_attribute('reduction')}")
    return call.emit("index_put", x, list(call.emit_all("unbind.int", where, -1)), updates)


def tile(call: NodeContext) -> OnnxValue:
    """Translate Tile."""
    return call.emit("repeat", call.input(0), call.int_values(1, "repeats") or ())


def pad(call: NodeContext) -> OnnxValue:
    """Translate Pad: constant, reflect or edge.

    Raises UnsupportedOp when the mode or its axes are not PyTorch's.
    """
    x = call.input(0)
    mode = call.get_attribute("mode", "constant")
    pads = call.int_values(1, "pads") or call.get_attribute("paddings") or ()
    axes = call.int_values(3, "axes") or tuple(range(x.rank))
    pairs = {a % x.rank: (pads[i], pads[i + len(axes)]) for i, a in enumerate(axes)}
    if not any(any(pair) for pair in pairs.values()):
        return x
    lowest = min(axis for axis, pair in pairs.items() if any(pair))
    flat: list[int] = []
    for axis in range(x.rank - 1, lowest - 1, -1):
        flat += pairs.get(axis, (0, 0))
    if mode == "constant":
        return call.emit("constant_pad_nd", x, flat, call.number_value(2, "value", 0.0))
    if mode not in ("reflect", "edge") or lowest < 2 or x.rank != 4:
        raise call.unsupported_error(f"mode {mode} from dimension {lowest} on")
    flat = [*flat, 0, 0][:4]
    return call.emit("reflection_pad2d" if mode == "reflect" else "replication_pad2d", x, flat)


def depth_to_space(call: NodeContext) -> OnnxValue:
    """Translate DepthToSpace in CRD order. Raises UnsupportedOp when the order is DCR."""
    if call.get_attribute("mode", "DCR") != "CRD":
        raise call.unsupported_error("mode DCR")
    return call.emit("pixel_shuffle", call.input(0), call.get_attribute("blocksize"))


INDEXING_RULES: dict[str, TranslationRule] = {
    "Split": split,
    "Slice": slice_,
    "Gather": gather,
    "ScatterND": scatter_nd,
    "Tile": tile,
    "Pad": pad,
    "DepthToSpace": depth_to_space,
}
