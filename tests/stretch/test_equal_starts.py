"""A plan and a network's weights say every number that a stretched network starts from."""

from __future__ import annotations

import pytest
import torch
from stretch.test_unusual_units import IMAGE, UNITS, module
from support.random_networks import INPUT, KINDS, Step, network
from torch import nn

from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import stretch

HALVES = (Branch("cpu", width="0.5x"), Branch("dsp", width="0.5x"))
TEAMS = [(HALVES, "concat"), ((Branch("cpu"), Branch("dsp")), "project")]


def starts_equal(module: nn.Module, plan: Plan) -> None:
    """Stretch twice; PyTorch's own draws differ between the two."""
    first, second = (stretch(module, plan).state_dict() for _ in range(2))
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def split_until(end: str, shape: tuple[int, ...], team: tuple[Branch, ...], merge: str) -> Plan:
    behind = Segment(end, "output", (Branch("cpu"),))
    return Plan("net", shape, (Segment("input", end, team, merge), behind))


@pytest.mark.parametrize(("team", "merge"), TEAMS, ids=["concat", "project"])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_start_equal(kind: str, team: tuple[Branch, ...], merge: str) -> None:
    starts_equal(network([Step(kind, 32, 2)]), split_until("blocks", INPUT, team, merge))


@pytest.mark.slow
@pytest.mark.parametrize(("team", "merge"), TEAMS, ids=["concat", "project"])
@pytest.mark.parametrize("kind", UNITS)
def test_unusual_units_start_equal(kind: str, team: tuple[Branch, ...], merge: str) -> None:
    starts_equal(module(kind), split_until("2", tuple(IMAGE.shape), team, merge))


@pytest.mark.parametrize("layers", [(), (nn.Linear(24, 24), nn.Linear(24, 24))])
def test_linear_adapters_start_equal(layers: tuple[nn.Module, ...]) -> None:
    """A `project` merge ends in a linear layer where there are no pixels."""
    pooled = (nn.Conv2d(3, 24, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = nn.Sequential(*pooled, *layers, nn.Linear(24, 5)).eval()
    plan = split_until(str(len(pooled) + len(layers) - 1), INPUT, *TEAMS[1])
    starts_equal(net, plan)
    x = torch.randn(INPUT, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(stretch(net, plan).eval()(x), net(x), atol=1e-5)
