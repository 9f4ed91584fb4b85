"""Which cuts a search considers as meeting points."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.graph import Graph
from nnstretch.structure.blocks import BlockStage
from nnstretch.structure.channel_groups import ChannelGroups
from nnstretch.structure.cuts import Cut, before_window


def meeting_points(
    graph: Graph, cuts: Sequence[Cut], stages: Sequence[BlockStage], whole: ChannelGroups
) -> tuple[Cut, ...]:
    """Return cuts that end a block: a stage's first block, a repeat, or work outside stages.

    The output last.

    Cuts inside a block (behind an inverted bottleneck's expansion, say) are left out, as are those
    inside a dense block, whose output holds on to all that the block has read, those behind the
    global pool, where hardly any work is left to share, and maps that are padded for the
    convolution behind them.
    """
    if not cuts:
        return ()
    ends = {stage.first_end.position for stage in stages}
    ends |= {repeat.end.position for stage in stages for repeat in stage.repeats}
    inside = first_blocks(graph, stages) + [
        (r.start.position, r.end.position) for stage in stages for r in stage.repeats
    ]
    candidates = [
        c
        for c in cuts[:-1]
        if c.position in ends or not any(low < c.position < high for low, high in inside)
    ]
    specs = graph.specs()
    candidates = [c for c in candidates if not before_window(graph, c)]
    candidates = [c for c in candidates if has_pixels(specs[c.value].shape, whole.axis(c.value))]
    dims = [whole.shapes[c.value][0][whole.axis(c.value)] for c in candidates]
    free = [whole.roots(dim) - whole.pinned.keys() for dim in dims]
    full = [sum(part.size for part in dim) for dim in dims]
    inner = {
        k
        for k in range(len(candidates))
        for j in range(k + 1, len(candidates))
        if free[k] & free[j] and (free[k] != free[j] or full[k] != full[j])
    }
    return (*(c for k, c in enumerate(candidates) if k not in inner), cuts[-1])


def first_blocks(graph: Graph, stages: Sequence[BlockStage]) -> list[tuple[int, int]]:
    """Return node ranges of first blocks, by the module that ends with them."""
    ranges: list[tuple[int, int]] = []
    floor = -1
    nodes = graph.nodes
    for stage in stages:
        end, name = stage.first_end.position, stage.first_end.name
        low = next(
            (
                i
                for i in range(floor + 1, end)
                if nodes[i].module == name or nodes[i].module.startswith(name + ".")
            ),
            end,
        )
        ranges.append((low - 1, end))
        floor = stage.repeats[-1].end.position if stage.repeats else end
    return ranges


def has_pixels(shape: tuple[int, ...], axis: int) -> bool:
    """Return whether a shape has pixels or tokens beside its channels."""
    pixels = shape[1:3] if len(shape) == 4 and axis == 3 else shape[2:]
    return len(shape) == 3 or (len(shape) == 4 and max(pixels) > 1)
