"""ChipRates of an accelerator: how long a tile takes on each engine, in closed form.

Matrix: ceil(K/rows) x ceil(N/columns) x (M + fill) cycles on each core's share. Vector: elements x
cycles / lanes. Transfers: bytes over the slowest part of the way. Nothing is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

from nnstretch.accelerate.operator_work import MatrixShape
from nnstretch.chip.accelerator import Accelerator
from nnstretch.chip.instances import DDR, LOCAL, SHARED

MATRIX, VECTOR, PORT, HOST = "matrix", "vector", "port", "host"
DMA_IN, DMA_OUT, DMA = "dma_in", "dma_out", "dma"
SECOND_US = 1e6


@dataclass(frozen=True, slots=True)
class ChipRates:
    """An accelerator that computes in one element type."""

    accelerator: Accelerator
    element_type: str

    @property
    def rows(self) -> int:
        """Return the inputs that a weight tile sums over."""
        return self.accelerator.matrix_rows(self.element_type)

    @property
    def columns(self) -> int:
        """Return the outputs of a weight tile."""
        return self.accelerator.matrix.columns

    def unit_tiles(self, shape: MatrixShape) -> int:
        """Return the weight tiles that pass through the unit for one product."""
        return -(-shape.inputs // self.rows) * -(-shape.outputs // self.columns)

    def active_cycles(self, shape: MatrixShape) -> float:
        """Return the cycles in which positions pass through the unit."""
        unit = self.accelerator.matrix
        if shape.depthwise and unit.depthwise_macs_per_cycle:
            return shape.macs / unit.depthwise_macs_per_cycle
        passes = -(-shape.positions // unit.positions_per_cycle)
        return shape.count * self.unit_tiles(shape) * passes

    def fill_cycles(self, shape: MatrixShape) -> float:
        """Return the cycles in which weight tiles enter the unit."""
        unit = self.accelerator.matrix
        if shape.depthwise and unit.depthwise_macs_per_cycle:
            return unit.fill_cycles
        return shape.count * self.unit_tiles(shape) * unit.fill_cycles

    def matrix_us(self, shape: MatrixShape) -> float:
        """Return the time of products on one core."""
        cycles = self.active_cycles(shape) + self.fill_cycles(shape)
        return cycles / self.accelerator.clock_hz * SECOND_US

    def vector_us(self, simple: float, special: float) -> float:
        """Return the time of simple and special operations on one core."""
        unit = self.accelerator.vector
        cycles = simple * unit.simple_cycles + special * unit.special_cycles
        return cycles / unit.lanes / self.accelerator.clock_hz * SECOND_US

    def transfer_us(self, size_bytes: float, source: str, target: str, cores: int) -> float:
        """Return the time to move bytes between buffers, over the slowest part of the way."""
        machine = self.accelerator
        rates: list[float] = []
        if DDR in (source, target):
            rates.append(machine.ddr.bytes_per_s)
        if SHARED in (source, target) and machine.shared is not None:
            rates.append(machine.shared.bytes_per_s)
        if LOCAL in (source, target):
            rates.append(machine.local.bytes_per_s * cores)
        return size_bytes / min(rates) * SECOND_US

    def exchange_us(self, bytes_per_core: float, cores: int) -> float:
        """Return the time in which each core receives bytes from others."""
        machine = self.accelerator
        if machine.mesh_bytes_per_s is not None:
            return bytes_per_core / min(machine.mesh_bytes_per_s, machine.local.bytes_per_s) * 1e6
        way = machine.ddr.bytes_per_s if machine.shared is None else machine.shared.bytes_per_s
        return 2 * bytes_per_core * cores / way * SECOND_US

    def engine(self, source: str, target: str) -> str:
        """Return the engine that moves bytes between buffers."""
        if DDR not in (source, target):
            return PORT
        if not self.accelerator.ddr.both_directions:
            return DMA
        return DMA_IN if source == DDR else DMA_OUT
