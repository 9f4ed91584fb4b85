"""Repeats that read a width which never scales: once the last is gone, the one before it scales."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random

import pytest
import torch
from stretch.test_search_space import blocked, check_space
from support.brute_force import BruteForce
from support.optimal_plans import check_is_optimal
from support.search_instances import Instance, Rate, chip, random_chip
from support.slow_half import half_slow
from torch import Tensor, nn
from torch.nn import functional as F

from nnstretch.capture import capture
from nnstretch.graph import Graph
from nnstretch.soc import Soc
from nnstretch.stretch.search.constraints import NetworkLimits, SegmentLimits


def conv(cin: int, cout: int) -> nn.Module:
    layer = nn.Conv2d(cin, cout, 3, padding=1, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(cout), nn.ReLU())


class Mixed(nn.Module):
    """Mixes channels by a matrix that is no layer's, which pins how many there are."""

    def __init__(self, mix: Callable[[Tensor, Tensor], Tensor], channels: int) -> None:
        super().__init__()
        self.mix, self.layer = mix, conv(channels, channels)
        self.matrix = nn.Parameter(torch.rand(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.mix(x, self.matrix))


class Windows(nn.Module):
    """A convolution as a product of its windows, which `unfold` makes of all channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = nn.Linear(9 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        columns = F.unfold(x, 3, padding=1).transpose(1, 2)
        n, _, height, width = x.shape
        return self.layer(columns).transpose(1, 2).reshape(n, -1, height, width)


class Classified(nn.Module):
    """Blocks and a classifier behind them."""

    def __init__(self, channels: int, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x).mean((2, 3)))


def summed(x: Tensor, matrix: Tensor) -> Tensor:
    return torch.einsum("nchw,cd->ndhw", x, matrix)


def multiplied(x: Tensor, matrix: Tensor) -> Tensor:
    return (x.flatten(2).transpose(1, 2) @ matrix).transpose(1, 2).unflatten(2, x.shape[2:])


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "einsum": lambda: Classified(16, conv(3, 16), Mixed(summed, 16), Mixed(summed, 16)),
    "matmul": lambda: Classified(16, conv(3, 16), Mixed(multiplied, 16), Mixed(multiplied, 16)),
    "unfold": lambda: Classified(16, conv(3, 16), Windows(16), Windows(16)),
    "read by a convolution": lambda: Classified(
        32, conv(3, 16), *(Mixed(summed, 16) for _ in range(3)), conv(16, 32)
    ),
}


@cache
def captured(name: str) -> Graph:
    return capture(NETWORKS[name]().eval(), torch.zeros(1, 3, 16, 16), name)


def question(graph: Graph, seed: int) -> Instance:
    rng = Random(seed)
    soc = random_chip(rng, ("cpu", "dsp"))
    rates = {p.name: Rate(p.name, 10 ** rng.uniform(2.0, 3.0)) for p in soc.processors}
    limits = SegmentLimits(3, rng.choice((0.8, 1.5)), 0.3, 0.4, 0, rng.choice((0.3, 0.5)))
    bounds = NetworkLimits(rng.choice((0, 0.5)) * graph.macs, math.inf, 0, (), 1)
    merges = ("concat",) if rng.random() < 0.5 else ("concat", "project")
    return Instance(graph, replace(soc, predictors=rates), limits, bounds, 2, merges)


@pytest.mark.parametrize(
    ("name", "seed"),
    half_slow(
        [
            ("einsum", 7),
            ("read by a convolution", 5),
            ("unfold", 0),
            ("matmul", 5),
            ("einsum", 5),
            ("einsum", 0),
        ]
    ),
)
def test_the_optimum_is_what_brute_force_finds(name: str, seed: int) -> None:
    asked = question(captured(name), seed)
    best = BruteForce(asked).best()
    check_is_optimal(asked, best)


@pytest.mark.parametrize("make", [chip, blocked], ids=["plain", "blocked"])
def test_branches_cost_at_every_depth_what_their_layers_do(make: Callable[[], Soc]) -> None:
    graph = captured("read by a convolution")
    assert check_space(graph, make(), 4, 0) > 20
