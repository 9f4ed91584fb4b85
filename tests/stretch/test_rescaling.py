"""Inherited features put right: norms of their own averages, layers and ends rescaled."""

from __future__ import annotations

import pytest
import torch
from support.halved_layers import IMAGES, Tokens, halves, in_two_halves, pair
from support.random_networks import INPUT, Step, network, relative
from torch import nn

from nnstretch.errors import BadInput
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import stretch
from nnstretch.stretch.weights.feature_matching import (
    FeatureTeacher,
    feature_loss,
    meeting_points,
    with_features,
)
from nnstretch.stretch.weights.foldable_layers import Term, input_rows
from nnstretch.stretch.weights.least_squares import LayerSamples, RidgeFit, scale_terms
from nnstretch.stretch.weights.precise_bn import precise_bn
from nnstretch.stretch.weights.reconstruction import join_batches, reconstruct


def test_precise_norms_are_averages_over_batches() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm2d(3, momentum=0.3)).train()
    batches = [torch.randn(4, 3, 2, 2), 2 + 3 * torch.randn(12, 3, 2, 2)]
    norm = module[1]
    before = norm.num_batches_tracked.clone()
    precise_bn(module, batches)
    for got, what in ((norm.running_mean, torch.mean), (norm.running_var, torch.var)):
        expected = sum(len(b) / 16 * what(b, dim=(0, 2, 3)) for b in batches)
        assert torch.allclose(got, expected, rtol=1e-5)
    assert module.training
    assert norm.training
    assert norm.momentum == 0.3
    assert norm.num_batches_tracked == before


