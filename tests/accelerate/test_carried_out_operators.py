"""Operators that few networks have: the schedule carried out computes the network's numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import embedding, pad, prelu, scaled_dot_product_attention

from nnstretch.accelerate.accelerate import AccelerateRequest, accelerate
from nnstretch.accelerate.engines.verify_plan import verify_plan
from nnstretch.accelerate.execute import check
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.network_batches import NetworkBatches
from nnstretch.accelerate.policies import ScheduleOptions
from nnstretch.chip.instances import Instruction
from nnstretch.errors import BadInput, UnsupportedOp


class Layered(nn.Module):
    """A linear layer of 16 features and what a function makes of it."""

    def __init__(self, compute: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.vector = nn.Parameter(torch.randn(16))
        self.row = nn.Parameter(torch.randn(6))
        self.table = nn.Parameter(torch.randn(9, 16))
        self.register_buffer("allowed", torch.ones(6, 6, dtype=torch.bool).tril())
        self.compute = compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layer, then the function of it."""
        return self.compute(self, self.layer(x))


def attend(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(x, x.sin(), x, attn_mask=mask)


def attend_to(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(x, y, y)


FUNCTIONS: dict[str, Callable[[Layered, torch.Tensor], torch.Tensor]] = {
    "mask of a buffer": lambda net, x: attend(x, net.allowed),
    "mask that is computed": lambda net, x: attend(x, (x @ x.mT).tanh() + 1 > 0.2),
    "mask of numbers": lambda net, x: attend(x, (x @ x.mT).tanh()),
    "product with a vector": lambda net, x: x @ net.vector,
    "vector before a product": lambda net, x: net.row @ x,
    "product with its own row": lambda net, x: x[..., 0] @ net.row,
    "where": lambda net, x: torch.where(x > 0, x, 0.1 * x),
    "masked_fill": lambda net, x: x.masked_fill(x.abs() > 1, 0.5),
    "values where they are true": lambda net, x: (x > 0) * x + (x.sin() > 0.5) * x.cos(),
    "index that is computed": lambda net, x: embedding((x[..., 0] > 0).long() + 3, net.table),
}


def share_heads(x: torch.Tensor) -> torch.Tensor:
    """Four heads of queries share two of keys and values."""
    query, key = x.unflatten(-1, (4, 4)).mT, x[..., :8].unflatten(-1, (2, 4)).mT
    query, key = query.transpose(1, 3), key.transpose(1, 3)
    return scaled_dot_product_attention(query, key, key.cos(), enable_gqa=True)


def share_latents(x: torch.Tensor) -> torch.Tensor:
    """Four heads of queries share two heads that are keys and values at once."""
    query, latent = x.unflatten(-1, (4, 4)).mT, x[..., :8].unflatten(-1, (2, 4)).mT
    query, latent = query.transpose(1, 3), latent.transpose(1, 3)
    return scaled_dot_product_attention(query, latent, latent, enable_gqa=True)


def behind_padding(mask: torch.Tensor) -> torch.Tensor:
    """Return a mask of which the first rows and columns are padding, which nothing sees."""
    places = torch.arange(len(mask)) > 1
    return mask & places & places[:, None]


FUNCTIONS |= {
    "rows of a mask that see nothing": lambda net, x: attend(x, behind_padding(net.allowed)),
    "rows of numbers that see nothing": lambda net, x: attend(
        x, torch.where(behind_padding(net.allowed), 0.5, -math.inf)
    ),
    "heads of keys that are values": lambda net, x: share_latents(x),
    "nothing of a computed tensor": lambda net, x: torch.cat([x.sin()[..., :0], x.cos()], -1),
    "padding that crops all": lambda net, x: pad(x.sin(), (-16, 16)) + x,
    "attention to what came before": lambda net, x: scaled_dot_product_attention(
        x, x.sin(), x, is_causal=True
    ),
    "heads that share keys": lambda net, x: share_heads(x),
    "slope of each channel": lambda net, x: prelu(x, net.row),
    "one slope": lambda net, x: prelu(x, net.row[:1]),
    "attention of one tensor to another": lambda net, x: attend_to(x, x.sin()),
}


def request(machine: str, assume: list[str], policy: str, batch: int) -> AccelerateRequest:
    described = load_accelerator(machine, assume, policy)
    rates = ChipRates(described, described.element_types[0])
    return AccelerateRequest(rates, batch, ScheduleOptions(policy, parts_margin=math.inf), batch)


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("machine", "assume", "policy"),
    [
        ("stcp920", ["local_buffer.size=512B", "fallback=ddr"], "graphturbo"),
        ("stcp920", [], "lb"),
        ("nvdla-64", [], "ddr"),
    ],
)
def test_an_operator_computes_its_numbers(
    name: str, machine: str, assume: list[str], policy: str
) -> None:
    torch.manual_seed(0)
    network = NetworkBatches(Layered(FUNCTIONS[name]), (torch.randn(1, 6, 16),), name)
    result = accelerate(network.graph, request(machine, assume, policy, 3))
    schedule = result.schedule
    verify_plan(schedule.placed, schedule.rates)
    examples = network.random_inputs(3)
    inputs = {network.graph(3).inputs[0].name: examples[0]}
    cores = schedule.rates.accelerator.cores
    check(schedule.placed, cores, network.weights(3), inputs, network.outputs(examples))


@pytest.mark.parametrize("compute", [lambda net, x: x, lambda net, x: x.flatten(1)])
def test_a_network_that_computes_nothing_is_refused(
    compute: Callable[[Layered, torch.Tensor], torch.Tensor],
) -> None:
    network = NetworkBatches(Layered(compute), (torch.randn(1, 6, 16),), "still")
    network.module.layer = nn.Identity()
    with pytest.raises(BadInput, match="nothing to compute, still"):
        accelerate(network.graph, request("stcp920", [], "lb", 2))


class Biased(nn.Module):
    """Scores of attention with a bias of their own, as those of windows."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute attention."""
        return (x @ x.mT + self.bias).softmax(-1) @ x


@pytest.mark.parametrize("policy", ["ddr", "lb", "graphturbo"])
def test_a_bias_larger_than_a_local_buffer_is_loaded_row_by_row(policy: str) -> None:
    torch.manual_seed(0)
    network = NetworkBatches(Biased(), (torch.randn(1, 64, 16),), "biased")
    small = accelerate(network.graph, request("stcp920", ["local_buffer.size=6KiB"], policy, 3))
    verify_plan(small.schedule.placed, small.schedule.rates)
    examples = network.random_inputs(3)
    inputs = {network.graph(3).inputs[0].name: examples[0]}
    check(small.schedule.placed, 8, network.weights(3), inputs, network.outputs(examples))
    large = accelerate(network.graph, request("stcp920", [], policy, 3))
    loaded = [weights_bytes(result.schedule.instructions) for result in (large, small)]
    assert loaded[0] == 2 * 64 * 64
    assert loaded[1] > loaded[0]
    assert small.latency_us >= large.latency_us


def weights_bytes(instructions: tuple[Instruction, ...]) -> int:
    """Bytes of weights over DDR."""
    return sum(
        item.size_bytes
        for item in instructions
        if item.engine == "dma_in" and " weights " in item.name
    )


class Bags(nn.Module):
    """Bags of three rows, as recommendation networks read their tables."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(9, 16, mode=mode)
        self.layer = nn.Linear(16, 4)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        """Compute a layer of each bag."""
        return self.layer(self.table(index))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_rows_compute_their_numbers(mode: str) -> None:
    torch.manual_seed(0)
    network = NetworkBatches(Bags(mode), (torch.tensor([[1, 8, 3]]),), "bags")
    small = ["local_buffer.size=512B", "fallback=ddr"]
    result = accelerate(network.graph, request("stcp920", small, "graphturbo", 4))
    examples = network.random_inputs(4)
    inputs = {network.graph(4).inputs[0].name: examples[0]}
    placed = result.schedule.placed
    verify_plan(placed, result.schedule.rates)
    check(placed, 8, network.weights(4), inputs, network.outputs(examples))


def test_bags_in_which_a_row_counts_as_none_are_refused() -> None:
    bags = Bags("sum")
    bags.table = nn.EmbeddingBag(9, 16, mode="sum", padding_idx=0)
    network = NetworkBatches(bags, (torch.tensor([[1, 8, 3]]),), "bags")
    with pytest.raises(UnsupportedOp, match="no cost of output 0 of embedding_bag"):
        accelerate(network.graph, request("stcp920", [], "lb", 4))


class Flexible(nn.Module):
    """A network of any number of inputs, which torch.export traces for one batch only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Compute the sum of a layer of each."""
        return sum((self.layer(x) for x in tensors), torch.zeros(()))


def test_a_network_that_is_traced_for_one_batch_is_traced_again_for_another() -> None:
    network = NetworkBatches(Flexible(), (torch.randn(1, 16), torch.randn(1, 16)), "flexible")
    for batch in (4, 2, 1, 3):
        assert network.graph(batch).inputs[1].spec.shape == (batch, 16)
