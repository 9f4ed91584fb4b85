"""Weights to start from: drawn by the seed, and blocks that begin as the identity."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision.models import densenet121, resnet18, resnet50
from trainings import FACTORY, SMALL, branched_plan, same_weights, small_net, write

from nnstretch.cli import train as train_verb
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import stretch
from nnstretch.stretch.starting import draw, silence_residuals
from nnstretch.train.branching import branched_network
from nnstretch.train.recipe import Branched

IMAGE = torch.zeros(1, 3, 32, 32)


def zeroed(module: nn.Module) -> set[str]:
    return {name for name, weight in module.named_parameters() if name.endswith("weight") and not weight.any()}


def test_the_same_seed_draws_the_same_weights_and_touches_no_other_draw() -> None:
    one, same, other = small_net(seed=1), small_net(seed=2), small_net(seed=1)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    for module, seed in ((one, 7), (same, 7), (other, 8)):
        draw(module, seed)
    assert torch.equal(torch.rand(4), expected)
    assert same_weights(one, same)
    assert not same_weights(one, other)


def test_convolutions_vary_as_he_et_al_say() -> None:
    conv = nn.Conv2d(64, 128, 3)
    draw(conv, 0)
    assert float(conv.weight.detach().std()) == pytest.approx(sqrt(2 / (128 * 9)), rel=0.02)
    assert conv.bias is not None
    assert not conv.bias.any()


@pytest.mark.parametrize("make", [resnet18, resnet50])
def test_the_norms_that_torchvision_starts_at_zero_are_found(make) -> None:  # type: ignore[no-untyped-def]
    module = make(weights=None)
    silence_residuals(module, IMAGE)
    assert zeroed(module) == zeroed(make(weights=None, zero_init_residual=True)) != set()


def test_what_has_no_residual_path_stays_as_it_is() -> None:
    for module in (small_net(), densenet121(weights=None), Twins()):
        before = {key: value.clone() for key, value in module.state_dict().items()}
        assert silence_residuals(module, IMAGE) == ()
        assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())


class Twins(nn.Module):
    """Two ways of one length: at zero, nothing would pass."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
        self.other = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.other(x)


class Shared(nn.Module):
    """One norm at the end of two blocks, and one that the sum is not the only reader of."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.other, self.read_twice = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.norm(self.conv(x))
        x = x + self.norm(self.conv(x))
        y = self.read_twice(self.other(x))
        return (x + y) * y


def test_a_norm_that_somebody_else_reads_stays_as_it_is() -> None:
    assert silence_residuals(Shared(), IMAGE) == ()


def test_blocks_of_branches_begin_as_the_identity_too() -> None:
    model = "torchvision:resnet18"
    halves = (Branch("cpu", width=32), Branch("dsp", width=32))
    plan = Plan(model, (1, 3, 32, 32), (Segment("input", "layer1.1", halves), Segment("layer1.1", "output", (Branch("cpu"),))))
    network = stretch(resnet18(weights=None), plan, inherit=False)
    names = silence_residuals(network, IMAGE)
    assert zeroed(network) == set(names)
    tails = [name.partition("branches.")[2] for name in names]
    assert [tail for tail in tails if "layer1.1" in tail] == ["0.layer1.1.bn2.weight", "1.layer1.1.bn2.weight"]
    assert network(torch.randn(2, 3, 32, 32)).isfinite().all()


@pytest.mark.parametrize("start", ["own", "he", "residual"])
def test_a_training_without_weights_starts_by_its_seed(start: str, tmp_path: Path) -> None:
    recipe = replace(SMALL, model=f"{write(tmp_path / 'net.py', FACTORY)}:make", start=start)  # type: ignore[arg-type]
    one, again, other = (train_verb.networks(replace(recipe, seed=seed), None, None)[0] for seed in (1, 1, 2))
    assert same_weights(one, again)
    assert not same_weights(one, other)


@pytest.mark.parametrize("start", ["own", "he"])
def test_a_branched_network_that_inherits_nothing_starts_by_its_seed(start: str, tmp_path: Path) -> None:
    plan = branched_plan(tmp_path)
    recipe = replace(SMALL, branched=Branched(inherit="none"), start=start)  # type: ignore[arg-type]
    original = train_verb.networks(replace(recipe, model=plan.model), None, None)[0]
    one, again, other = (branched_network(original, plan, replace(recipe, seed=seed)) for seed in (1, 1, 2))
    assert same_weights(one, again)
    assert not same_weights(one, other)