class TwoCalls(nn.Module):
    """One norm called twice, and a norm that is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.silent = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(5 * self.norm(x) + 3)  # type: ignore[no-any-return]


def test_a_norm_that_is_called_twice_gets_the_averages_over_both_calls() -> None:
    torch.manual_seed(0)
    module, pytorch = TwoCalls(), TwoCalls().train()
    module.silent.running_mean.fill_(0.1)
    pytorch.norm.momentum = None  # averages over all calls
    batches = [torch.randn(8, 3, 4, 4), 2 + 3 * torch.randn(8, 3, 4, 4)]
    precise_bn(module, batches)
    for batch in batches:
        pytorch(batch)
    assert torch.allclose(module.norm.running_mean, pytorch.norm.running_mean, rtol=1e-5)
    assert torch.allclose(module.norm.running_var, pytorch.norm.running_var, rtol=1e-5)
    assert torch.equal(module.silent.running_mean, torch.full((3,), 0.1))
    assert not module.norm._forward_hooks


@pytest.mark.parametrize("batches", [[], [torch.randn(8, 3, 2, 2), torch.randn(1, 3, 2, 2)]])
def test_norms_need_images_and_an_error_leaves_them_alone(batches: list[torch.Tensor]) -> None:
    module = nn.BatchNorm2d(3)
    with pytest.raises(BadInput, match="statistics of batch norms"):
        precise_bn(module, batches)
    assert torch.equal(module.running_mean, torch.zeros(3))
    assert module.momentum == 0.1


def layers(kernel: int, normed: bool) -> Term:
    torch.manual_seed(kernel)
    layer, norm = (
        nn.Conv2d(4, 6, kernel, padding=kernel // 2, stride=2),
        nn.BatchNorm2d(6).eval() if normed else None,
    )
    if norm is not None:
        for tensor in (norm.weight.data, norm.bias.data, norm.running_mean):
            tensor.normal_()
        norm.weight.data[2] = 0
    return Term(layer, norm, "x", "y")


def written(term: Term, x: torch.Tensor) -> torch.Tensor:
    y = term.layer(x) if term.norm is None else term.norm(term.layer(x))
    return y.movedim(1, -1).flatten(0, -2).detach()


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("kernel", [1, 3])
def test_a_whole_fit_reaches_any_layer_of_its_kind(kernel: int, normed: bool) -> None:
    term, aim = layers(kernel, normed), layers(kernel, normed)
    aim.layer.weight.data.normal_()
    x = torch.randn(64, 4, 9, 9)
    missing = written(aim, x) - written(term, x)
    fit = RidgeFit([term], LayerSamples((input_rows(term, x),), (written(term, x),), missing))
    fit.apply(1e-9)
    assert relative(written(aim, x), written(term, x)) < 1e-3
    y = torch.randn(8, 4, 9, 9)
    assert relative(written(aim, y), written(term, y)) < 1e-3
    if term.norm is not None:  # training measures what is remembered
        now = term.layer(x).detach()
        assert torch.allclose(term.norm.running_mean, now.mean((0, 2, 3)), atol=1e-4)


def test_scales_and_shifts_are_found_for_every_summand() -> None:
    one, two = layers(1, True), layers(3, True)
    x = torch.randn(64, 4, 9, 9)
    a, b = written(one, x), written(two, x)
    missing = 0.5 * a - 0.25 * b + 3
    samples = LayerSamples((None, None), (a, b), missing)
    scale_terms([one, two], samples)
    assert relative(a + b + missing, written(one, x) + written(two, x)) < 0.01


ENDS = "conv residual inverted grouped dense shuffle layernorm attention standard pool".split()  # noqa: SIM905


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENDS)
def test_rescaling_changes_numbers_only_and_makes_nothing_worse(kind: str) -> None:
    module = network([Step(kind, 16, 2)]).eval()
    both = in_two_halves(module)
    shapes = {key: value.shape for key, value in both.state_dict().items()}
    original = {key: value.clone() for key, value in module.state_dict().items()}
    drawn = torch.get_rng_state()
    rows = reconstruct(both, module, IMAGES)
    assert [(row.end, row.met, len(row.fits)) for row in rows] == [
        ("blocks", True, 2),
        ("output", False, 1),
    ]
    assert all(row.after <= row.before for row in rows)
    assert {key: value.shape for key, value in both.state_dict().items()} == shapes
    assert all(torch.isfinite(value).all() for value in both.state_dict().values())
    assert all(torch.equal(value, original[key]) for key, value in module.state_dict().items())
    assert both.training
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "merge"),
    [("conv", "concat"), ("residual", "concat"), ("residual", "project"), ("grouped", "project")],
)
def test_rescaling_helps_where_a_branch_ends_in_a_layer(kind: str, merge: str) -> None:
    """On new images of the same sort, too."""
    module = network([Step("conv", 32), Step(kind, 32, 2)]).eval()
    both = stretch(module, halves("blocks", 16, 16, merge=merge))
    new = torch.randn((32, *INPUT[1:]), generator=torch.Generator().manual_seed(9))

    def off() -> float:
        with torch.no_grad():
            return float(
                feature_loss(
                    with_features(both.eval(), new)[1],
                    FeatureTeacher(module, both)(new)[1],
                    meeting_points(both),
                )
            )

    before = off()
    reconstruct(both, module, IMAGES)
    assert off() < 0.96 * before


def test_tokens_are_rescaled_along_their_channels() -> None:
    torch.manual_seed(0)
    module = Tokens().eval()
    both = stretch(module, halves("relu_1", 16, 16, model="tokens"))
    (point,) = meeting_points(both)
    assert point.axis == 2
    rows = reconstruct(both, module, IMAGES)
    assert rows[0].after < rows[0].before


class SpatialBias(nn.Module):
    """A layer and a summand that every channel, or every image, shares."""

    def __init__(self, shared: str) -> None:
        super().__init__()
        self.shared = shared
        self.stem = nn.Linear(3, 8)
        self.layer = nn.Linear(8, 8)
        self.bias = nn.Linear(8, 1 if shared == "channels" else 8)
        self.place = nn.Parameter(torch.randn(256, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x.flatten(2).transpose(1, 2))
        bias = self.bias(x if self.shared == "channels" else self.place)
        return self.head((self.layer(x) + bias).relu().mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("shared", ["channels", "images"])
def test_a_sum_with_what_is_repeated_along_it_is_not_fitted(shared: str) -> None:
    torch.manual_seed(0)
    module = SpatialBias(shared).eval()
    both = stretch(module, halves("relu", 4, 4, model="tokens", merge="project"))
    (first, _) = reconstruct(both, module, IMAGES)
    assert set(first.fits) <= {"as it was", "measured"}
    assert first.after <= first.before


def test_what_computes_the_original_is_left_as_it_was() -> None:
    module = network([Step("residual", 16, 2)]).eval()
    same = stretch(module, Plan("net", INPUT, (Segment("input", "output", (Branch("cpu"),)),)))
    before = {key: value.clone() for key, value in same.state_dict().items()}
    (row,) = reconstruct(same, module, IMAGES)
    assert row.fits == ("as it was",)
    assert all(torch.equal(value, before[key]) for key, value in same.state_dict().items())


def test_rescaling_needs_images_to_judge_by() -> None:
    module, both = pair(Step("conv", 16))
    for batches in ([], [IMAGES[0][:7]]):
        with pytest.raises(BadInput, match="at least 8 images"):
            reconstruct(both, module, batches)


def test_a_small_last_batch_joins_the_one_before() -> None:
    assert [len(b) for b in join_batches([torch.zeros(n, 3) for n in (16, 16, 3)])] == [16, 19]
    assert [len(b) for b in join_batches([torch.zeros(n, 3) for n in (3, 6, 8, 2)])] == [9, 10]


def test_norms_that_do_not_train_keep_their_statistics() -> None:
    class Frozen(nn.Sequential):
        def train(self, mode: bool = True) -> Frozen:
            return super().train(False)

    norms = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    module = nn.Sequential(Frozen(norms[0]), norms[1]).eval()
    precise_bn(module, [torch.randn(8, 3, 4, 4) + 5])
    assert norms[0].running_mean is not None
    assert norms[1].running_mean is not None
    assert norms[0].running_mean.tolist() == [0.0] * 3
    assert (norms[1].running_mean > 4).all()
    assert not norms[1].training
