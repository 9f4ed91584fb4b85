"""Warm start: which of the original's numbers a stretched network begins with.

The rule. Kept blocks are the first of each stage and the repeats that follow it directly. Within a
channel group the most important channels are kept, in their original order: importance is the L2
norm of the filters that write the channel, each layer's norms divided by their mean, averaged over
the layers tied to the group. A group whose parts go different ways (through a concatenation, a
split or a group norm) keeps its share of each part; what a reshape puts at one position (the same
dimension of every head, of query, key and value) is kept or dropped together. Branches of one
segment share the work: the first takes the most important output channels, the next those not taken
yet, and then again from the top. A layer that reads a channel twice (because two branches kept it)
reads each copy at half weight. Shortcut and merge convolutions start as selections: they pass on
exactly the channels that both ends kept, and add nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch

from nnstretch.graph import Graph, ValueRef, refs
from nnstretch.stretch.lowering.adapters import ADAPTER_PREFIX, adapter_of
from nnstretch.stretch.lowering.depth_scaling import original_weight
from nnstretch.stretch.lowering.lower import LoweredNetwork, LoweredSegment
from nnstretch.stretch.weights.channel_blocks import Index
from nnstretch.stretch.weights.channel_selection import ChannelSelection, Weights
from nnstretch.structure.channel_groups import kernels_of
from nnstretch.structure.macs import TRANSPOSED, WEIGHTED

RULE = 2
"""Number of the rule: networks that start by another one do not compare. 1 followed no channels
through concatenations, splits and residual sums behind meeting points."""


def inherit_segments(
    stretched: LoweredNetwork, weights: Weights, only_constants: bool = False
) -> Iterator[tuple[list[dict[str, torch.Tensor]], Index]]:
    """Yield each segment's starting weights, per branch, and the original channels of its output.

    One segment at a time, so that a huge network need not be in memory once more. With
    `only_constants`, weights that training finds are left out.
    """
    incoming = torch.arange(stretched.branches[0].section.width_in)
    for segment in stretched.segments:
        values, incoming = inherit_segment(segment, weights, incoming, only_constants)
        yield values, incoming


def inherit_segment(
    segment: LoweredSegment, weights: Weights, incoming: Index, only_constants: bool
) -> tuple[list[dict[str, torch.Tensor]], Index]:
    """Return the weights of a segment's branches and the original channels of its output."""
    values: list[dict[str, torch.Tensor]] = []
    outputs: list[Index] = []
    use: Counter[int] = Counter()
    at = 0
    for branch in segment.branches:
        slice_start = at if segment.segment.merge == "project" else None
        selection = ChannelSelection(branch, weights, incoming, dict(use), slice_start)
        values.append(starting_values(selection, only_constants))
        outputs.append(selection.output_channels())
        at += len(outputs[-1])
        use.update(selection.end_index().tolist())
    return values, torch.cat(outputs)


def starting_values(selection: ChannelSelection, only_constants: bool) -> dict[str, torch.Tensor]:
    """Return a value for every weight of a branch that has an ancestor or is a selection."""
    values: dict[str, torch.Tensor] = {}
    axes = summed_axes(selection.section.graph)
    graph = selection.branch.graph
    names = constants(graph) if only_constants else {weight.name for weight in graph.weights}
    for weight in graph.weights:
        if weight.name not in names:
            continue
        ancestor = selection.weights.get(original_weight(weight.name, selection.weights))
        if ancestor is None:
            continue
        if weight.name in selection.channels.shapes:
            part = slice_weight(selection, weight.name, ancestor, axes.get(weight.name))
            values[weight.name] = fit_group_width(part, weight.spec.shape)
        else:
            values[weight.name] = ancestor.clone()
    return values if only_constants else values | adapter_values(selection)


def summed_axes(graph: Graph) -> dict[str, int]:
    """Return which dimension of a weight its layer sums over; weights of no layer are left out."""
    axes = dict.fromkeys(kernels_of(graph, WEIGHTED - TRANSPOSED), 1)
    axes |= dict.fromkeys(kernels_of(graph, TRANSPOSED), 0)
    ranks = {weight.name: len(weight.spec.shape) for weight in graph.weights}
    for node in graph.nodes:
        if node.kind in ("matmul", "bmm"):
            for operand, from_last in zip(node.args[:2], (1, 2), strict=True):
                if isinstance(operand, ValueRef) and ranks.get(operand.name, 0) > 1:
                    axes[operand.name] = ranks[operand.name] - from_last
    return axes


def constants(graph: Graph) -> frozenset[str]:
    """Return weights that no training changes: neither parameters nor statistics of norms."""
    measured: set[str] = set()
    for node in graph.nodes:
        if node.kind in ("batch_norm", "instance_norm"):
            measured.update(refs(node.args[3:5]))
    return frozenset(w.name for w in graph.weights if not w.trainable and w.name not in measured)


def slice_weight(
    selection: ChannelSelection, name: str, tensor: torch.Tensor, summed: int | None
) -> torch.Tensor:
    """Return the part of a weight between the channels that the branch keeps."""
    for axis, dim in enumerate(selection.channels.shapes[name][0]):
        index = selection.original_positions(dim)
        tensor = tensor.index_select(axis, index)
        if axis == summed:
            tensor = divide_repeated(tensor, index, axis)
    return tensor


def adapter_values(selection: ChannelSelection) -> dict[str, torch.Tensor]:
    """Return the weights of adapters as matrices of zeros and ones, their biases as zeros."""
    values: dict[str, torch.Tensor] = {}
    for weight in selection.adapter_weights:
        shape = weight.spec.shape
        if len(shape) > 1:
            source, target = adapter_ends(selection, adapter_of(weight.name))
            assert shape[:2] == (len(target), len(source)), weight.name
            values[weight.name] = selection_matrix(target, source).reshape(shape)
        elif weight.name.endswith(".bias"):
            values[weight.name] = torch.zeros(shape)
    return values


def adapter_ends(selection: ChannelSelection, module: str) -> tuple[Index, Index]:
    """Return the original channels that an adapter reads and writes."""
    for junction in selection.channels.junctions:
        added, main = selection.section.junction_dims(junction)
        is_adapted = selection.size(added) != selection.size(main)
        if is_adapted and module == f"{ADAPTER_PREFIX}{junction.node}":
            return selection.original_positions(added), selection.original_positions(main)
    if module.endswith("_in"):
        return selection.incoming, selection.inside
    return selection.end_index(), selection.output_channels()


def divide_repeated(tensor: torch.Tensor, index: Index, axis: int) -> torch.Tensor:
    """Divide what stands for one original channel along an axis by its number."""
    count = torch.bincount(index)[index].to(tensor.dtype)
    return tensor / count.reshape(-1, *(1,) * (tensor.dim() - 1 - axis))


def selection_matrix(target: Index, source: Index) -> torch.Tensor:
    """Return [target, source]: one where both stand for one channel, shared among its copies."""
    same = (target[:, None] == source[None, :]).float()
    return same / same.sum(1, keepdim=True).clamp_min(1)


def fit_group_width(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Repeat or cut a weight to a shape, for another group width."""
    for axis, size in enumerate(shape):
        if tensor.shape[axis] != size:
            tensor = tensor.index_select(axis, torch.arange(size) % tensor.shape[axis])
    return tensor.clone()
