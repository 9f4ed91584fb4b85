"""Slots of a tile loop: two for each operand, in what live tensors leave of the buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nnstretch.accelerate.engines.layer_work import LayerWork
from nnstretch.accelerate.engines.tiling import (
    Tiling,
    result_tile_bytes,
    stream_tile_bytes,
    tile_weight_bytes,
)
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.chip.instances import LOCAL, SHARED, Region

UNIT = "unit"
"""Buffer of the registers in which a layer that bypasses the local buffers has its tiles."""
Gaps = Sequence[tuple[int, int]]


def slot_sizes(work: LayerWork, tiling: Tiling, rates: ChipRates) -> list[int]:
    """Return the sizes of the local slots in each core: weights, streams, result; two of each."""
    sizes: list[int] = []
    _, weights = tile_weight_bytes(work, tiling)
    sizes.append(0 if rates.accelerator.matrix.weight_tiles else weights)
    for stream in work.streams:
        sizes.append(-(-stream_tile_bytes(work, stream, tiling) // work.cores))
    streamed = work.result.scope != LOCAL
    sizes.append(-(-result_tile_bytes(work, tiling) // work.cores) if streamed else 0)
    return sizes


def place_slots(
    tiling: Tiling, work: LayerWork, rates: ChipRates, local_gaps: Gaps, shared_gaps: Gaps
) -> Tiling | None:
    """Return a tiling with two slots for each operand, None where they do not fit."""
    machine = rates.accelerator
    count = 1 if tiling.tiles == 1 else 2
    sizes = slot_sizes(work, tiling, rates)
    counts = [count] * len(sizes)
    for place, stream in enumerate(work.streams, start=1):
        counts[place] = 1 if stream.kept and tiling.resident else count
    wanted: list[int] = []
    for size, copies in zip(sizes, counts, strict=True):
        wanted += [size] * copies
    placed = fit(wanted, local_gaps, LOCAL)
    if placed is None:
        return None
    by_operand: list[tuple[Region, ...]] = []
    for copies in counts:
        by_operand.append(tuple(placed[:copies]))
        placed = placed[copies:]
    staging: tuple[Region, ...] = ()
    distinct, _ = tile_weight_bytes(work, tiling)
    if machine.shared is not None and distinct and not machine.matrix.weight_tiles:
        slots = fit([distinct] * count, shared_gaps, SHARED)
        if slots is None:
            return None
        staging = tuple(slots)
    weights = by_operand[0]
    if machine.matrix.weight_tiles:
        # One grid for all layers, whose tiles follow each other through the same places.
        size = max(distinct, rates.rows * rates.columns)
        ends = [(i * size, (i + 1) * size) for i in range(machine.matrix.weight_tiles)]
        weights = tuple(Region("weights", *end) for end in ends)
    return replace(
        tiling,
        weight_slots=weights,
        staging_slots=staging,
        stream_slots=tuple(by_operand[1:-1]),
        result_slots=by_operand[-1],
    )


def fit(sizes: Sequence[int], gaps: Gaps, buffer: str) -> list[Region] | None:
    """Return regions of these sizes in the gaps of a buffer, None where they do not fit."""
    free = [list(gap) for gap in gaps]
    regions: dict[int, Region] = {}
    for place in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        size = sizes[place]
        if not size:
            regions[place] = Region(buffer, 0, 0)
            continue
        for gap in free:
            if gap[1] - gap[0] >= size:
                regions[place] = Region(buffer, gap[0], gap[0] + size)
                gap[0] += size
                break
        else:
            return None
    return [regions[place] for place in range(len(sizes))]


def bypass_slots(tiling: Tiling, work: LayerWork, rates: ChipRates) -> Tiling:
    """Return a tiling whose operands bypass the local buffers: one register of the unit for each.

    What the next tile needs is loaded when this one is done.
    """
    registers: list[Region] = []
    start = 0
    for size in slot_sizes(work, tiling, rates):
        registers.append(Region(UNIT, start, start + size))
        start += size
    return replace(
        tiling,
        weight_slots=(registers[0],),
        stream_slots=tuple((register,) for register in registers[1:-1]),
        result_slots=(registers[-1],),
    )
