"""Warm start: which of the original's numbers a stretched network begins with.

The rule. Kept blocks are the first of each stage and the repeats that follow it directly. Within a
channel group the most important channels are kept, in their original order: importance is the L2
norm of the filters that write the channel, each layer's norms divided by their mean, averaged over
the layers tied to the group. Branches of one segment share the work: the first takes the most
important output channels, the next those not taken yet, and then again from the top. A layer that
reads a channel twice (because two branches kept it) reads each copy at half weight. Shortcut and
merge convolutions start as selections: they pass on exactly the channels that both ends kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from nnstretch.graph import ValueRef
from nnstretch.stretch.lowering.adapters import ADAPTER_PREFIX
from nnstretch.stretch.lowering.depth_scaling import original_weight
from nnstretch.stretch.lowering.lower import LoweredBranch, LoweredNetwork, LoweredSegment
from nnstretch.stretch.lowering.width_scaling import channel_width
from nnstretch.structure.channel_groups import Dim, size_at

Weights = Mapping[str, torch.Tensor]
Index = torch.Tensor
"""Original channel of every new channel, in order."""


def inherited(stretched: LoweredNetwork, weights: Weights) -> list[list[dict[str, torch.Tensor]]]:
    """Return the inherited weights per segment and branch.

    A starting value for every weight that has an ancestor or is a selection.
    """
    return [values for values, _ in inherit_segments(stretched, weights)]


def inherit_segments(
    stretched: LoweredNetwork, weights: Weights
) -> Iterator[tuple[list[dict[str, torch.Tensor]], Index]]:
    """Yield starting weights and the original channel of every output, one segment at a time.

    A huge network need not be in memory once more.
    """
    entry = stretched.graph.inputs[0].spec.shape
    incoming = torch.arange(entry[1] if len(entry) > 1 else 1)
    for segment in stretched.segments:
        values, incoming = inherit_segment(segment, weights, incoming)
        yield values, incoming


def inherit_segment(
    segment: LoweredSegment, weights: Weights, incoming: Index
) -> tuple[list[dict[str, torch.Tensor]], Index]:
    """Return the weights of a segment's branches and the original channels of its output."""
    values: list[dict[str, torch.Tensor]] = []
    outputs: list[Index] = []
    taken: dict[int, int] = {}
    at = 0
    for branch in segment.branches:
        heir = BranchWeights(
            branch,
            weights,
            incoming,
            dict(taken),
            at if segment.segment.merge == "project" else None,
        )
        values.append(heir.starting_values())
        out = heir.output_channels()
        at += len(out)
        outputs.append(out)
        for channel in heir.end_index().tolist():
            taken[channel] = taken.get(channel, 0) + 1
    return values, torch.cat(outputs)


