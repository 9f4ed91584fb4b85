"""Weights to start from: drawn by the seed, and blocks that begin as the identity."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest
import torch
from support.trainings import FACTORY, SMALL, branched_plan, same_weights, small_net, write
from torch import nn
from torchvision.models import densenet121, resnet18, resnet50

from nnstretch.capture import load_model
from nnstretch.cli.train import networks as train_verb
from nnstretch.errors import BadInput
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import stretch
from nnstretch.stretch.weights.initialization import initialize_weights, zero_residuals
from nnstretch.train import save_weights
from nnstretch.train.branched_start import branched_network, refuse_lost_weights
from nnstretch.train.recipe import BranchedSettings

IMAGE = torch.zeros(1, 3, 32, 32)


def zeroed(module: nn.Module) -> set[str]:
    return {
        name
        for name, weight in module.named_parameters()
        if name.endswith("weight") and not weight.any()
    }


def test_the_same_seed_draws_the_same_weights_and_touches_no_other_draw() -> None:
    one, same, other = small_net(seed=1), small_net(seed=2), small_net(seed=1)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    for module, seed in ((one, 7), (same, 7), (other, 8)):
        initialize_weights(module, seed)
    assert torch.equal(torch.rand(4), expected)
    assert same_weights(one, same)
    assert not same_weights(one, other)


def test_convolutions_vary_as_he_et_al_say() -> None:
    conv = nn.Conv2d(64, 128, 3)
    initialize_weights(conv, 0)
    assert float(conv.weight.detach().std()) == pytest.approx(sqrt(2 / (128 * 9)), rel=0.02)
    assert conv.bias is not None
    assert not conv.bias.any()


@pytest.mark.parametrize("sizes", [{}, {"kdim": 12, "vdim": 6, "add_bias_kv": True}])
def test_attention_starts_as_pytorch_starts_it(sizes: dict[str, int]) -> None:
    attention, same = (nn.MultiheadAttention(8, 2, **sizes) for _ in range(2))
    before = {key: value.clone() for key, value in attention.state_dict().items()}
    for module in (attention, same):
        initialize_weights(module, 0)
    assert same_weights(attention, same)
    for name, weight in attention.named_parameters():
        if name.endswith("_proj.bias") or name == "in_proj_bias":
            assert not weight.any()
        else:
            assert not torch.equal(weight, before[name])
    if not sizes:
        bound = sqrt(6 / (8 + 24))  # Glorot and Bengio 2010
        assert 0.9 * bound < float(attention.in_proj_weight.detach().abs().max()) <= bound


def test_attention_changes_no_draw_of_the_layers_behind_it() -> None:
    plain = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    attentive = nn.Sequential(nn.MultiheadAttention(8, 2), nn.Linear(8, 4))
    for module in (plain, attentive):
        initialize_weights(module, 0)
    assert torch.equal(attentive[1].weight, plain[1].weight)


@pytest.mark.slow
@pytest.mark.parametrize("make", [resnet18, resnet50])
def test_the_norms_that_torchvision_starts_at_zero_are_found(make) -> None:  # type: ignore[no-untyped-def]
    module = make(weights=None)
    zero_residuals(module, IMAGE)
    assert zeroed(module) == zeroed(make(weights=None, zero_init_residual=True)) != set()


@pytest.mark.slow
def test_a_network_without_residual_paths_keeps_its_initialization() -> None:
    for module in (small_net(), densenet121(weights=None), Twins()):
        before = {key: value.clone() for key, value in module.state_dict().items()}
        assert zero_residuals(module, IMAGE) == ()
        assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())


class Twins(nn.Module):
    """Two ways of one length: at zero, nothing would pass."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
        self.other = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.other(x)


class Residual(nn.Module):
    """A residual block of what is given, and a convolution before it, so that the sum has something
    to leave.
    """

    def __init__(self, path: nn.Module) -> None:
        super().__init__()
        self.stem, self.path, self.head = nn.Conv2d(3, 8, 3), path, nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(x + self.path(x))  # type: ignore[no-any-return]


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.squeeze(x.mean((2, 3), keepdim=True)).sigmoid()


ENDS: dict[str, tuple[nn.Module, ...]] = {
    "batch norm": (nn.BatchNorm2d(8),),
    "group norm": (nn.GroupNorm(2, 8),),
    "gated": (nn.BatchNorm2d(8), Gate()),
    "dropped": (nn.BatchNorm2d(8), nn.Dropout(0.2)),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_residual_block_begins_as_its_shortcut(end: str) -> None:
    module = Residual(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), *ENDS[end])).eval()
    assert zero_residuals(module, IMAGE) == ("path.1.weight",)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(module(x), module.head(module.stem(x)))


