"""Which cuts a search considers as meeting points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nnstretch.graph import Graph
from nnstretch.structure.blocks import BlockStage
from nnstretch.structure.channel_groups import ChannelGroups
from nnstretch.structure.cuts import Cut, before_window


def meeting_points(
    graph: Graph, cuts: Sequence[Cut], stages: Sequence[BlockStage], whole: ChannelGroups
) -> tuple[Cut, ...]:
    """Return cuts that end a block or lie outside stages; the output is the last.

    Left out are cuts inside a block (behind an inverted bottleneck's expansion, say) or inside a
    dense block, whose output holds on to all that the block has read, those behind the global pool,
    where hardly any work is left to share, and maps padded for the convolution behind them.
    """
    if not cuts:
        return ()
    specs = graph.specs()
    candidates: list[Cut] = []
    for cut in outside_blocks(graph, cuts[:-1], stages):
        if before_window(graph, cut):
            continue
        if has_pixels(specs[cut.value].shape, whole.axis(cut.value)):
            candidates.append(cut)
    return (*outside_dense_blocks(candidates, whole), cuts[-1])


def outside_blocks(graph: Graph, cuts: Iterable[Cut], stages: Sequence[BlockStage]) -> list[Cut]:
    """Return cuts that end a block or lie in none."""
    ends: set[int] = set()
    ranges = first_blocks(graph, stages)
    for stage in stages:
        ends.add(stage.first_end.position)
        for repeat in stage.repeats:
            ends.add(repeat.end.position)
            ranges.append((repeat.start.position, repeat.end.position))
    outside: list[Cut] = []
    for cut in cuts:
        inside = any(low < cut.position < high for low, high in ranges)
        if cut.position in ends or not inside:
            outside.append(cut)
    return outside


def outside_dense_blocks(cuts: Sequence[Cut], whole: ChannelGroups) -> list[Cut]:
    """Return cuts whose free channels no later cut concatenates with further ones.

    Channels that a grouped convolution multiplies are more, but nothing stands beside them.
    """
    dims = [whole.shapes[cut.value][0][whole.axis(cut.value)] for cut in cuts]
    free = [whole.roots(dim) - whole.pinned.keys() for dim in dims]
    layout = [(sum(part.size for part in dim), len(dim)) for dim in dims]

    def grows(k: int, later: int) -> bool:
        (size, slices), (later_size, later_slices) = layout[k], layout[later]
        is_longer = size != later_size and slices != later_slices
        differs = free[k] != free[later] or is_longer
        return bool(free[k] & free[later]) and differs

    count = len(cuts)
    return [cuts[k] for k in range(count) if not any(grows(k, j) for j in range(k + 1, count))]


def first_blocks(graph: Graph, stages: Sequence[BlockStage]) -> list[tuple[int, int]]:
    """Return node ranges of first blocks, by the module that ends with them."""
    ranges: list[tuple[int, int]] = []
    floor = -1
    for stage in stages:
        end = stage.first_end.position
        low = floor + 1
        while low < end and not in_module(graph.nodes[low].module, stage.first_end.name):
            low += 1
        ranges.append((min(low, end) - 1, end))
        floor = stage.repeats[-1].end.position if stage.repeats else end
    return ranges


def in_module(path: str, module: str) -> bool:
    """Return whether a module is another or lies inside it."""
    return path == module or path.startswith(module + ".")


def has_pixels(shape: tuple[int, ...], axis: int) -> bool:
    """Return whether a shape has several pixels, samples or tokens beside its channels."""
    # The batch comes first, but behind the tokens of some sequences.
    batch = () if len(shape) == 3 and axis == 2 else (0,)
    return any(size > 1 for place, size in enumerate(shape) if place not in (*batch, axis))
