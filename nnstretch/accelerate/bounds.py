"""The rate that no schedule of a machine beats, and what binds it.

The matrix and vector units at their peak, each weight once through DDR for a cluster's whole share
of the batch, inputs and outputs once, and everything that DDR delivers once through the ports.
"""

from __future__ import annotations

from collections.abc import Mapping

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
from nnstretch.accelerate.operator_work import matrix_shape, vector_operations, weight_bytes
from nnstretch.accelerate.steps.split import boxes_behind
from nnstretch.chip.boxes import Box, box_elements


def least_times_us(chip: ChipGraph, rates: ChipRates, iterations: int = 1) -> Mapping[str, float]:
    """Return the least time of each resource of a cluster for one pass of a graph.

    Weights are shared over the iterations in which a cluster computes its part of the batch.
    """
    machine = rates.accelerator
    needed = needed_boxes(chip)
    matrix_s = vector_s = 0.0
    for node in chip.operators:
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
    weights = total_weight_bytes(chip) / iterations
    inputs = sum(
        chip.bytes_of(value.name, needed[value.name])
        for value in chip.graph.inputs
        if value.name in needed
    )
    outputs = sum(chip.bytes_of(name) for name in stored_outputs(chip))
    in_us = (weights + inputs) / machine.ddr.bytes_per_s * SECOND_US
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


def stored_outputs(chip: ChipGraph) -> list[str]:
    """Return the computed tensors that leave the graph; nothing stores inputs and weights."""
    return [name for name in chip.outputs if name in chip.position]


def total_weight_bytes(chip: ChipGraph) -> int:
    """Return the bytes of all weights that are read, each once; of tables, the rows."""
    total = 0
    seen: set[str] = set()
    for node in chip.operators:
        weights = [chip.roots[name] for name in node.inputs if chip.roots[name] in chip.weights]
        if node.kind == "embedding":
            total += weight_bytes(chip, node.name)
            continue
        for name in weights:
            if name not in seen:
                seen.add(name)
                total += chip.bytes_of(name)
    return total
