"""In which share of the time each engine works, the matrix unit's fill apart.

While a weight tile enters the matrix unit nothing is computed there. That time is `matrix_fill`,
and `matrix` is the time in which positions pass, as hardware counters have it (array active and
weight shift of TPUv1). Counted together, use would fall where more images share a weight tile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnstretch.accelerate.engines.placed_program import PlacedProgram
from nnstretch.accelerate.engines.tiling import tile_shape
from nnstretch.accelerate.machine.rates import MATRIX, SECOND_US, ChipRates
from nnstretch.chip.instances import Instruction

MATRIX_FILL = "matrix_fill"


def engine_use(
    placed: PlacedProgram,
    instructions: Sequence[Instruction],
    latency_us: float,
    rates: ChipRates,
) -> dict[str, float]:
    """Return the share of a schedule's time in which each engine works, by engine."""
    busy_us: dict[str, float] = {}
    for item in instructions:
        busy_us[item.engine] = busy_us.get(item.engine, 0.0) + item.duration_us
    if MATRIX in busy_us:
        busy_us[MATRIX_FILL] = fill_us(placed, rates)
        busy_us[MATRIX] -= busy_us[MATRIX_FILL]
    return share_of(busy_us, latency_us)


def share_of(busy_us: Mapping[str, float], latency_us: float) -> dict[str, float]:
    """Return times as shares of a latency, in order of name."""
    return {engine: time_us / latency_us for engine, time_us in sorted(busy_us.items())}


def fill_us(placed: PlacedProgram, rates: ChipRates) -> float:
    """Return the time in which weight tiles enter the matrix unit."""
    cycles = 0.0
    for number, tiling in placed.tilings.items():
        shape = placed.works[number].shape
        if shape is not None:
            cycles += rates.fill_cycles(tile_shape(shape, tiling, rates)) * tiling.tiles
    return cycles / rates.accelerator.clock_hz * SECOND_US
