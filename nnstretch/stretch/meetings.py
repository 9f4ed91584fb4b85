"""Which cuts a search considers as meeting points."""

from __future__ import annotations

from nnstretch.stretch.lower import Stretcher
from nnstretch.structure.cuts import Cut

MOST = 32
"""Meeting points considered at most; beyond, those that end a stage come first."""


def meeting_points(stretcher: Stretcher) -> tuple[Cut, ...]:
    """Cuts that end a block: a stage's first block, a repeat, or work outside stages; the output last.

    Cuts inside the first block of a stage (behind an inverted bottleneck's expansion, say) are left out,
    as are those behind the global pool, where hardly any work is left to share.
    """
    ends = {stage.first_end.position for stage in stretcher.stages}
    ends |= {repeat.end.position for stage in stretcher.stages for repeat in stage.repeats}
    inside = first_blocks(stretcher)
    found = [c for c in stretcher.cuts[:-1] if c.position in ends or not any(low < c.position < high for low, high in inside)]
    found = [c for c in found if spatial(stretcher, c)]
    if len(found) > MOST:
        major = {stage.repeats[-1].end.position if stage.repeats else stage.first_end.position for stage in stretcher.stages}
        found = sorted(sorted(found, key=lambda c: (c.position not in major, c.position))[:MOST], key=lambda c: c.position)
    return (*found, stretcher.cuts[-1])


def first_blocks(stretcher: Stretcher) -> list[tuple[int, int]]:
    """Node ranges of first blocks, by the module that ends with them."""
    ranges: list[tuple[int, int]] = []
    floor = -1
    nodes = stretcher.graph.nodes
    for stage in stretcher.stages:
        end, name = stage.first_end.position, stage.first_end.name
        low = next((i for i in range(floor + 1, end) if nodes[i].module == name or nodes[i].module.startswith(name + ".")), end)
        ranges.append((low - 1, end))
        floor = stage.repeats[-1].end.position if stage.repeats else end
    return ranges


def spatial(stretcher: Stretcher, cut: Cut) -> bool:
    shape = stretcher.graph.specs()[cut.value].shape
    pixels = shape[1:3] if len(shape) == 4 and stretcher.whole.axis(cut.value) == 3 else shape[2:]
    return len(shape) == 3 or (len(shape) == 4 and max(pixels) > 1)
