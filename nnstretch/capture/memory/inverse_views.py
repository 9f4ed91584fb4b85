"""How the new numbers of a view are written back into the tensor behind it."""

from __future__ import annotations

import operator
from math import prod
from typing import Any

import torch

from nnstretch.capture.checks.operator_arguments import named_arguments
from nnstretch.capture.exported_program import operator_name
from nnstretch.capture.memory.views import MemoryViews
from nnstretch.graph import Argument, ValueRef

SCATTER_OPERATORS = {"slice.Tensor": "slice_scatter", "select.int": "select_scatter"}
"""How to write a slice back into the tensor it was taken from."""
SPLITS = frozenset(
    {"chunk", "split.Tensor", "split.sizes", "split_with_sizes"}
    | {"tensor_split.sections", "tensor_split.indices", "unsafe_chunk", "unsafe_split.Tensor"}
    | {"unsafe_split_with_sizes"}
)
"""Operators of which a piece is a slice."""
RESHAPES = frozenset(
    {"_unsafe_view", "atleast_1d", "atleast_2d", "atleast_3d", "flatten.using_ints", "ravel"}
    | {"reshape", "reshape_as", "squeeze", "squeeze.dim", "squeeze.dims", "unflatten.int"}
    | {"unsqueeze", "view", "view_as"}
)
"""Views of all numbers in their order, in another shape."""
PERMUTATIONS = frozenset(
    {"adjoint", "mH", "mT", "matrix_H", "movedim.int", "movedim.intlist", "moveaxis.int"}
    | {"moveaxis.intlist", "numpy_T", "permute", "swapaxes", "swapdims", "t", "transpose.int"}
)
"""Views of all numbers with the axes in another order."""


def write_back(
    views: MemoryViews, view: Any, behind: Any, new: ValueRef, old: ValueRef
) -> tuple[str, tuple[Any, ...]] | None:
    """Return the call that makes the new value of a tensor from its old one and a view's new one.

    Sizes that the view reads off the batch are exported nodes. None where it has no inverse.
    """
    if view in views.unknown:
        return None
    if view.target is operator.getitem:
        return write_piece(views, view, new, old)
    op, _ = operator_name(view.target)
    whole = views.layout(behind)
    if op in SCATTER_OPERATORS and not view.kwargs:
        return SCATTER_OPERATORS[op], (old, new, *view.args[1:])
    if op == "narrow" and not view.kwargs:
        axis, start, length = sizes_in(views, view.args[1:])
        start = start % whole.shape[axis] if start < 0 else start
        return "slice_scatter", (old, new, axis, start, start + length, 1)
    if op in RESHAPES and views.layout(view).numel() == whole.numel():
        return reshape_back(views, behind, new, old)
    if op in PERMUTATIONS:
        axes = axis_order(views, view, whole)
        return "permute", (new, tuple(map(axes.index, range(len(axes)))))
    return None


def reshape_back(
    views: MemoryViews, behind: Any, new: ValueRef, old: ValueRef
) -> tuple[str, tuple[Argument, ...]]:
    """Return the call that gives a view's new value the shape behind it, at any batch."""
    sizes = views.origin(behind).meta["val"].shape
    varying = [axis for axis, size in enumerate(sizes) if isinstance(size, torch.SymInt)]
    if len(varying) > 1:
        return "reshape_as", (new, old)
    shape = views.layout(behind).shape
    return "reshape", (new, tuple(-1 if i in varying else size for i, size in enumerate(shape)))


def write_piece(
    views: MemoryViews, view: Any, new: ValueRef, old: ValueRef
) -> tuple[str, tuple[Argument, ...]] | None:
    """Return the call that writes a piece of a split tensor back; None for other pieces."""
    split, number = view.args
    op, _ = operator_name(split.target)
    if op not in SPLITS | {"unbind.int"}:
        return None
    axis = named_arguments(split.target, split.args, split.kwargs)["dim"]
    if op == "unbind.int":
        return "select_scatter", (old, new, axis, number)
    ends = [0]
    for piece in views.layout(split)[: number + 1]:
        ends.append(ends[-1] + piece.shape[axis])
    return "slice_scatter", (old, new, axis, *ends[-2:], 1)


def sizes_in(views: MemoryViews, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments of a view with sizes as numbers."""
    return tuple(views.layout(arg) if isinstance(arg, torch.fx.Node) else arg for arg in args)


def axis_order(views: MemoryViews, view: Any, whole: torch.Tensor) -> list[int]:
    """Return which axis of the tensor behind a permuting view each of the view's axes is."""
    sizes = list(range(2, 2 + whole.dim()))
    strides = [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    with views.mode:
        probe = torch.empty_strided(sizes, strides)
    source = view.args[0]
    result = views.run(view, view.target, lambda n: probe if n is source else views.layout(n))
    return [size - 2 for size in result.shape]
