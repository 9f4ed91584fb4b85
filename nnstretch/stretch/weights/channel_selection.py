"""Which original channels a branch keeps (the rule is in inheritance.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from nnstretch.graph import ValueRef
from nnstretch.stretch.lowering.adapters import ADAPTER_PREFIX
from nnstretch.stretch.lowering.depth_scaling import original_weight
from nnstretch.stretch.lowering.lower import LoweredBranch
from nnstretch.stretch.lowering.width_scaling import channel_width, in_group
from nnstretch.structure.channel_groups import Dim, size_at

Weights = Mapping[str, torch.Tensor]
Index = torch.Tensor
"""Original channel of every new channel, in order."""


@dataclass
class ChannelSelection:
    """The original channels that a branch reads, keeps and writes."""

    branch: LoweredBranch
    weights: Weights
    incoming: Index
    """Channels of the tensor that the branch reads."""
    channel_use: Mapping[int, int]
    """Output channel -> branches before this one that took it."""
    slice_start: int | None
    """First original channel of this branch's slice under a `project` merge."""
    kept: dict[int, Index] = field(default_factory=dict)
    """Root of a channel group -> channels that it keeps."""

    def __post_init__(self) -> None:
        self.section = self.branch.section
        self.channels = self.section.channels
        self.entry = self.section.input_dimension
        self.end = self.section.output_dimension
        self.end_roots = self.channels.roots(self.end)
        width = self.size(self.entry)
        self.inside = self.incoming
        if width != len(self.incoming) or self.has_adapter("_in"):
            self.inside = self.best_inputs(width)
        self.kept = dict.fromkeys(self.channels.roots(self.entry), self.inside)

    def has_adapter(self, suffix: str) -> bool:
        """Return whether the branch has an adapter whose name ends so: `_in` or `_out`."""
        modules = {weight.name.split(".")[0] for weight in self.branch.graph.weights}
        return any(m.startswith(ADAPTER_PREFIX) and m.endswith(suffix) for m in modules)

    def best_inputs(self, count: int) -> Index:
        """Return channels that an adapter makes: those of the merged tensor first, then any."""
        offered = set(self.incoming.tolist())
        full = sum(part.size for part in self.entry)
        order = sorted(offered) + [channel for channel in range(full) if channel not in offered]
        chosen = (order * (count // max(1, len(order)) + 1))[:count]
        return torch.tensor(sorted(chosen) if count <= full else chosen)

    def size(self, dim: Dim) -> int:
        """Return the size of a dimension at the branch's widths."""
        return size_at(dim, self.channels, self.branch.scales)

    def original_positions(self, dim: Dim) -> Index:
        """Return original position of every new position along a dimension."""
        positions: list[Index] = []
        at = 0
        for part in dim:
            root = None if part.group is None else self.channels.root[part.group]
            positions.append(at + self.part_index(root, part.size, self.size((part,))))
            at += part.size
        return torch.cat(positions) if positions else torch.arange(0)

    def positions_along(self, value: ValueRef) -> Index:
        """Return original position of every channel of a value."""
        shape = self.channels.shapes[value.name][0]
        axis = self.section.axis_out if len(shape) == 4 else self.channels.axis(value.name)
        return self.original_positions(shape[axis])

    def part_index(self, root: int | None, old: int, new: int) -> Index:
        """Return original position of each of `new` channels in a part of `old` channels."""
        if root is None or (new == old and root not in self.kept and root not in self.end_roots):
            return torch.arange(new) % max(1, old)
        kept = self.kept_channels(root)
        width = channel_width(self.channels, self.section.graph, root)
        if old == width and len(kept) == new:
            return kept
        if old % width == 0 and len(kept) * (old // width) == new:
            return expand_blocks(kept, old // width)
        return torch.arange(new) % old

    def kept_channels(self, root: int) -> Index:
        """Return the channels that a group keeps, most important, in original order."""
        if root not in self.kept:
            width = channel_width(self.channels, self.section.graph, root)
            count = int(width * self.branch.scales.get(root, 1))
            if count == width and root not in self.end_roots:
                self.kept[root] = torch.arange(width)
            else:
                self.kept[root] = self.most_important(root, width, count)
        return self.kept[root]

    def most_important(self, root: int, width: int, count: int) -> Index:
        """Return `count` of a group's channels with the largest scores, in whole steps."""
        score = self.score(root, width)
        step = max(1, width // self.channels.granularity[root])
        scores = score[: width // step * step].reshape(-1, step).mean(1)
        chosen = torch.argsort(scores, descending=True, stable=True)
        chosen = chosen.repeat(count // width + 1)[: max(1, count // step)]
        if count <= width:
            chosen = chosen.sort().values
        return expand_blocks(chosen, step)[:count]

    def score(self, root: int, width: int) -> torch.Tensor:
        """Return a group's importance; at the branch's end, less for what other branches took."""
        score = self.importance(root, width)
        if root in self.end_roots and sum(part.size for part in self.end) == width:
            use = torch.tensor([float(self.channel_use.get(c, 0)) for c in range(width)])
            score = score - 1e6 * use
            if self.slice_start is not None:
                slice_end = self.slice_start + (self.branch.branch.width_out or 0)
                score[self.slice_start : slice_end] += 1e9
        return score

    def importance(self, root: int, width: int) -> torch.Tensor:
        """Return the norm of each channel of a group, averaged over the weights that write it."""
        score = torch.zeros(width)
        writers = 0
        for name in self.channels.weights_of.get(root, ()):
            tensor = self.weights.get(original_weight(name, self.weights))
            if tensor is None or tensor.dim() < 2:
                continue
            axis = int(name in self.channels.transposed)
            filters = tensor.float().movedim(axis, 0).flatten(1)
            norm = filters.norm(dim=1)[self.filter_rows(name, root)]
            if len(norm) == width:
                score += norm / norm.mean().clamp_min(1e-12)
                writers += 1
        return score / max(1, writers)

    def filter_rows(self, name: str, root: int) -> Index:
        """Return where a group lies among the filters of a weight that writes several groups."""
        rows: list[int] = []
        at = 0
        for part in self.channels.written(name):
            if in_group(self.channels, part, root):
                rows += range(at, at + part.size)
            at += part.size
        return torch.tensor(rows, dtype=torch.long)

    def end_index(self) -> Index:
        """Return the original channels at the branch's end."""
        return self.original_positions(self.end)

    def output_channels(self) -> Index:
        """Return the original channels at the meeting point, behind an adapter if there is one."""
        end = self.end_index()
        if self.slice_start is None:
            return end
        width = self.branch.branch.width_out or 0
        if len(end) != width or self.has_adapter("_out"):
            return torch.arange(self.slice_start, self.slice_start + width)
        return end


def expand_blocks(blocks: Index, size: int) -> Index:
    """Return the channels of blocks of `size` channels in a row."""
    return (blocks[:, None] * size + torch.arange(size)).reshape(-1)
