"""Slots of a tile loop: two for each operand, in what live tensors leave of the buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nnstretch.accelerate.engines.layer_work import LayerWork
from nnstretch.accelerate.engines.tiling import (
    Tiling,
    result_tile_bytes,
    stream_tile_bytes,
    stream_tiles,
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
        sizes.append(-(-stream_tile_bytes(work, stream, tiling) // stream.cores))
    streamed = work.result.scope != LOCAL
    sizes.append(-(-result_tile_bytes(work, tiling) // work.cores) if streamed else 0)
    return sizes


def slot_counts(work: LayerWork, tiling: Tiling, operands: int) -> list[int]:
    """Return how many slots each operand has: two where there are several tiles of it."""
    count = 1 if tiling.tiles == 1 else 2
    counts = [count] * operands
    for place, stream in enumerate(work.streams, start=1):
        alone = stream.columns and stream_tiles(work, stream, tiling) == 1
        counts[place] = 1 if alone or (stream.kept and tiling.resident) else count
    return counts


def staged_sizes(work: LayerWork, tiling: Tiling, rates: ChipRates) -> list[int]:
    """Return the sizes of the slots in the global buffer, which weights pass where there is one."""
    machine = rates.accelerator
    distinct, _ = tile_weight_bytes(work, tiling)
    if machine.shared is None or not distinct or machine.matrix.weight_tiles:
        return []
    return [distinct] * (1 if tiling.tiles == 1 else 2)


def fits(
    tiling: Tiling, work: LayerWork, rates: ChipRates, local_gaps: Gaps, shared_gaps: Gaps
) -> bool:
    """Return whether slots for each operand fit into gaps."""
    sizes = slot_sizes(work, tiling, rates)
    wanted = in_copies(sizes, slot_counts(work, tiling, len(sizes)))
    if first_fit(wanted, local_gaps) is None:
        return False
    return first_fit(staged_sizes(work, tiling, rates), shared_gaps) is not None


def place_slots(
    tiling: Tiling, work: LayerWork, rates: ChipRates, local_gaps: Gaps, shared_gaps: Gaps
) -> Tiling | None:
    """Return a tiling with slots for each operand, None where they do not fit."""
    matrix = rates.accelerator.matrix
    sizes = slot_sizes(work, tiling, rates)
    counts = slot_counts(work, tiling, len(sizes))
    placed = regions(in_copies(sizes, counts), local_gaps, LOCAL)
    staging = regions(staged_sizes(work, tiling, rates), shared_gaps, SHARED)
    if placed is None or staging is None:
        return None
    by_operand: list[tuple[Region, ...]] = []
    for copies in counts:
        by_operand.append(placed[:copies])
        placed = placed[copies:]
    weights = by_operand[0]
    if matrix.weight_tiles:
        # One grid for all layers, whose tiles follow each other through the same places.
        size = max(tile_weight_bytes(work, tiling)[0], rates.rows * rates.columns)
        ends = [(i * size, (i + 1) * size) for i in range(matrix.weight_tiles)]
        weights = tuple(Region("weights", *end) for end in ends)
    return replace(
        tiling,
        weight_slots=weights,
        staging_slots=staging,
        stream_slots=tuple(by_operand[1:-1]),
        result_slots=by_operand[-1],
    )


def in_copies(sizes: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Return each size as often as its count says."""
    wanted: list[int] = []
    for size, copies in zip(sizes, counts, strict=True):
        wanted += [size] * copies
    return wanted


def regions(sizes: Sequence[int], gaps: Gaps, buffer: str) -> tuple[Region, ...] | None:
    """Return regions of these sizes in the gaps of a buffer, None where they do not fit."""
    starts = first_fit(sizes, gaps)
    if starts is None:
        return None
    pairs = zip(starts, sizes, strict=True)
    return tuple(Region(buffer, start, start + size) for start, size in pairs)


def first_fit(sizes: Sequence[int], gaps: Gaps) -> list[int] | None:
    """Return starts of these sizes in gaps, the largest placed first; None where one has no room.

    What has no size starts at 0.
    """
    starts = [0] * len(sizes)
    lows = [low for low, _ in gaps]
    for place in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        size = sizes[place]
        if not size:
            break
        for number, (_, high) in enumerate(gaps):
            if high - lows[number] >= size:
                starts[place] = lows[number]
                lows[number] += size
                break
        else:
            return None
    return starts


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
