"""The rate that no schedule of a machine beats, and what binds it.

The matrix and vector units at their peak, each weight once through DDR for a cluster's whole share
of the batch, inputs and outputs once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from nnstretch.accelerate.chip_graph import ChipGraph, whole_box
from nnstretch.accelerate.machine.rates import (
    DMA,
    DMA_IN,
    DMA_OUT,
    MATRIX,
    SECOND_US,
    VECTOR,
    ChipRates,
)
from nnstretch.accelerate.operator_work import matrix_shape, vector_operations
from nnstretch.accelerate.steps.split import boxes_behind
from nnstretch.chip.boxes import Box, box_elements, box_shape, intersect
from nnstretch.graph import Node


def least_times_us(chip: ChipGraph, rates: ChipRates, passes: float = 1.0) -> Mapping[str, float]:
    """Return the least time of each resource of a cluster for one pass of a graph.

    Weights are shared over the passes in which a cluster computes its part of the batch: a fraction
    where a pass computes more than that.
    """
    machine = rates.accelerator
    needed = needed_boxes(chip)
    matrix_s = vector_s = 0.0
    for node in needed_operators(chip, needed):
        box = needed[node.name]
        shape = matrix_shape(chip, node.name, box)
        if shape is not None and shape.depthwise and machine.matrix.depthwise_macs_per_cycle:
            rate = machine.matrix.depthwise_macs_per_cycle * machine.cores * machine.clock_hz
            matrix_s += shape.macs / rate
        elif shape is not None:
            matrix_s += shape.macs / rates.accelerator.macs_per_s(rates.element_type)
        simple, special = vector_operations(chip, node.name)
        cycles = simple * machine.vector.simple_cycles + special * machine.vector.special_cycles
        lanes = machine.vector.lanes * machine.cores
        vector_s += box_elements(box) * cycles / lanes / machine.clock_hz
    times = {MATRIX: matrix_s * SECOND_US, VECTOR: vector_s * SECOND_US}
    weights, inputs = read_bytes(chip, needed, passes)
    outputs = sum(chip.bytes_of(name) for name in stored_outputs(chip))
    in_us = (weights / passes + inputs) / machine.ddr.bytes_per_s * SECOND_US
    out_us = outputs / machine.ddr.bytes_per_s * SECOND_US
    if machine.ddr.both_directions:
        times |= {DMA_IN: in_us, DMA_OUT: out_us}
    else:
        times[DMA] = in_us + out_us
    return times


def needed_boxes(chip: ChipGraph) -> Mapping[str, Box]:
    """Return what of each tensor the outputs depend on: a border may be read by nothing."""
    outputs = {name: whole_box(chip, name) for name in stored_outputs(chip)}
    return boxes_behind(chip, [node.name for node in chip.operators], outputs)


def needed_operators(chip: ChipGraph, needed: Mapping[str, Box]) -> list[Node]:
    """Return the operators of which something is needed; of some, only an empty part is read."""
    return [node for node in chip.operators if node.name in needed]


def stored_outputs(chip: ChipGraph) -> list[str]:
    """Return the computed tensors that leave the graph; nothing stores inputs and weights."""
    return [name for name in chip.outputs if name in chip.position]


def read_bytes(chip: ChipGraph, needed: Mapping[str, Box], passes: float) -> tuple[float, int]:
    """Return the bytes of weights that all passes read, and those of inputs that one pass reads.

    What several operators read counts once; of tables, the rows count, the whole table at most.
    """
    parts: dict[str, set[Box]] = {}
    rows: dict[str, dict[str, float]] = {}  # of each table, the bytes behind a tensor of indices
    for node in needed_operators(chip, needed):
        for root, box in chip.read_boxes(node.name, needed[node.name]).items():
            if node.kind == "embedding" and root in chip.weights and root == node.inputs[0]:
                count, most = prod(box_shape(needed[node.name][:-1])), chip.specs[root].shape[0]
                size = min(count * passes, most) / most * chip.bytes_of(root, box)
                asked = rows.setdefault(root, {})
                asked[node.inputs[1]] = max(asked.get(node.inputs[1], 0.0), size)
            elif root not in chip.position:
                parts.setdefault(root, set()).add(box)
    sizes = {root: least_bytes(chip, root, boxes) for root, boxes in parts.items()}
    inputs = sum(size for root, size in sizes.items() if root not in chip.weights)
    weights = {root: float(size) for root, size in sizes.items() if root in chip.weights}
    for root, asked in rows.items():
        weights[root] = max(weights.get(root, 0.0), min(sum(asked.values()), chip.bytes_of(root)))
    return sum(weights.values(), start=0.0), inputs


def least_bytes(chip: ChipGraph, name: str, boxes: Iterable[Box]) -> int:
    """Return the bytes of parts of a tensor, the largest first and only such as share nothing."""
    counted: list[Box] = []
    for box in sorted(boxes, key=box_elements, reverse=True):
        if all(intersect(box, larger) is None for larger in counted):
            counted.append(box)
    return sum(chip.bytes_of(name, box) for box in counted)