def test_what_is_behind_the_norm_may_not_make_something_of_a_zero() -> None:
    module = Residual(
        nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1))
    )
    assert zero_residuals(module, IMAGE) == ()


class Summed(nn.Module):
    """Sums that are no residual blocks.

    Of three terms, with a weight, with a term that is an output too.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.place = kind, nn.Parameter(torch.ones(8, 1, 1))
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.small = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))
        self.large = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        x = self.stem(x)
        if self.kind == "three":
            return x + self.small(x) + self.large(x)  # type: ignore[no-any-return]
        if self.kind == "weight":
            return self.large(x) + self.place  # type: ignore[no-any-return]
        long = self.large(x)
        return x + long, long


@pytest.mark.parametrize("kind", ["three", "weight", "output"])
def test_sums_that_are_no_residual_blocks_stay_as_they_are(kind: str) -> None:
    assert zero_residuals(Summed(kind), IMAGE) == ()


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
    assert zero_residuals(Shared(), IMAGE) == ()


@pytest.mark.slow
def test_blocks_of_branches_begin_as_the_identity_too() -> None:
    model = "torchvision:resnet18"
    halves = (Branch("cpu", width=32), Branch("dsp", width=32))
    plan = Plan(
        model,
        (1, 3, 32, 32),
        (Segment("input", "layer1.1", halves), Segment("layer1.1", "output", (Branch("cpu"),))),
    )
    network = stretch(resnet18(weights=None), plan, inherit=False)
    names = zero_residuals(network, IMAGE)
    assert zeroed(network) == set(names)
    assert names
    tails = [name.partition("branches.")[2] for name in names]
    assert [tail for tail in tails if "layer1.1" in tail] == [
        "0.layer1.1.bn2.weight",
        "1.layer1.1.bn2.weight",
    ]
    assert network(torch.randn(2, 3, 32, 32)).isfinite().all()


def test_a_network_without_residual_paths_is_refused_where_they_should_be_zero(
    tmp_path: Path,
) -> None:
    recipe = replace(
        SMALL, model=f"{write(tmp_path / 'net.py', FACTORY)}:make", start="zero_residual"
    )
    with pytest.raises(
        BadInput,
        match=(
            r"^start is zero_residual, .*net\.py:make, no residual path of it ends in a batch or"
            r" group norm, take he$"
        ),
    ):
        train_verb.networks(recipe, None, None)


def test_weights_that_a_file_brings_are_not_drawn_over() -> None:
    with pytest.raises(
        BadInput,
        match=r"^start is he, .*made\.onnx brings its own weights, which would be lost; take own$",
    ):
        refuse_lost_weights(replace(SMALL, model="made.onnx", start="he"))


def test_weights_that_are_given_are_what_a_training_starts_from(tmp_path: Path) -> None:
    model = f"{write(tmp_path / 'net.py', FACTORY)}:make"
    save_weights(load_model(model, 5), tmp_path / "w.safetensors")
    for start in ("own", "he", "zero_residual"):
        recipe = replace(SMALL, model=model, start=start)  # type: ignore[arg-type]
        assert same_weights(
            train_verb.networks(recipe, None, str(tmp_path / "w.safetensors"))[0],
            load_model(model, 5),
        )


@pytest.mark.parametrize("start", ["own", "he"])
def test_a_training_without_weights_starts_by_its_seed(start: str, tmp_path: Path) -> None:
    recipe = replace(SMALL, model=f"{write(tmp_path / 'net.py', FACTORY)}:make", start=start)  # type: ignore[arg-type]
    one, again, other = (
        train_verb.networks(replace(recipe, seed=seed), None, None)[0] for seed in (1, 1, 2)
    )
    assert same_weights(one, again)
    assert not same_weights(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["own", "he"])
def test_a_branched_network_that_inherits_nothing_starts_by_its_seed(
    start: str, tmp_path: Path
) -> None:
    plan = branched_plan(tmp_path)
    recipe = replace(SMALL, branched=BranchedSettings(inherit="none"), start=start)  # type: ignore[arg-type]
    original = train_verb.networks(replace(recipe, model=plan.model), None, None)[0]
    one, again, other = (
        branched_network(original, plan, replace(recipe, seed=seed)) for seed in (1, 1, 2)
    )
    assert same_weights(one, again)
    assert not same_weights(one, other)
