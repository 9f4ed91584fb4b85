"""Choice of a step's tile loop in what live tensors leave of the buffers.

Of the tile counts whose slots fit, the one with the shortest estimate is taken: serial time without
overlap, else the busiest engine and one tile of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from nnstretch.accelerate.engines.layer_work import LayerWork, layer_work
from nnstretch.accelerate.engines.program import Program
from nnstretch.accelerate.engines.slots import (
    Gaps,
    bypass_slots,
    fits,
    place_slots,
    slot_sizes,
    staged_sizes,
)
from nnstretch.accelerate.engines.tiling import (
    Tiling,
    head_tiles,
    stream_tile_bytes,
    stream_tiles,
    tile_shape,
    tile_weight_bytes,
)
from nnstretch.accelerate.machine.rates import MATRIX, PORT, VECTOR, ChipRates
from nnstretch.chip.instances import DDR, LOCAL, SHARED

MOST_TILES = 32
"""Tiles beyond which a loop is cut finer only where its slots fit no other way."""
ROWS_TRIED = 4
"""Row tile counts that are estimated for each count of channel tiles."""
WORTH_CUTTING = 0.98
"""A loop of more tiles is taken where it saves more than this leaves."""


def choose_tiling(
    work: LayerWork, rates: ChipRates, local_gaps: Gaps, shared_gaps: Gaps, overlapped: bool
) -> Tiling | None:
    """Return the tiling of a step whose slots fit into gaps, None where none does."""
    best: Tiling | None = None
    best_us = 0.0
    for base in base_loops(work, rates):
        if best is not None and (base.weights_by_rows or base.tiles > MOST_TILES):
            break
        for counts in loop_counts(base, work, rates, local_gaps, shared_gaps):
            if best is not None and counts.tiles > max(MOST_TILES, best.tiles):
                continue
            total_us = estimate_us(work, counts, rates, overlapped)
            if best is not None and total_us >= best_us * WORTH_CUTTING:
                continue
            tiling = place_slots(counts, work, rates, local_gaps, shared_gaps)
            if tiling is not None:
                best, best_us = tiling, total_us
    return best


def base_loops(work: LayerWork, rates: ChipRates) -> Iterator[Tiling]:
    """Yield loops of one row tile; last those that load what is added to products by rows."""
    for weights_by_rows in (False, True) if adds_weights(work) else (False,):
        for outputs, inputs in channel_tiles(work, rates):
            yield Tiling(outputs, inputs, 1, weights_by_rows=weights_by_rows)


def adds_weights(work: LayerWork) -> bool:
    """Return whether weights follow a product of two activations: a bias of scores."""
    return work.shape is not None and not work.shape.weighted and work.weight_bytes > 0


def loop_counts(
    base: Tiling, work: LayerWork, rates: ChipRates, local_gaps: Gaps, shared_gaps: Gaps
) -> Iterator[Tiling]:
    """Yield tile loops of some channel tiles that may fit; operands stay where it saves moves."""
    rows_tried = row_tiles(work)
    saves = base.outputs > head_tiles(work.shape, base) and any(
        stream.kept for stream in work.streams
    )
    for resident in (False, True) if saves else (False,):
        finest = replace(base, rows=rows_tried[-1], resident=resident)
        if not fits(finest, work, rates, local_gaps, shared_gaps):
            continue
        for rows in fitting_rows(finest, rows_tried, work, rates, local_gaps, shared_gaps):
            yield finest.of_rows(rows)


def fitting_rows(
    finest: Tiling,
    rows_tried: Sequence[int],
    work: LayerWork,
    rates: ChipRates,
    local_gaps: Gaps,
    shared_gaps: Gaps,
) -> Sequence[int]:
    """Return the fewest row tiles whose slots fit, and a few more where operands stream in.

    More rows need smaller slots, so the first that fits is found by halving.
    """
    low, high = 0, len(rows_tried) - 1
    while low < high:
        middle = (low + high) // 2
        if fits(finest.of_rows(rows_tried[middle]), work, rates, local_gaps, shared_gaps):
            high = middle
        else:
            low = middle + 1
    # Of what lies in the local buffers, more row tiles only fill the unit more often.
    several = bool(work.streams) or work.result.scope != LOCAL
    return rows_tried[low : low + ROWS_TRIED] if several else rows_tried[low : low + 1]


def channel_tiles(work: LayerWork, rates: ChipRates) -> Iterator[tuple[int, int]]:
    """Yield tile counts of output channels, then of the sum as well."""
    shape = work.shape
    if shape is None:
        yield 1, 1
        return
    units = shape.count if shape.count > 1 else -(-shape.outputs // rates.columns)
    sums = divisors(-(-shape.inputs // rates.rows))
    if not shape.weighted:
        heads = divisors(shape.count)
        streamed = any(stream.columns for stream in work.streams)
        columns = divisors(-(-shape.outputs // rates.columns))[1:] if streamed else []
        yield from ((outputs, 1) for outputs in heads)
        yield from ((shape.count * outputs, 1) for outputs in columns)
        if streamed:
            most = shape.count * columns[-1] if columns else shape.count
            yield from ((most, inputs) for inputs in sums[1:])
        return
    if rates.accelerator.matrix.weight_tiles:
        yield units, sums[-1]
        return
    for outputs in divisors(units):
        yield outputs, 1
    for inputs in sums[1:]:
        yield units, inputs


def row_tiles(work: LayerWork) -> list[int]:
    """Return tile counts of rows, few first."""
    return divisors(max(1, work.positions))


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def bypass_tiling(work: LayerWork, rates: ChipRates) -> Tiling:
    """Return the loop of a layer that bypasses the local buffers: tiles are the unit's own."""
    outputs, inputs = list(channel_tiles(work, rates))[-1]
    return bypass_slots(Tiling(outputs, inputs, 1), work, rates)


