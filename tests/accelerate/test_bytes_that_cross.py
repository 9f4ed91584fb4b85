"""Every byte that a schedule needs crosses the memory outside of the cores."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from support.random_chip_graphs import random_machine, schedule_that_fits
from torch import nn

from nnstretch.accelerate.accelerate import (
    AccelerateRequest,
    AccelerateResult,
    accelerate,
    bound_of,
    traffic,
)
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.network_batches import NetworkBatches
from nnstretch.accelerate.policies import ClusterSchedule, ScheduleOptions
from nnstretch.chip.boxes import box_elements, intersect
from nnstretch.chip.instances import DDR

IN_PARTS = ScheduleOptions(parts_margin=math.inf)


def scheduled(
    module: nn.Module, *example: torch.Tensor, machine: str = "ethos-u55-128"
) -> AccelerateResult:
    """A layer a kernel."""
    network = NetworkBatches(module.eval(), example, "network")
    rates = ChipRates(load_accelerator(machine), "int8")
    options = ScheduleOptions("lb", overlap="layers")
    return accelerate(network.graph, AccelerateRequest(rates, 1, options))


class SplitResidual(nn.Module):
    """A convolution of half of the channels, added to the other half."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(32, 32, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the sum."""
        return self.layer(x[:, :32]) + x[:, 32:]


def test_two_parts_of_one_tensor_both_cross() -> None:
    result = scheduled(SplitResidual(), torch.zeros(1, 64, 64, 64))
    moved = traffic(result.schedule.instructions)
    assert moved["ddr"] == 64 * 64 * 64 + 32 * 32 * 9 + 32 * 64 * 64


def schedules_in_parts(shared: bool) -> list[ClusterSchedule]:
    """Schedules of random graphs in parts on small machines, with or without a global buffer."""
    schedules: list[ClusterSchedule] = []
    for seed in range(25):
        machine = random_machine(seed)
        if (machine.shared is not None) == shared:
            small = machine.with_buffers(2048, machine.shared_bytes)
            schedules.append(schedule_that_fits(seed, IN_PARTS, small))
    return schedules


def test_concatenations_copy_what_their_target_holds() -> None:
    copied_parts = 0
    for schedule in schedules_in_parts(shared=True):
        program = schedule.placed.program
        for step in program.steps:
            target = program.storages[step.writes]
            for reading in () if step.operators else step.readings:
                assert intersect(reading.box, target.box) == reading.box
                source = program.storages[reading.storage]
                copied_parts += box_elements(reading.box) < box_elements(source.box)
    assert copied_parts > 5


def test_what_is_copied_within_ddr_is_read_and_written() -> None:
    copies = 0
    for schedule in schedules_in_parts(shared=False):
        program = schedule.placed.program
        both = schedule.rates.accelerator.ddr.both_directions
        moved: Counter[tuple[int, str]] = Counter()
        for item in schedule.instructions:
            if item.size_bytes:
                moved[item.step, item.engine] += item.size_bytes
        for step in program.steps:
            sources = {program.storages[reading.storage].scope for reading in step.readings}
            scopes = {program.storages[step.writes].scope, *sources}
            if not step.operators and scopes == {DDR}:
                copies += 1
                boxes = (program.chip.bytes_of(item.tensor, item.box) for item in step.readings)
                size_bytes = sum(boxes)
                ways = {"dma_in": 1, "dma_out": 1} if both else {"dma": 2}
                crossed = {name: n for (at, name), n in moved.items() if at == step.number}
                assert crossed == {name: n * size_bytes for name, n in ways.items()}
    assert copies > 3
