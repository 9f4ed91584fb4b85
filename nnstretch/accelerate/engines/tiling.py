"""Tile loop of a step: over output channels outside, rows inside; sizes of its tiles and its slots.

A weight byte crosses DDR once. Partial sums stay in the unit's accumulators.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from nnstretch.accelerate.engines.layer_work import LayerWork, Stream
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.operator_work import MatrixShape
from nnstretch.chip.instances import Region


@dataclass(frozen=True, slots=True)
class Tiling:
    """Counts of a step's tile loop, and the slots that its tiles take."""

    outputs: int
    """Tiles of output channels."""
    inputs: int
    """Tiles of the sum, whose partial results stay in the unit's accumulators."""
    rows: int
    resident: bool = False
    """Whether an operand that every tile of outputs needs is moved once and stays in its slot."""
    weights_by_rows: bool = False
    """Whether what is added to a product of activations is loaded for each tile of rows."""
    weight_slots: tuple[Region, ...] = ()
    """In the local buffers."""
    staging_slots: tuple[Region, ...] = ()
    """In the global buffer, which weights pass."""
    stream_slots: tuple[tuple[Region, ...], ...] = ()
    result_slots: tuple[Region, ...] = ()

    def of_rows(self, rows: int) -> Tiling:
        """Return the loop with another count of row tiles, and without slots yet."""
        # Many are tried, and `replace` takes several times as long.
        return Tiling(self.outputs, self.inputs, rows, self.resident, self.weights_by_rows)

    @property
    def slots(self) -> tuple[Region, ...]:
        """Return the slots that take room in a buffer."""
        streams = chain.from_iterable(self.stream_slots)
        every = (*self.weight_slots, *self.staging_slots, *streams, *self.result_slots)
        return tuple(region for region in every if region.stop > region.start)

    @property
    def tiles(self) -> int:
        """Return the tiles of the loop."""
        return self.outputs * self.inputs * self.rows


def tile_shape(shape: MatrixShape, tiling: Tiling, rates: ChipRates) -> MatrixShape:
    """Return the products of one tile on one core."""
    if not shape.weighted:
        heads = min(tiling.rows, shape.count)
        rows = max(1, tiling.rows // heads)
        count, positions = -(-shape.count // heads), -(-shape.positions // rows)
        return MatrixShape(count, positions, shape.inputs, shape.outputs, weighted=False)
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
    return MatrixShape(count, positions, inputs, outputs, shape.depthwise)


def tile_weight_bytes(work: LayerWork, tiling: Tiling) -> tuple[int, int]:
    """Return the weight bytes of a tile: distinct ones, and those of one core."""
    if tiling.weights_by_rows:
        tile = work.weights * result_tile_bytes(work, tiling)
        return min(work.weight_bytes, tile), min(work.weight_bytes, -(-tile // work.cores))
    parts = tiling.rows if work.shape is None else tiling.outputs * tiling.inputs
    distinct = -(-work.weight_bytes // parts)
    return distinct, -(-distinct // work.output_cores)


def stream_tile_bytes(work: LayerWork, stream: Stream, tiling: Tiling) -> int:
    """Return the bytes of one tile of a streamed operand."""
    if stream.kept and tiling.resident:
        return stream.size_bytes
    parts = tiling.rows * tiling.inputs if stream.kept else tiling.rows * tiling.outputs
    return -(-stream.size_bytes // parts)


def result_tile_bytes(work: LayerWork, tiling: Tiling) -> int:
    """Return the bytes of one tile of the result."""
    return -(-work.result.size_bytes // (tiling.rows * tiling.outputs))


def stream_tiles(stream: Stream, tiling: Tiling) -> int:
    """Return how many tiles of an operand are moved in the loop."""
    if not stream.kept:
        return tiling.rows * tiling.outputs
    if tiling.resident:
        return 1
    again = tiling.outputs if tiling.rows * tiling.inputs > 1 else 1
    return tiling.rows * tiling.inputs * again
