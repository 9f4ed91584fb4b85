"""Every byte that a schedule needs crosses the memory outside of the cores."""

from __future__ import annotations

import math
from collections import Counter

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
from nnstretch.accelerate.engines.tiling import head_tiles
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.network_batches import NetworkBatches
from nnstretch.accelerate.policies import ClusterSchedule, ScheduleOptions
from nnstretch.chip.boxes import box_elements, intersect
from nnstretch.chip.instances import DDR
from nnstretch.errors import BadPlan

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


@pytest.mark.slow
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


class WeightFirst(nn.Module):
    """A product whose first operand is a weight."""

    def __init__(self, rows: int, inputs: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(rows, inputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the product."""
        return torch.relu(self.rows @ x)


class Product(nn.Module):
    """A product of two activations."""

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Compute the product."""
        return first @ second


class WeightSecond(nn.Module):
    """The product with a weight in the place of its second operand."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.columns = nn.Parameter(torch.zeros(inputs, outputs))

    def forward(self, first: torch.Tensor) -> torch.Tensor:
        """Compute the product."""
        return first @ self.columns


@pytest.mark.parametrize("machine", ["ethos-u55-128", "nvdla-64", "stcp920"])
@pytest.mark.parametrize("outputs", [8, 64])
def test_all_of_a_weight_that_is_the_first_operand_crosses(machine: str, outputs: int) -> None:
    module = WeightFirst(1024, 1000)
    result = scheduled(module, torch.zeros(1, 1000, outputs), machine=machine)
    moved = traffic(result.schedule.instructions)
    assert moved["weights"] >= 1024 * 1000
    assert result.throughput_per_s <= bound_of(result)[0]


@pytest.mark.parametrize("machine", ["ethos-u55-128", "nvdla-64"])
def test_a_product_of_activations_moves_as_much_as_one_with_a_weight(machine: str) -> None:
    first, second = torch.zeros(1, 512, 512), torch.zeros(1, 512, 512)
    activations = scheduled(Product(), first, second, machine=machine)
    weighted = scheduled(WeightSecond(512, 512), first, machine=machine)
    moved, limit = (traffic(r.schedule.instructions)["ddr"] for r in (activations, weighted))
    assert moved == pytest.approx(limit, rel=0.1)


@pytest.mark.parametrize(("heads", "second_heads"), [(6, 6), (6, 1)])
def test_every_head_of_the_second_operand_is_there_for_all_rows(
    heads: int, second_heads: int
) -> None:
    first, second = torch.zeros(1, heads, 256, 64), torch.zeros(1, second_heads, 64, 256)
    schedule = scheduled(Product(), first, second).schedule
    (work,), (tiling,) = schedule.placed.works.values(), schedule.placed.tilings.values()
    heads_at_once = -(-heads // head_tiles(work.shape, tiling))
    channels = 256 * head_tiles(work.shape, tiling) // tiling.outputs
    (slots,) = (
        slots
        for stream, slots in zip(work.streams, tiling.stream_slots, strict=True)
        if stream.columns
    )
    needed_bytes = min(heads_at_once, second_heads) * 64 // tiling.inputs * channels
    assert slots[0].stop - slots[0].start == needed_bytes


def test_two_operands_of_one_tensor_are_both_there() -> None:
    class Packed(nn.Module):
        """Scores of queries and keys that lie in one tensor."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Compute the product."""
            return x[..., :64] @ x[..., 64:].transpose(1, 2)

    schedule = scheduled(Packed(), torch.zeros(1, 512, 128)).schedule
    (work,) = schedule.placed.works.values()
    assert [(stream.size_bytes, stream.columns) for stream in work.streams] == [
        (512 * 64, False),
        (512 * 64, True),
    ]


@pytest.mark.parametrize(
    "norm", [nn.GroupNorm(1, 64), nn.InstanceNorm2d(64), nn.Softmax(1), nn.GroupNorm(8, 64)]
)
def test_tiles_hold_what_is_normalised_together(norm: nn.Module) -> None:
    together = {nn.Softmax: 64, nn.InstanceNorm2d: 32 * 32, nn.GroupNorm: 64 * 32 * 32}
    mixed = together[type(norm)] // getattr(norm, "num_groups", 1)
    if 4 * mixed > 24 * 1024:
        with pytest.raises(BadPlan, match="does not fit even alone"):
            scheduled(norm, torch.zeros(1, 64, 32, 32))
        return
    placed = scheduled(norm, torch.zeros(1, 64, 32, 32)).schedule.placed
    tiling = placed.tilings[0]
    assert (64 * 32 * 32 // tiling.rows) % mixed == 0
