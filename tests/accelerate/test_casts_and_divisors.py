"""Casts that change numbers are carried out, those that keep them cost nothing; pools divide."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import avg_pool2d

from nnstretch.accelerate.accelerate import AccelerateRequest, accelerate
from nnstretch.accelerate.chip_graph import chip_graph
from nnstretch.accelerate.execute import check
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.network_batches import NetworkBatches
from nnstretch.accelerate.policies import ScheduleOptions
from nnstretch.errors import UnsupportedOp

BATCH = 2
Compute = Callable[[nn.Module, torch.Tensor], torch.Tensor]
CASTS: dict[str, Compute] = {
    "to whole numbers and back": lambda net, x: (x * 3).to(torch.int32).to(torch.float32) * x,
    "to whole numbers": lambda net, x: (x * 3).long(),
    "to the type of whole numbers": lambda net, x: (x * 3).type_as(net.steps).float(),
    "to 16 bits and back": lambda net, x: x.half().float(),
    "to 16 bits, which compute": lambda net, x: (x.bfloat16() * 3).float() + x,
    "to truths": lambda net, x: torch.where(x.relu().bool(), x, -x),
    "to bytes": lambda net, x: (x.abs() * 300).long().to(torch.uint8).float(),
    "of a weight": lambda net, x: x + (net.layer.bias * 9).int(),
}
FREE: dict[str, Compute] = {
    "truths": lambda net, x: net.layer((x > 0).float()),
    "whole numbers": lambda net, x: (x > 0).long().sum(1).int().float().softmax(-1),
    "wider numbers": lambda net, x: (x.double() * 3).float(),
}


class Cast(nn.Module):
    """A layer and what a function makes of it."""

    def __init__(self, compute: Compute) -> None:
        super().__init__()
        self.layer, self.compute = nn.Linear(8, 8), compute
        self.register_buffer("steps", torch.arange(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layer, then the function of it."""
        return self.compute(self, self.layer(x))


def network_of(compute: Compute, *shape: int) -> NetworkBatches:
    torch.manual_seed(0)
    return NetworkBatches(Cast(compute), (torch.randn(1, *shape),), "cast")


def check_numbers(network: NetworkBatches) -> None:
    rates = ChipRates(load_accelerator("stcp920"), "fp16")
    request = AccelerateRequest(rates, BATCH, ScheduleOptions("lb"), BATCH)
    schedule = accelerate(network.graph, request).schedule
    examples = network.random_inputs(BATCH)
    inputs = {network.graph(BATCH).inputs[0].name: examples[0]}
    cores = rates.accelerator.cores
    check(schedule.placed, cores, network.weights(BATCH), inputs, network.outputs(examples))


@pytest.mark.parametrize("name", [*CASTS, *FREE])
def test_a_cast_computes_its_numbers(name: str) -> None:
    check_numbers(network_of({**CASTS, **FREE}[name], 4, 8))


@pytest.mark.parametrize("name", FREE)
def test_a_cast_that_keeps_all_numbers_is_no_operator(name: str) -> None:
    chip = chip_graph(network_of(FREE[name], 4, 8).graph(BATCH), "fp16")
    assert not [node.name for node in chip.operators if node.kind in ("to", "_to_copy")]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_network_of_another_type_computes_its_numbers(dtype: torch.dtype) -> None:
    network = network_of(lambda net, x: x.softmax(-1) * 2, 4, 8)
    network.module.to(dtype)
    network.examples = tuple(example.to(dtype) for example in network.examples)
    check_numbers(network)


def test_a_type_without_a_size_is_refused_by_name() -> None:
    graph = network_of(lambda net, x: x.to(torch.int16).float(), 4, 8).graph(BATCH)
    with pytest.raises(UnsupportedOp, match=r"no cost of int16, node to, "):
        chip_graph(graph, "fp16")


@pytest.mark.parametrize("options", [{}, {"ceil_mode": True}, {"count_include_pad": False}])
def test_a_pool_divides_by_the_number_that_it_is_given(options: dict[str, bool]) -> None:
    def compute(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return avg_pool2d(x, 3, 2, 1, divisor_override=5, **options)

    check_numbers(network_of(compute, 2, 8, 8))
