"""Time that no order and no binding of a plan beats: a reason not to simulate it.

Kernels run one after another. Each takes at least what its busiest engine works, and what its
longest chain of layers takes, with the best share of cores and everything but weights, inputs and
outputs of the network in the local buffers. Weights that the global buffer may keep cross DDR in
one part of a group only, in the one where that costs least.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, starmap

from nnstretch.accelerate.chip_graph import ChipGraph
from nnstretch.accelerate.engines.choose_tiling import divisors
from nnstretch.accelerate.machine.rates import PORT, ChipRates
from nnstretch.accelerate.operator_work import (
    MatrixShape,
    matrix_shape,
    row_weight_bytes,
    vector_operations,
    weight_bytes,
)
from nnstretch.accelerate.steps.layers import layers_of
from nnstretch.accelerate.steps.slicing import slice_group
from nnstretch.chip.boxes import Box, box_elements
from nnstretch.chip.instances import DDR, LOCAL, SHARED, Group, Instance

GroupKey = tuple[tuple[str, ...], int, int]
"""Operators, factor and axis."""


@dataclass
class LeastBusy:
    """Least times of groups of one graph on one machine, equal groups once."""

    chip: ChipGraph
    rates: ChipRates
    overlap: str
    keeps_weights: bool = False
    """Whether weights may stay in the global buffer between parts."""
    known_us: dict[GroupKey, float] = field(default_factory=dict)

    def plan_us(self, groups: Sequence[Group]) -> float:
        """Return the time that no order and no binding of groups beats."""
        return sum(self.group_us(group) for group in groups)

    def group_us(self, group: Group) -> float:
        """Return the least time of all parts of a group."""
        key = (group.operators, group.split.factor, group.split.axis)
        if key not in self.known_us:
            parts = [slice_group(self.chip, group, 0, n) for n in range(group.split.factor)]
            times_us = [self.instance_us(part) for part in parts]
            least_us = sum(times_us)
            counts = self.kept_operators(parts) if self.keeps_weights else {}
            if counts:
                without_us = [self.instance_us(part, counts) for part in parts]
                least_us = sum(without_us)
                # What all parts need, the first of them loads, whichever that is.
                if all(count == len(parts) for count in counts.values()):
                    pairs = zip(times_us, without_us, strict=True)
                    least_us += min(loading_us - kept_us for loading_us, kept_us in pairs)
            self.known_us[key] = least_us
        return self.known_us[key]

    def kept_operators(self, parts: Sequence[Instance]) -> dict[str, int]:
        """Return the operators whose weights may be kept, and in how many parts they are equal."""
        machine = self.rates.accelerator
        if machine.shared is None or machine.matrix.weight_tiles or len(parts) == 1:
            return {}
        kept: dict[str, int] = {}
        for name in dict.fromkeys(chain.from_iterable(part.boxes for part in parts)):
            read = [
                self.chip.weight_boxes(name, part.boxes[name])
                for part in parts
                if name in part.boxes
            ]
            sizes = [sum(starmap(self.chip.bytes_of, boxes.items())) for boxes in read]
            fits = machine.matrix.whole_tiles or min(sizes) <= machine.shared_bytes
            most = max(read.count(boxes) for boxes in read)
            if most > 1 and fits and max(sizes):
                kept[name] = most
        return kept

    def instance_us(self, instance: Instance, kept: Collection[str] = ()) -> float:
        """Return the least time of one kernel; weights of `kept` operators do not cross DDR."""
        launch_us = self.rates.accelerator.launch_us
        chain_us, total_us = self.computed_us(instance)
        moved = self.moved_us(instance, kept)
        if self.overlap == "none":
            return launch_us + total_us + sum(moved.values())
        return launch_us + max(chain_us, *moved.values())

    def computed_us(self, instance: Instance) -> tuple[float, float]:
        """Return the longest chain of layers and the work of all, on matrix and vector unit."""
        ends: dict[str, float] = {}
        total_us = busy_matrix_us = busy_vector_us = 0.0
        for layer in layers_of(self.chip, list(instance.boxes)):
            matrix_us = self.matrix_us(layer[0], instance.boxes[layer[0]])
            vector_us = sum(self.vector_us(name, instance.boxes[name]) for name in layer)
            sources = chain.from_iterable(self.chip.reads[name] for name in layer)
            read = [ends.get(source, 0.0) for source in sources]
            # The tiles of a layer pass both units one behind the other.
            ends[layer[-1]] = max(read, default=0.0) + max(matrix_us, vector_us)
            total_us += matrix_us + vector_us
            busy_matrix_us += matrix_us
            busy_vector_us += vector_us
        return max(busy_matrix_us, busy_vector_us, *ends.values()), total_us

    def matrix_us(self, name: str, box: Box) -> float:
        """Return the least time of an operator's products, 0 without any."""
        shape = matrix_shape(self.chip, name, box)
        return 0.0 if shape is None else least_matrix_us(shape, self.rates)

    def vector_us(self, name: str, box: Box) -> float:
        """Return the least time of an operator on the vector units."""
        simple, special = vector_operations(self.chip, name)
        share = box_elements(box) / self.rates.accelerator.cores
        return self.rates.vector_us(simple * share, special * share)

    def moved_us(self, instance: Instance, kept: Collection[str]) -> dict[str, float]:
        """Return the time of transfers that one part has whatever lies where, by engine."""
        chip, rates = self.chip, self.rates
        machine = rates.accelerator
        boxes = instance.boxes.items()
        weights = sum(
            weight_bytes(chip, name, box) - row_weight_bytes(chip, name, box) for name, box in boxes
        )
        fresh = sum(weight_bytes(chip, name, box) for name, box in boxes if name not in kept)
        stored = sum(
            chip.bytes_of(name, box)
            for name, box in instance.writes.items()
            if name in chip.outputs
        )
        loaded = fresh + sum(self.input_bytes(instance, v.name) for v in chip.graph.inputs)
        load, store = rates.engine(DDR, LOCAL), rates.engine(LOCAL, DDR)
        moved = {load: rates.transfer_us(loaded, DDR, DDR, machine.cores)}
        moved[store] = moved.get(store, 0.0) + rates.transfer_us(stored, DDR, DDR, machine.cores)
        if machine.shared is not None and not machine.matrix.weight_tiles:
            moved[PORT] = rates.transfer_us(weights, SHARED, LOCAL, machine.cores)
        return moved

    def input_bytes(self, instance: Instance, value: str) -> int:
        """Return the bytes of a network's input that some operator of a part reads at least."""
        if value not in instance.reads:
            return 0
        areas = [self.chip.read_boxes(name, box) for name, box in instance.boxes.items()]
        return min(self.chip.bytes_of(value, area[value]) for area in areas if value in area)


def least_matrix_us(shape: MatrixShape, rates: ChipRates) -> float:
    """Return the time of products on all cores in the best of the shares that bindings have."""
    cores = rates.accelerator.cores
    if shape.depthwise and rates.accelerator.matrix.depthwise_macs_per_cycle:
        return rates.matrix_us(shape) / cores
    least = rates.matrix_us(shape)
    grouped = shape.weighted and shape.count > 1
    for output_cores in divisors(cores):
        for heads in (1,) if shape.weighted else divisors(cores // output_cores):
            share = replace(
                shape,
                count=-(-shape.count // (output_cores if grouped else heads)),
                positions=-(-shape.positions // max(1, cores // output_cores // heads)),
                outputs=shape.outputs if grouped else -(-shape.outputs // output_cores),
            )
            least = min(least, rates.matrix_us(share))
    return least
