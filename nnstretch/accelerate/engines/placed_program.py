"""Placed program: every storage has an address, every layer a tile loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nnstretch.accelerate.engines.layer_work import LayerWork
from nnstretch.accelerate.engines.program import Program, Storage
from nnstretch.accelerate.engines.tiling import Tiling, weight_tiles
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.chip.instances import LOCAL, SHARED, Region, TensorResidency


@dataclass(frozen=True, slots=True)
class Spill:
    """A storage that left the buffer in which it should lie."""

    tensor: str
    source: str
    target: str
    size_bytes: int
    rule: str


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """Weights of a layer that stay in the global buffer from one instance to the next."""

    name: str
    region: Region
    steps: tuple[int, ...]
    """Those that read them, ascending; the first one loads them."""


@dataclass(frozen=True)
class PlacedProgram:
    """A program whose storages have addresses and whose layers have tile loops."""

    program: Program
    addresses: Mapping[str, int]
    """In each storage's buffer; of the local buffers, the same in each core."""
    works: Mapping[int, LayerWork]
    tilings: Mapping[int, Tiling]
    spills: tuple[Spill, ...]
    late: bool = False
    """Whether a storage leaves its buffer after its first write, or comes back."""
    kept: Mapping[int, KeptWeights] = field(default_factory=dict)
    """By step: weights that do not pass the global buffer but stay there."""

    @property
    def kept_weights(self) -> tuple[KeptWeights, ...]:
        """Return what stays in the global buffer, each once."""
        return tuple({item.name: item for item in self.kept.values()}.values())

    def region(self, name: str) -> Region:
        """Return the addresses of a storage."""
        storage = self.program.storages[name]
        start = self.addresses[name]
        return Region(storage.scope, start, start + place_bytes(storage))


def residencies_of(placed: PlacedProgram) -> tuple[TensorResidency, ...]:
    """Return where every storage, slot of a tile loop and kept weight lies, and when."""
    residencies: list[TensorResidency] = []
    for name, storage in placed.program.storages.items():
        region = placed.region(name)
        residencies.append(
            TensorResidency(
                name,
                region.buffer,
                region.start,
                region.stop - region.start,
                storage.first_step,
                storage.last_step,
            )
        )
    for number, tiling in placed.tilings.items():
        step = placed.program.steps[number]
        for region in tiling.slots:
            size_bytes = region.stop - region.start
            residencies.append(
                TensorResidency(
                    f"{step.name} slot", region.buffer, region.start, size_bytes, number, number
                )
            )
    for kept in placed.kept_weights:
        # Tile by tile, as they come: what is behind a tile may still be another tensor's.
        tiling = placed.tilings[kept.steps[0]]
        tiles = weight_tiles(placed.works[kept.steps[0]], tiling)
        for tile in range(tiles):
            region = kept.region.share(tile, tiles)
            size_bytes = region.stop - region.start
            lives = kept.steps[0], kept.steps[-1]
            residencies.append(
                TensorResidency(
                    f"{kept.name} {tile}", region.buffer, region.start, size_bytes, *lives
                )
            )
    return tuple(residencies)


def place_bytes(storage: Storage) -> int:
    """Return the bytes of a storage in its buffer; of the local buffers, in each core."""
    if storage.scope == LOCAL:
        return -(-storage.size_bytes // storage.binding.cores)
    return storage.size_bytes


def capacity(rates: ChipRates, scope: str) -> int:
    """Return the size of a buffer: of the local buffers, that of one core."""
    machine = rates.accelerator
    if scope == LOCAL:
        return machine.local.size_bytes
    if scope == SHARED:
        return machine.shared_bytes
    return machine.ddr.size_bytes or 1 << 62
