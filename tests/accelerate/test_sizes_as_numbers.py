"""Sizes in a network's arithmetic are the numbers of the batch that a cluster computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import pad

from nnstretch.accelerate.accelerate import AccelerateRequest, accelerate
from nnstretch.accelerate.chip_graph import chip_graph
from nnstretch.accelerate.execute import check
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.network_batches import NetworkBatches
from nnstretch.accelerate.policies import ScheduleOptions
from nnstretch.errors import UnsupportedOp
from nnstretch.graph import Graph, Node, TensorSpec, Value, ValueRef

Compute = Callable[[torch.Tensor], torch.Tensor]
FUNCTIONS: dict[str, Compute] = {
    "factor": lambda x: x * x.shape[0],
    "divisor": lambda x: x.sum((1, 2), keepdim=True) / x.shape[0] + x,
    "remainder": lambda x: x * (x.shape[0] % 2 + 1),
    "number of elements": lambda x: x / x.numel(),
    "largest value": lambda x: x.clamp(max=x.shape[0]),
    "bounds of slices": lambda x: torch.cat([x[x.shape[0] // 2 :], x[: x.shape[0] // 2]]),
    "index": lambda x: x[x.shape[0] - 1] * 2,
    "shift": lambda x: torch.roll(x, x.shape[0] // 2, 0),
    "padding": lambda x: pad(x, (0, x.shape[0])),
    "shape": lambda x: x.reshape(x.shape[0] * 2, -1).view(x.shape[0], -1) + 1,
}


class Scaled(nn.Module):
    """A layer and what a function makes of it."""

    def __init__(self, compute: Compute) -> None:
        super().__init__()
        self.layer, self.compute = nn.Linear(8, 8), compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layer, then the function of it."""
        return self.compute(self.layer(x))


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_size_counts_as_the_number_that_it_is(name: str, batch: int) -> None:
    torch.manual_seed(0)
    network = NetworkBatches(Scaled(FUNCTIONS[name]), (torch.randn(1, 4, 8),), name)
    rates = ChipRates(load_accelerator("stcp920"), "fp16")
    schedule = accelerate(
        network.graph, AccelerateRequest(rates, batch, ScheduleOptions("lb"), batch)
    ).schedule
    examples = network.random_inputs(batch)
    inputs = {network.graph(batch).inputs[0].name: examples[0]}
    cores = rates.accelerator.cores
    check(schedule.placed, cores, network.weights(batch), inputs, network.outputs(examples))


def test_a_number_that_shapes_do_not_give_is_refused_by_name() -> None:
    spec = TensorSpec((2, 8))
    size = Node("pitch", "sym_stride.int", (ValueRef("x"), 0), (TensorSpec((), "int64"),))
    scaled = Node("scaled", "mul.Tensor", (ValueRef("x"), ValueRef("pitch")), (spec,))
    graph = Graph("strides", (Value("x", spec),), (), (size, scaled), ("scaled",))
    with pytest.raises(UnsupportedOp, match=r"no number of sym_stride\.int, node pitch"):
        chip_graph(graph, "fp16")