def estimate_us(work: LayerWork, tiling: Tiling, rates: ChipRates, overlapped: bool) -> float:
    """Return the estimated time of a step's loop."""
    busy = engine_times(work, tiling, rates)
    total = sum(busy.values())
    if not overlapped:
        return total
    longest = max(busy.values())
    return longest + (total - longest) / tiling.tiles


def engine_times(work: LayerWork, tiling: Tiling, rates: ChipRates) -> dict[str, float]:
    """Return how long each engine works for a step."""
    busy: dict[str, float] = {VECTOR: rates.vector_us(work.simple, work.special)}
    if work.shape is not None:
        busy[MATRIX] = rates.matrix_us(tile_shape(work.shape, tiling, rates)) * tiling.tiles
    if work.weight_bytes:
        again = tile_weight_bytes(work, tiling)[0] * tiling.rows * tiling.outputs
        weight_bytes = again if tiling.weights_by_rows else work.weight_bytes
        engine = rates.engine(DDR, LOCAL)
        busy[engine] = rates.transfer_us(weight_bytes, DDR, LOCAL, work.cores)
        if staged_sizes(work, tiling, rates):
            busy[PORT] = rates.transfer_us(weight_bytes, SHARED, LOCAL, work.cores)
    for stream in work.streams:
        tiles = stream_tiles(work, stream, tiling)
        size_bytes = stream_tile_bytes(work, stream, tiling) * tiles
        engine = rates.engine(stream.buffer, LOCAL)
        cost_us = rates.transfer_us(size_bytes, stream.buffer, LOCAL, work.cores)
        busy[engine] = busy.get(engine, 0.0) + cost_us
    if work.result.scope != LOCAL:
        engine = rates.engine(LOCAL, work.result.scope)
        cost_us = rates.transfer_us(work.result.size_bytes, LOCAL, work.result.scope, work.cores)
        busy[engine] = busy.get(engine, 0.0) + cost_us
    return busy


def smallest_slots_bytes(work: LayerWork, rates: ChipRates) -> dict[str, int]:
    """Return the bytes that a step's finest tiles need in a local and in the global buffer."""
    outputs, inputs = list(channel_tiles(work, rates))[-1]
    finest = Tiling(outputs, inputs, row_tiles(work)[-1], weights_by_rows=adds_weights(work))
    staged = rates.accelerator.shared is not None and not rates.accelerator.matrix.weight_tiles
    return {
        LOCAL: 2 * sum(slot_sizes(work, finest, rates)),
        SHARED: 2 * tile_weight_bytes(work, finest)[0] if staged else 0,
    }


def least_slots_bytes(program: Program, rates: ChipRates, scope: str) -> list[int]:
    """Return the bytes of a buffer that the tiles of each step need at least, none for copies."""
    needed: list[int] = []
    for step in program.steps:
        size_bytes = 0
        if step.operators:
            size_bytes = smallest_slots_bytes(layer_work(program, step, rates), rates)[scope]
        needed.append(size_bytes)
    return needed
