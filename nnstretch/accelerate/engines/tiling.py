"""Tile loop of a step: over output channels outside, rows inside; sizes of its tiles and its slots.

A weight byte crosses DDR once; one of a product's first operand once for each tile of channels.
Partial sums stay in the unit's accumulators.
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
    """Tiles of output channels; of products of activations, of heads and then of channels."""
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
    outputs, count = shape.outputs, shape.count
    columns = tiling.outputs
    if not shape.weighted:
        count = -(-shape.count // head_tiles(shape, tiling))
        columns = tiling.outputs // head_tiles(shape, tiling)
    elif shape.count > 1:
        count, columns = -(-shape.count // tiling.outputs), 1
    if columns > 1 or shape.count == 1:
        units = -(-shape.outputs // rates.columns) // columns
        outputs = min(shape.outputs, units * rates.columns)
    inputs = shape.inputs
    if tiling.inputs > 1:
        inputs = -(-shape.inputs // rates.rows) // tiling.inputs * rates.rows
    positions = -(-shape.positions // tiling.rows)
    return MatrixShape(count, positions, inputs, outputs, shape.depthwise, shape.weighted)


def head_tiles(shape: MatrixShape | None, tiling: Tiling) -> int:
    """Return into how many tiles heads of products of activations are cut, before channels are."""
    if shape is None or shape.weighted:
        return 1
    return min(tiling.outputs, shape.count)


def weight_tiles(work: LayerWork, tiling: Tiling) -> int:
    """Return in how many tiles weights are loaded that no tile of rows loads for itself."""
    # What is added to a product of activations may be the same for all of its heads.
    if work.shape is not None and not work.shape.weighted:
        return 1
    return tiling.outputs * tiling.inputs


def tile_weight_bytes(work: LayerWork, tiling: Tiling) -> tuple[int, int]:
    """Return the weight bytes of a tile: distinct ones, and those of one core."""
    if tiling.weights_by_rows:
        tile = work.weights * result_tile_bytes(work, tiling)
        return min(work.weight_bytes, tile), min(work.weight_bytes, -(-tile // work.cores))
    parts = tiling.rows if work.shape is None else weight_tiles(work, tiling)
    distinct = -(-work.weight_bytes // parts)
    return distinct, -(-distinct // work.output_cores)


def matrix_tiles(work: LayerWork, stream: Stream, tiling: Tiling) -> int:
    """Return into how many tiles the matrices of an operand are cut."""
    return min(stream.matrices, head_tiles(work.shape, tiling))


def stream_parts(work: LayerWork, stream: Stream, tiling: Tiling) -> int:
    """Return into how many tiles a streamed operand is cut."""
    if stream.columns:
        columns = tiling.outputs // head_tiles(work.shape, tiling)
        return matrix_tiles(work, stream, tiling) * columns * tiling.inputs
    if not stream.kept:
        return tiling.rows * tiling.outputs
    rows = 1 if tiling.resident else tiling.rows * tiling.inputs
    return matrix_tiles(work, stream, tiling) * rows


def stream_tile_bytes(work: LayerWork, stream: Stream, tiling: Tiling) -> int:
    """Return the bytes of one tile of a streamed operand."""
    return -(-stream.size_bytes // stream_parts(work, stream, tiling))


def result_tile_bytes(work: LayerWork, tiling: Tiling) -> int:
    """Return the bytes of one tile of the result."""
    return -(-work.result.size_bytes // (tiling.rows * tiling.outputs))


def stream_tiles(work: LayerWork, stream: Stream, tiling: Tiling) -> int:
    """Return how many tiles of an operand are moved in the loop."""
    parts = stream_parts(work, stream, tiling)
    if not (stream.kept or stream.columns) or parts == matrix_tiles(work, stream, tiling):
        return parts
    return tiling.outputs * tiling.inputs * (1 if stream.columns else tiling.rows)


def stream_tile(
    work: LayerWork, stream: Stream, tiling: Tiling, place: tuple[int, int, int]
) -> int:
    """Return the number of the tile of an operand that a place of the loop needs.

    It is moved where the place before needs another.
    """
    output, index, row = place
    if not (stream.kept or stream.columns):
        return output * tiling.rows + row
    matrices, heads = matrix_tiles(work, stream, tiling), head_tiles(work.shape, tiling)
    columns = tiling.outputs // heads
    matrix = output // columns * matrices // heads
    if stream.columns:
        return (matrix * columns + output % columns) * tiling.inputs + index
    if stream_parts(work, stream, tiling) == matrices:
        return matrix
    return (output * tiling.inputs + index) * tiling.rows + row
