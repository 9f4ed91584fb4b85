"""Accelerator: clusters of equal cores with buffers that software manages, and their rates.

A host's DDR feeds clusters; a cluster is a global buffer (some have none) and cores; a core is a
local buffer, a matrix unit and a vector unit. Clusters share a batch, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nnstretch.chip.instances import ALL_BUFFERS, LOCAL, SHARED


@dataclass(frozen=True, slots=True)
class MatrixUnit:
    """Multiply-accumulate array of one core that keeps a tile of weights."""

    rows: int
    """Inputs that a tile of weights sums over."""
    columns: int
    """Outputs of a tile of weights."""
    fill_cycles: float
    """Cycles of a tile beyond one for each of its positions."""
    positions_per_cycle: float = 1.0
    depthwise_macs_per_cycle: float = 0.0
    """Rate of depthwise convolutions; 0 where they run as any other convolution."""
    whole_tiles: bool = False
    """Whether memory holds weights as whole tiles, padded with zeros."""
    weight_tiles: int = 0
    """Tiles that wait in a memory of their own; 0 where weights lie in the local buffer."""


@dataclass(frozen=True, slots=True)
class VectorUnit:
    """Lanes of one core for everything that is no matrix product."""

    lanes: float
    simple_cycles: float = 1.0
    """Cycles of an addition, multiplication, comparison or copy in one lane."""
    special_cycles: float = 1.0
    """Cycles of an exponential, division, root or error function in one lane."""


@dataclass(frozen=True, slots=True)
class OnChipBuffer:
    """Memory that software manages: of each core, or of a cluster."""

    size_bytes: int
    bytes_per_s: float
    ports: int = 0
    """Instructions that may touch it at once; 0 for as many as there are engines."""


@dataclass(frozen=True, slots=True)
class Dram:
    """Memory outside the chip, as one cluster sees it."""

    bytes_per_s: float
    both_directions: bool = True
    """Whether reading and writing have an engine each."""
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A described machine."""

    name: str
    clusters: int
    cores: int
    """Cores of a cluster."""
    clock_hz: float
    element_types: tuple[str, ...]
    matrix: MatrixUnit
    vector: VectorUnit
    local: OnChipBuffer
    """Of each core."""
    ddr: Dram
    shared: OnChipBuffer | None = None
    """The global buffer of a cluster."""
    mesh_bytes_per_s: float | None = None
    """Rate at which a core receives from others; None sends it through the global buffer or DDR."""
    launch_us: float = 0.0
    instructions_in_flight: int = 0
    """Instructions of a cluster that may be under way at once; 0 for one on each engine."""
    ddr_fallback: bool = False
    """Whether a layer whose smallest tiles fit no local buffer is computed from DDR."""
    type_rates: Mapping[str, float] = field(default_factory=dict)
    """How many times more inputs a tile sums over in a smaller type; 1 where absent."""
    assumed: tuple[str, ...] = ()
    """Fields whose value nobody published."""

    @property
    def local_bytes(self) -> int:
        """Return the local buffers of a cluster together."""
        return self.cores * self.local.size_bytes

    @property
    def shared_bytes(self) -> int:
        """Return the size of the global buffer, 0 without one."""
        return 0 if self.shared is None else self.shared.size_bytes

    @property
    def most_at_once(self) -> Mapping[str, int]:
        """Return how many instructions may touch a buffer at once, and be under way in all."""
        limits = {LOCAL: self.local.ports, ALL_BUFFERS: self.instructions_in_flight}
        if self.shared is not None:
            limits[SHARED] = self.shared.ports
        return {name: most for name, most in limits.items() if most}

    def matrix_rows(self, element_type: str) -> int:
        """Return the inputs that a tile sums over in a type."""
        return int(self.matrix.rows * self.type_rates.get(element_type, 1.0))

    def macs_per_s(self, element_type: str) -> float:
        """Return the peak of a cluster."""
        tile = self.matrix_rows(element_type) * self.matrix.columns
        return tile * self.matrix.positions_per_cycle * self.cores * self.clock_hz

    def with_buffers(self, local_bytes: int, shared_bytes: int) -> Accelerator:
        """Return the machine with buffers of other sizes."""
        local = replace(self.local, size_bytes=local_bytes)
        shared = None if self.shared is None else replace(self.shared, size_bytes=shared_bytes)
        return replace(self, local=local, shared=shared)

    def __str__(self) -> str:
        """Return the machine in one paragraph: the form that golden tests compare."""
        lines = [
            f"{self.name}: {self.clusters} clusters of {self.cores} cores"
            f" at {self.clock_hz / 1e9:g} GHz, {', '.join(self.element_types)}",
            f"  matrix  {self.matrix.rows} x {self.matrix.columns},"
            f" fill {self.matrix.fill_cycles:g} cycles",
            f"  vector  {self.vector.lanes:g} lanes",
            f"  local   {self.local.size_bytes} B a core, {self.local.bytes_per_s / 1e9:g} GB/s",
        ]
        if self.shared is not None:
            rate = self.shared.bytes_per_s / 1e9
            lines.append(f"  global  {self.shared.size_bytes} B a cluster, {rate:g} GB/s")
        ways = "both directions at once" if self.ddr.both_directions else "one direction at a time"
        lines.append(f"  ddr     {self.ddr.bytes_per_s / 1e9:g} GB/s a cluster, {ways}")
        limits = [f"{most} in {name}" for name, most in self.most_at_once.items()]
        if limits:
            lines.append(f"  at once {', '.join(limits)}")
        return "\n".join(lines)
