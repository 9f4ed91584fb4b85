"""Tile loops: over output channels outside, rows inside, in what live maps leave of the buffers.

Of the tile counts whose slots fit, the one with the shortest estimate is taken: serial time without
overlap, else the busiest engine and one tile of the others. A weight byte crosses DDR once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nnstretch.accelerate.engines.layer_work import LayerWork, Stream
from nnstretch.accelerate.machine.rates import MATRIX, PORT, VECTOR, ChipRates
from nnstretch.accelerate.operator_work import MatrixShape
from nnstretch.chip.instances import DDR, LOCAL, SHARED, Region

MOST_TILES = 32
"""Tiles beyond which a loop is cut finer only where its slots fit no other way."""
ROWS_TRIED = 4
"""Row tile counts that are estimated for each count of channel tiles."""
WORTH_CUTTING = 0.98
"""A loop of more tiles is taken where it saves more than this leaves."""
Gaps = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Tiling:
    """Counts of a step's tile loop, and the slots that its tiles take."""

    outputs: int
    """Tiles of output channels."""
    inputs: int
    """Tiles of the sum, whose partial results stay in the unit's accumulators."""
    rows: int
    held: bool = False
    """Whether an operand that every tile of outputs needs is moved once and stays in its slot."""
    weight_slots: tuple[Region, ...] = ()
    """In the local buffers."""
    staging_slots: tuple[Region, ...] = ()
    """In the global buffer, which weights pass."""
    stream_slots: tuple[tuple[Region, ...], ...] = ()
    result_slots: tuple[Region, ...] = ()

    @property
    def slots(self) -> tuple[Region, ...]:
        """Return the slots that take room in a buffer."""
        streams = [slot for pair in self.stream_slots for slot in pair]
        every = (*self.weight_slots, *self.staging_slots, *streams, *self.result_slots)
        return tuple(region for region in every if region.stop > region.start)

    @property
    def tiles(self) -> int:
        """Return the tiles of the loop."""
        return self.outputs * self.inputs * self.rows


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def tile_shape(shape: MatrixShape, tiling: Tiling, rates: ChipRates) -> MatrixShape:
    """Return the products of one tile on one core."""
    if not shape.weighted:
        heads = min(tiling.rows, shape.count)
        rows = max(1, tiling.rows // heads)
        return replace(shape, count=-(-shape.count // heads), positions=-(-shape.positions // rows))
    outputs, count = shape.outputs, shape.count
    if shape.count > 1:
        count = -(-shape.count // tiling.outputs)
    else:
        units = -(-shape.outputs // rates.columns) // tiling.outputs
        outputs = min(shape.outputs, units * rates.columns)
    inputs = shape.inputs
    if tiling.inputs > 1:
        inputs = -(-shape.inputs // rates.rows) // tiling.inputs * rates.rows
    positions = -(-shape.positions // tiling.rows)
    return replace(shape, count=count, positions=positions, inputs=inputs, outputs=outputs)


def choose_tiling(
    work: LayerWork, rates: ChipRates, local_gaps: Gaps, shared_gaps: Gaps, overlapped: bool
) -> Tiling | None:
    """Return the tiling of a step whose slots fit into gaps, None where none does."""
    best: Tiling | None = None
    best_us = 0.0
    for outputs, inputs in channel_tiles(work, rates):
        if best is not None and outputs * inputs > MOST_TILES:
            break
        for counts in loop_counts(outputs, inputs, work, rates, local_gaps, shared_gaps):
            tiling = place_slots(counts, work, rates, local_gaps, shared_gaps)
            most_tiles = MOST_TILES if best is None else max(MOST_TILES, best.tiles)
            if tiling is None or (best is not None and tiling.tiles > most_tiles):
                continue
            total_us = estimate_us(work, tiling, rates, overlapped)
            if best is None or total_us < best_us * WORTH_CUTTING:
                best, best_us = tiling, total_us
    return best


def loop_counts(
    outputs: int,
    inputs: int,
    work: LayerWork,
    rates: ChipRates,
    local_gaps: Gaps,
    shared_gaps: Gaps,
) -> Iterator[Tiling]:
    """Yield tile loops of some channel tiles that may fit, operands held where it saves moves."""
    rows_tried = row_tiles(work)
    saves = outputs > 1 and any(stream.kept for stream in work.streams)
    for held in (False, True) if saves else (False,):
        finest = Tiling(outputs, inputs, rows_tried[-1], held)
        if place_slots(finest, work, rates, local_gaps, shared_gaps) is None:
            continue
        for rows in fitting_rows(finest, rows_tried, work, rates, local_gaps, shared_gaps):
            yield replace(finest, rows=rows)


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
        tiling = replace(finest, rows=rows_tried[middle])
        if place_slots(tiling, work, rates, local_gaps, shared_gaps) is None:
            low = middle + 1
        else:
            high = middle
    # Of what lies in the local buffers, more row tiles only fill the unit more often.
    several = bool(work.streams) or work.result.scope != LOCAL
    return rows_tried[low : low + ROWS_TRIED] if several else rows_tried[low : low + 1]


def channel_tiles(work: LayerWork, rates: ChipRates) -> Iterator[tuple[int, int]]:
    """Yield tile counts of output channels, then of the sum as well."""
    shape = work.shape
    if shape is None or not shape.weighted:
        yield 1, 1
        return
    units = shape.count if shape.count > 1 else -(-shape.outputs // rates.columns)
    sums = divisors(-(-shape.inputs // rates.rows))
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


def tile_weight_bytes(work: LayerWork, tiling: Tiling) -> tuple[int, int]:
    """Return the weight bytes of a tile: distinct ones, and those of one core."""
    parts = tiling.rows if work.shape is None else tiling.outputs * tiling.inputs
    distinct = -(-work.weight_bytes // parts)
    return distinct, -(-distinct // work.output_cores)


def stream_tile_bytes(work: LayerWork, stream: Stream, tiling: Tiling) -> int:
    """Return the bytes of one tile of a streamed operand."""
    if stream.kept and tiling.held:
        return stream.size_bytes
    parts = tiling.rows * tiling.inputs if stream.kept else tiling.rows * tiling.outputs
    return -(-stream.size_bytes // parts)


def result_tile_bytes(work: LayerWork, tiling: Tiling) -> int:
    """Return the bytes of one tile of the result."""
    return -(-work.result.size_bytes // (tiling.rows * tiling.outputs))


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
        counts[place] = 1 if stream.kept and tiling.held else count
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
        ends = [(i * distinct, (i + 1) * distinct) for i in range(machine.matrix.weight_tiles)]
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


def stream_tiles(stream: Stream, tiling: Tiling) -> int:
    """Return how many tiles of an operand are moved in the loop."""
    if not stream.kept:
        return tiling.rows * tiling.outputs
    if tiling.held:
        return 1
    again = tiling.outputs if tiling.rows * tiling.inputs > 1 else 1
    return tiling.rows * tiling.inputs * again


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
        engine = rates.engine(DDR, LOCAL)
        busy[engine] = rates.transfer_us(work.weight_bytes, DDR, LOCAL, work.cores)
        if tiling.staging_slots:
            busy[PORT] = rates.transfer_us(work.weight_bytes, SHARED, LOCAL, work.cores)
    for stream in work.streams:
        size_bytes = stream_tile_bytes(work, stream, tiling) * stream_tiles(stream, tiling)
        engine = rates.engine(stream.buffer, LOCAL)
        cost_us = rates.transfer_us(size_bytes, stream.buffer, LOCAL, work.cores)
        busy[engine] = busy.get(engine, 0.0) + cost_us
    if work.result.scope != LOCAL:
        engine = rates.engine(LOCAL, work.result.scope)
        cost_us = rates.transfer_us(work.result.size_bytes, LOCAL, work.result.scope, work.cores)
        busy[engine] = busy.get(engine, 0.0) + cost_us
    return busy


def smallest_slots_bytes(work: LayerWork, rates: ChipRates) -> int:
    """Return the bytes that a step's finest tiles need in a local buffer."""
    outputs, inputs = list(channel_tiles(work, rates))[-1]
    finest = Tiling(outputs, inputs, row_tiles(work)[-1])
    return 2 * sum(slot_sizes(work, finest, rates))
