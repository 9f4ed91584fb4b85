"""Units whose shortcut meets fixed, concatenated, cut, repeated or folded channels: they cost at
every width what they cost when they are lowered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from stretch.test_search_space import blocked, check_space
from support.search_instances import chip
from support.slow_half import half_slow
from torch import Tensor, nn
from torch.nn import functional as F

from nnstretch import stretch
from nnstretch.capture.torch_export import capture
from nnstretch.graph import Graph
from nnstretch.soc import Soc
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.cost.layout_costs import PLAIN_BOUNDARY
from nnstretch.stretch.lowering.lower import single_processor_plan
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.constraints import SegmentLimits
from nnstretch.stretch.search.search import search
from nnstretch.stretch.search.space.search_space import SearchSpace

C = 32
"""Channels before and behind a unit."""


def conv(cin: int, cout: int, window: int = 3, groups: int = 1) -> nn.Module:
    layer = nn.Conv2d(cin, cout, window, padding=window // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(cout), nn.ReLU())


class Unit(nn.Module):
    """Layers `a` and `b`, and how their outputs join the input."""

    def __init__(self, join: Callable[[Unit, Tensor], Tensor], a: nn.Module, b: nn.Module) -> None:
        super().__init__()
        self.join, self.a, self.b = join, a, b
        self.bound = nn.Parameter(torch.rand(C, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.join(self, x)


def half(window: int = 3) -> nn.Module:
    return conv(C, C // 2, window)


UNITS: dict[str, Callable[[], Unit]] = {
    "pixel_shuffle": lambda: Unit(
        lambda u, x: F.interpolate(x, scale_factor=2.0) + F.pixel_shuffle(u.a(x), 2),
        conv(C, 4 * C),
        nn.Identity(),
    ),
    "pixel_unshuffle": lambda: Unit(
        lambda u, x: F.avg_pool2d(x, 2) + F.pixel_unshuffle(u.a(x), 2),
        conv(C, C // 4),
        nn.Identity(),
    ),
    "concatenated": lambda: Unit(lambda u, x: x + torch.cat([u.a(x), u.b(x)], 1), half(), half(1)),
    "padded": lambda: Unit(
        lambda u, x: F.relu(x + F.pad(u.a(x), (0, 0, 0, 0, 8, 8))), half(), nn.Identity()
    ),
    "cut and padded": lambda: Unit(
        lambda u, x: x + F.pad(u.a(x)[:, : C // 2], (0, 0, 0, 0, 0, C // 2)),
        conv(C, C),
        nn.Identity(),
    ),
    "gated": lambda: Unit(lambda u, x: x + F.glu(u.a(x), 1), conv(C, 2 * C), nn.Identity()),
    "summed up": lambda: Unit(lambda u, x: x + torch.cumsum(u.a(x), 1), conv(C, C), nn.Identity()),
    "repeated": lambda: Unit(lambda u, x: x + u.a(x).repeat(1, 2, 1, 1), half(), nn.Identity()),
    "interleaved": lambda: Unit(
        lambda u, x: x + u.a(x).repeat_interleave(2, 1), half(), nn.Identity()
    ),
    "concatenated with the input": lambda: Unit(
        lambda u, x: torch.cat([x + u.a(x), u.b(x)], 1), conv(C, C), half()
    ),
    "shortcut of half the input": lambda: Unit(
        lambda u, x: x[:, : C // 2] + u.a(x), half(), nn.Identity()
    ),
    "bounded": lambda: Unit(
        lambda u, x: torch.clamp(u.a(x), min=u.bound, max=1 + u.bound), conv(C, C), nn.Identity()
    ),
    "bounded below": lambda: Unit(
        lambda u, x: x + u.a(x).clamp_min(u.bound), conv(C, C), nn.Identity()
    ),
    "raised": lambda: Unit(
        lambda u, x: u.a(x).pow(2 + u.bound).mean(3, keepdim=True) + x, conv(C, C), nn.Identity()
    ),
    "larger of two": lambda: Unit(
        lambda u, x: torch.max(*u.a(x).chunk(2, 1)), conv(C, 2 * C), nn.Identity()
    ),
    "smaller of input and path": lambda: Unit(
        lambda u, x: torch.min(u.a(x), x) + torch.max(u.a(x), u.bound), conv(C, C), nn.Identity()
    ),
    "blurred": lambda: Unit(
        lambda u, x: F.conv2d(u.a(x), torch.full((C, 1, 3, 3), 1 / 9), padding=1, groups=C),
        conv(C, C),
        nn.Identity(),
    ),
    "cut into pairs": lambda: Unit(
        lambda u, x: u.a(x).unflatten(1, (C, 2)).amax(2), conv(C, 2 * C), nn.Identity()
    ),
    "cut into rows": lambda: Unit(
        lambda u, x: u.a(x).unflatten(-1, (-1, 2)).amax(4) + u.b(x)[..., :1],
        conv(C, C),
        conv(C, C),
    ),
    "folded into the batch": lambda: Unit(
        lambda u, x: x * F.softmax(u.a(x).reshape(x.shape[0] * C, -1), 1).reshape(x.shape),
        conv(C, C),
        nn.Identity(),
    ),
    "two sums": lambda: Unit(lambda u, x: x + u.b(x + u.a(x)), conv(C, C), conv(C, C)),
}


IMAGE = torch.linspace(-1, 1, 3 * 12 * 12).view(1, 3, 12, 12)


@cache
def module(kind: str) -> nn.Module:
    torch.manual_seed(0)
    unit = UNITS[kind]().eval()
    with torch.no_grad():
        wide = unit(torch.zeros(1, C, 12, 12)).shape[1]
    layers = [conv(3, 24), conv(24, C), unit, conv(wide, 24), conv(24, C)]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(C, 10))
    return nn.Sequential(*layers, *head).eval()


@cache
def network(kind: str) -> Graph:
    return capture(module(kind), IMAGE, kind)


@pytest.mark.parametrize(
    "make", [chip, pytest.param(blocked, marks=pytest.mark.slow)], ids=["plain", "blocked"]
)
@pytest.mark.parametrize("kind", half_slow(UNITS))
def test_a_unit_costs_at_every_width_what_it_costs_lowered(
    kind: str, make: Callable[[], Soc]
) -> None:
    analysis = NetworkAnalysis(network(kind))
    space = SearchSpace(analysis, CostModel(make(), "nearest"), ("cpu", "dsp"), SegmentLimits())
    checked = 0
    for number in range(space.last):
        unit = space.unit(number)
        width_in = np.unique([8, 16, 24, 48, 64, unit.section.width_in])[:, None]
        width_out = np.unique([8, 16, 24, 48, 64, unit.section.width_out])[None]
        tabled = unit.costs(width_in, width_out)
        lowered = unit.lowered.costs(width_in, width_out, PLAIN_BOUNDARY)
        built = np.isfinite(lowered.latency_us["cpu"])
        checked += int(built.sum())
        for table, wanted in ((tabled.macs, lowered.macs), (tabled.params, lowered.params)):
            assert np.array_equal(table[built], wanted[built]), unit.section
        for processor, times_us in lowered.latency_us.items():
            tabled_us = tabled.latency_us[processor][built]
            assert tabled_us == pytest.approx(times_us[built], rel=1e-9)
    assert checked > 50


@pytest.mark.slow
@pytest.mark.parametrize("kind", UNITS)
def test_a_search_keeps_its_limits_and_proves_its_plan(kind: str) -> None:
    graph = network(kind)
    for min_macs in (0.85, 1.0):
        result = search(
            graph, chip(), ("cpu", "dsp"), min_macs=min_macs * graph.macs, fallback="nearest"
        )
        assert result.optimal
        for plan in result.plans:
            assert plan.trial.macs >= min_macs * graph.macs


@pytest.mark.slow
@pytest.mark.parametrize("kind", UNITS)
def test_branches_cost_what_their_tables_say(kind: str) -> None:
    assert check_space(network(kind), chip(), None, 0) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", UNITS)
def test_narrow_plans_compute_and_the_original_is_equal(kind: str) -> None:
    net, graph = module(kind), network(kind)
    limits = SegmentLimits(1e3, 1e3, min_width=0.2, main_macs=0.05, segment_macs=0.1)
    found = search(
        graph, chip(), ("cpu", "dsp"), limits, max_macs=0.8 * graph.macs, fallback="nearest"
    )
    branched = stretch(net, found.plans[0].trial.plan).eval()
    whole = stretch(net, single_processor_plan(graph, kind, "cpu")).eval()
    with torch.no_grad():
        assert branched(IMAGE).shape == net(IMAGE).shape
        assert torch.equal(whole(IMAGE), net(IMAGE))
    assert sum(weight.numel() for weight in branched.parameters()) == found.plans[0].trial.params