@dataclass
class BranchWeights:
    """One branch that inherits."""

    branch: LoweredBranch
    weights: Weights
    incoming: Index
    channel_use: dict[int, int]
    slice_start: int | None
    """First original channel of this branch's slice under a `project` merge."""

    def __post_init__(self) -> None:
        section = self.branch.section
        self.channels = section.channels
        self.entry = self.channels.shapes[section.graph.inputs[0].name][0][section.axis_in]
        self.end = self.channels.shapes[section.graph.outputs[0]][0][section.axis_out]
        self.end_roots = self.channels.roots(self.end)
        self.kept: dict[int, Index] = {}
        into = self.size(self.entry)
        self.inside = (
            self.incoming
            if into == len(self.incoming) and not self.has_input_adapter()
            else self.best_inputs(into)
        )
        for root in self.channels.roots(self.entry):
            if (
                self.channels.root.count(root)
                and sum(p.size for p in self.entry) == section.width_in
            ):
                self.kept[root] = self.inside

    def has_input_adapter(self) -> bool:
        """Return whether the branch begins with an adapter."""
        return any(
            w.name.startswith(f"{ADAPTER_PREFIX}") and w.name.split(".")[0].endswith("_in")
            for w in self.branch.graph.weights
        )

    def best_inputs(self, count: int) -> Index:
        """Return the inputs of an adapter: the channels the merged tensor offers, most important
        first, then any.
        """
        offered = sorted(set(self.incoming.tolist()))
        full = sum(p.size for p in self.entry)
        order = offered + [c for c in range(full) if c not in set(offered)]
        chosen = (order * (count // max(1, len(order)) + 1))[:count]
        return torch.tensor(sorted(chosen) if count <= full else chosen)

    def size(self, dim: Dim) -> int:
        """Return the size of a dimension at the section's widths."""
        return size_at(dim, self.channels, self.branch.scales)

    def original_positions(self, dim: Dim) -> Index:
        """Return original position of every new position along a dimension."""
        positions: list[Index] = []
        at = 0
        for part in dim:
            new = self.size((part,))
            root = None if part.group is None else self.channels.root[part.group]
            positions.append(at + self.part_index(root, part.size, new))
            at += part.size
        return torch.cat(positions) if positions else torch.arange(0)

    def part_index(self, root: int | None, old: int, new: int) -> Index:
        """Return which original channel each channel of a group comes from."""
        if root is None or (new == old and root not in self.kept and root not in self.end_roots):
            return torch.arange(new) % max(1, old)
        kept = self.kept_channels(root)
        width = channel_width(self.channels, self.branch.section.graph, root)
        if old == width and len(kept) == new:
            return kept
        if old % width == 0 and len(kept) * (old // width) == new:
            factor = old // width
            return (kept[:, None] * factor + torch.arange(factor)).reshape(-1)
        return torch.arange(new) % old

    def kept_channels(self, root: int) -> Index:
        """Return the channels a group keeps, most important, in original order."""
        if root not in self.kept:
            width = channel_width(self.channels, self.branch.section.graph, root)
            count = int(width * self.branch.scales.get(root, 1))
            if count == width and root not in self.end_roots:
                self.kept[root] = torch.arange(width)
            else:
                self.kept[root] = self.most_important(root, width, count)
        return self.kept[root]

    def most_important(self, root: int, width: int, count: int) -> Index:
        """Return the channels of a group with the largest norms, in order."""
        score = self.importance(root, width)
        if root in self.end_roots and sum(p.size for p in self.end) == width:
            score = score - 1e6 * torch.tensor(
                [float(self.channel_use.get(c, 0)) for c in range(width)]
            )
            if self.slice_start is not None:
                mine = slice(
                    self.slice_start, self.slice_start + (self.branch.branch.width_out or 0)
                )
                score[mine] += 1e9
        chunk = max(1, width // self.channels.granularity[root])
        scores = score[: width // chunk * chunk].reshape(-1, chunk).mean(1)
        chosen = torch.argsort(scores, descending=True, stable=True)
        chosen = chosen.repeat(count // width + 1)[: max(1, count // chunk)]
        if count <= width:
            chosen = chosen.sort().values
        return (chosen[:, None] * chunk + torch.arange(chunk)).reshape(-1)[:count]

    def importance(self, root: int, width: int) -> torch.Tensor:
        """Return the norm of each channel of a group, averaged over the weights that write it."""
        score, voters = torch.zeros(width), 0
        for name in self.channels.weights_of.get(root, ()):
            tensor = self.weights.get(original_weight(name))
            if tensor is None or tensor.dim() < 2:
                continue
            norm = tensor.float().flatten(1).norm(dim=1)[self.filter_rows(name, root)]
            if len(norm) == width:
                score += norm / norm.mean().clamp_min(1e-12)
                voters += 1
        return score / max(1, voters)

    def filter_rows(self, name: str, root: int) -> Index:
        """Return where a group lies among the filters of a weight that writes other groups, too."""
        mine: list[int] = []
        at = 0
        for part in self.channels.shapes[name][0][0]:
            if part.group is not None and self.channels.root[part.group] == root:
                mine += range(at, at + part.size)
            at += part.size
        return torch.tensor(mine, dtype=torch.long)

    def starting_values(self) -> dict[str, torch.Tensor]:
        """Return starting values of the branch's weights."""
        values: dict[str, torch.Tensor] = {}
        for weight in self.branch.graph.weights:
            ancestor = self.weights.get(original_weight(weight.name))
            if ancestor is not None:
                tracked = weight.name in self.channels.shapes
                values[weight.name] = (
                    self.slice_weight(weight.name, weight.spec.shape)
                    if tracked
                    else ancestor.clone()
                )
        return values | self.adapter_values()

    def slice_weight(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a weight with the channels that the branch keeps."""
        tensor = self.weights[original_weight(name)]
        for axis, dim in enumerate(self.channels.shapes[name][0]):
            index = self.original_positions(dim)
            tensor = tensor.index_select(axis, index)
            if axis == 1:
                tensor = divide_repeated_columns(tensor, index)
        return fit_group_width(tensor, shape)

    def adapter_values(self) -> dict[str, torch.Tensor]:
        """Return adapters as matrices of zeros and ones."""
        matrices: dict[str, torch.Tensor] = {}
        shapes = {w.name: w.spec.shape for w in self.branch.graph.weights}
        junctions = {f"{ADAPTER_PREFIX}{j.node}": j for j in self.channels.junctions}
        nodes = {node.name: node for node in self.branch.section.graph.nodes}
        for name, shape in shapes.items():
            module = name.split(".")[0]
            if not module.startswith(ADAPTER_PREFIX) or len(shape) < 2:
                continue
            if module in junctions:
                args = nodes[junctions[module].node].args
                operand = junctions[module].argument
                source, target = (
                    self.positions_along(args[operand]),
                    self.positions_along(args[1 - operand]),
                )
            elif module.endswith("_in"):
                source, target = self.incoming, self.inside
            else:
                source, target = self.end_index(), self.output_channels()
            matrices[name] = (
                selection_matrix(target, source).reshape(shape)
                if shape[:2] == (len(target), len(source))
                else torch.zeros(shape)
            )
        return matrices

    def positions_along(self, argument: object) -> Index:
        """Return the original channels along the channel axis of a value."""
        assert isinstance(argument, ValueRef)
        shape = self.channels.shapes[argument.name][0]
        return self.original_positions(
            shape[
                self.channels.axis(argument.name)
                if len(shape) != 4
                else self.branch.section.axis_out
            ]
        )

    def end_index(self) -> Index:
        """Return the original channels at the branch's end."""
        return self.original_positions(self.end)

    def output_channels(self) -> Index:
        """Return original channel of everything handed to the meeting point."""
        if self.slice_start is None:
            return self.end_index()
        width = self.branch.branch.width_out or 0
        kept = self.end_index()
        return (
            torch.arange(self.slice_start, self.slice_start + width)
            if len(kept) != width or self.has_output_adapter()
            else kept
        )

    def has_output_adapter(self) -> bool:
        """Return whether the branch ends with an adapter."""
        return any(
            w.name.startswith(ADAPTER_PREFIX) and w.name.split(".")[0].endswith("_out")
            for w in self.branch.graph.weights
        )


def divide_repeated_columns(tensor: torch.Tensor, index: Index) -> torch.Tensor:
    """Divide columns that stand for one original channel among them."""
    if len(index) != tensor.shape[1]:
        return tensor
    count = torch.bincount(index)[index].to(tensor.dtype)
    return tensor / count.reshape(1, -1, *(1,) * (tensor.dim() - 2))


def selection_matrix(target: Index, source: Index) -> torch.Tensor:
    """Return [target, source]: one where both stand for the same original channel, shared among
    copies.
    """
    same = (target[:, None] == source[None, :]).float()
    return same / same.sum(1, keepdim=True).clamp_min(1)


def fit_group_width(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Fit a weight to another group width: repeat or cut its second dimension."""
    for axis, size in enumerate(shape):
        if tensor.shape[axis] != size:
            tensor = tensor.index_select(axis, torch.arange(size) % tensor.shape[axis])
    return tensor.clone()
