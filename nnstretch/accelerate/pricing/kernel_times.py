"""How long each engine of one cluster works for a kernel, in closed form, numbers or arrays.

A kernel stands between others of its branch: its maps lie in the local buffers where what it reads
and writes fits them together, else in the global buffer, else in DDR; weights come from DDR. Each
byte is moved and each weight tile filled once; cores share positions and output channels in the way
that takes least, so that a wider or larger kernel is never faster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nnstretch.accelerate.machine.rates import SECOND_US, ChipRates
from nnstretch.accelerate.pricing.kernel_work import (
    KernelWork,
    Numbers,
    Products,
    ceil_div,
    kernel_work,
)
from nnstretch.chip.instances import DDR, LOCAL, SHARED
from nnstretch.kernel import Kernel


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Busy time of engines for one kernel, us."""

    launch_us: float
    weights_us: Numbers
    """Weights from DDR."""
    hoist_us: Numbers
    """Weights from the global to the local buffers."""
    maps_in_us: Numbers
    """What it reads, where that does not lie in the local buffers."""
    maps_out_us: Numbers
    matrix_us: Numbers
    vector_us: Numbers
    in_ddr: NDArray[np.bool_]
    """Whether its maps lie in DDR."""
    port_maps_us: Numbers
    """What maps beyond the local buffers would take from the global one."""

    @property
    def serial_us(self) -> Numbers:
        """Return the time of one engine after the other: the kernel alone."""
        units = self.matrix_us + self.vector_us
        moves = self.weights_us + self.hoist_us + self.maps_in_us + self.maps_out_us
        return self.launch_us + units + moves

    def pipelined_us(self, both_directions: bool) -> Numbers:
        """Return what the kernel adds to a chain whose transfers run beside its computations.

        Its units work in turn, since a layer needs all of the one before.
        """
        loads = self.weights_us + self.maps_in_us * self.in_ddr
        stores = self.maps_out_us * self.in_ddr
        ddr = np.maximum(loads, stores) if both_directions else loads + stores
        port = self.hoist_us + self.port_maps_us
        longest = np.maximum(np.maximum(ddr, port), self.matrix_us + self.vector_us)
        return np.asarray(self.launch_us + longest)


def kernel_times(kernel: Kernel, rates: ChipRates, element_bytes: int) -> KernelTimes:
    """Return the time of each engine. Raises UnsupportedOp for a kind that has no price."""
    work = kernel_work(kernel)
    machine, unit = rates.accelerator, rates.accelerator.vector
    matrix_us = np.zeros(1)
    for products in work.products:
        matrix_us = matrix_us + matrix_us_of(products, rates)
    cycles = work.simple * unit.simple_cycles + work.special * unit.special_cycles
    vector_us = cycles / (unit.lanes * machine.cores * machine.clock_hz) * SECOND_US
    weights_us, hoist_us = weights_us_of(weight_bytes_of(work, rates, element_bytes), rates)
    read, written = work.read_elements * element_bytes, work.write_elements * element_bytes
    maps = read + written
    port_us, ddr_us = map_byte_us(rates)
    in_ddr = maps > max(machine.local_bytes, machine.shared_bytes)
    byte_us = np.where(maps <= machine.local_bytes, 0.0, np.where(in_ddr, ddr_us, port_us))
    return KernelTimes(
        machine.launch_us,
        weights_us,
        hoist_us,
        read * byte_us,
        written * byte_us,
        matrix_us,
        vector_us,
        in_ddr,
        np.where(maps <= machine.local_bytes, 0.0, port_us * maps),
    )


def matrix_us_of(products: Products, rates: ChipRates) -> Numbers:
    """Return the time of products on the cores."""
    cores = rates.accelerator.cores
    if not products.weighted:
        return activation_products_us(products, rates)
    shares = [rows for rows in range(1, cores + 1) if cores % rows == 0]
    times_us = [weighted_products_us(products, rates, rows, cores // rows) for rows in shares]
    return np.asarray(np.minimum.reduce(np.broadcast_arrays(*times_us)))


def weighted_products_us(
    products: Products, rates: ChipRates, row_cores: int, output_cores: int
) -> Numbers:
    """Return the time of products with weights where so many cores share each dimension.

    Groups of a convolution are shared whole.
    """
    machine, unit = rates.accelerator, rates.accelerator.matrix
    positions, count = ceil_div(products.positions, row_cores), products.count
    outputs = np.where(count > 1, products.outputs, ceil_div(products.outputs, output_cores))
    count = np.where(count > 1, ceil_div(count, output_cores), count)
    tiles = ceil_div(products.inputs, rates.rows) * ceil_div(outputs, rates.columns)
    streams = ceil_div(positions, unit.positions_per_cycle)
    cycles = tiles * count * (streams + unit.fill_cycles)
    if unit.depthwise_macs_per_cycle and products.depthwise.any():
        macs = count * positions * products.inputs * outputs
        alone = macs / unit.depthwise_macs_per_cycle + unit.fill_cycles
        cycles = np.where(products.depthwise, alone, cycles)
    return np.asarray(cycles / machine.clock_hz * SECOND_US)


def activation_products_us(products: Products, rates: ChipRates) -> Numbers:
    """Return the time of products of two activations, of which cores share all positions.

    A core's share may cross from one product into the next. Cores that are more than positions
    share outputs.
    """
    machine, unit = rates.accelerator, rates.accelerator.matrix
    everywhere = products.positions * products.count
    row_cores = np.minimum(machine.cores, everywhere)
    outputs = ceil_div(products.outputs, np.floor(machine.cores / row_cores))
    tiles = ceil_div(products.inputs, rates.rows) * ceil_div(outputs, rates.columns)
    count, positions = ceil_div(products.count, row_cores), ceil_div(everywhere, row_cores)
    streams = np.maximum(ceil_div(positions, unit.positions_per_cycle), count)
    cycles = tiles * (streams + count * unit.fill_cycles)
    return np.asarray(cycles / machine.clock_hz * SECOND_US)


def weight_bytes_of(work: KernelWork, rates: ChipRates, element_bytes: int) -> Numbers:
    """Return the bytes of weights, padded to whole tiles where memory holds them so."""
    size_bytes = work.weight_elements * element_bytes
    if not rates.accelerator.matrix.whole_tiles:
        return size_bytes
    for item in work.products:
        if item.weighted:
            tiles = ceil_div(item.inputs, rates.rows) * ceil_div(item.outputs, rates.columns)
            padded = item.count * tiles * rates.rows * rates.columns * element_bytes
            size_bytes = np.maximum(size_bytes, padded)
    return size_bytes


def weights_us_of(size_bytes: Numbers, rates: ChipRates) -> tuple[Numbers, Numbers]:
    """Return the time of weights from DDR, and on from the global buffer."""
    machine = rates.accelerator
    staged = machine.shared is not None and not machine.matrix.weight_tiles
    target = SHARED if staged else LOCAL
    weights_us = size_bytes * rates.transfer_us(1, DDR, target, machine.cores)
    if not staged:
        return weights_us, np.zeros(1)
    return weights_us, size_bytes * rates.transfer_us(1, SHARED, LOCAL, machine.cores)


def map_byte_us(rates: ChipRates) -> tuple[float, float]:
    """Return the time of a byte from the global buffer, 0 without one, and from DDR."""
    machine = rates.accelerator
    from_ddr = rates.transfer_us(1, DDR, LOCAL, machine.cores)
    if machine.shared is None:
        return 0.0, from_ddr
    from_shared = rates.transfer_us(1, SHARED, LOCAL, machine.cores)
    return from_shared, max(from_shared, from_ddr)
