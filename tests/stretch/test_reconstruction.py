"""Branch drop-out, features at meeting points, and inherited features put right."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_networks import INPUT, KINDS, Step, network, relative
from torch import nn

from nnstretch.errors import BadInput
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import StretchedNetwork, stretch
from nnstretch.stretch.weights.branched_module import drop_branches
from nnstretch.stretch.weights.feature_matching import (
    FeatureTeacher,
    feature_error,
    feature_loss,
    meeting_names,
    meeting_points,
    with_features,
)
from nnstretch.stretch.weights.foldable_layers import Term, input_rows
from nnstretch.stretch.weights.least_squares import LayerSamples, RidgeFit, scale_terms
from nnstretch.stretch.weights.precise_bn import precise_bn
from nnstretch.stretch.weights.reconstruction import join_batches, reconstruct

X = torch.randn(INPUT, generator=torch.Generator().manual_seed(0))
IMAGES = [
    torch.randn((32, *INPUT[1:]), generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)
]


class Tokens(nn.Module):
    """[batch, tokens, channels] all the way to the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.embed(x.flatten(1, 2)))
        return self.head(torch.relu(self.mix(x)).mean(1))


def halves(end: str, *widths: int, merge: str = "concat", model: str = "net") -> Plan:
    branches = tuple(Branch(p, width=w) for p, w in zip(("cpu", "dsp"), widths, strict=True))
    return Plan(
        model,
        INPUT,
        (Segment("input", end, branches, merge), Segment(end, "output", (Branch("cpu"),))),
    )


def pair(
    *steps: Step, merge: str = "concat", widths: tuple[int, int] = (16, 8), end: str = "blocks"
) -> tuple[nn.Module, StretchedNetwork]:
    module = network(steps).eval()
    return module, stretch(module, halves(end, *widths, merge=merge))


def test_without_drop_out_training_draws_nothing_and_computes_what_it_did() -> None:
    _, both = pair(Step("conv", 16))
    before = torch.get_rng_state()
    expected = torch.cat([branch(X) for branch in both.segments[0].branches], 1)
    assert torch.equal(both.train().segments[0](X), expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_drop_out_is_drawn_in_training_only() -> None:
    _, both = pair(Step("conv", 16))
    expected = both.eval()(X)
    both.set_branch_drop(0.5)
    assert torch.equal(both(X), expected)
    both.train()
    for norm in (m for m in both.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.eval()
    torch.manual_seed(1)
    first = both(X)
    torch.manual_seed(1)
    assert torch.equal(both(X), first)
    assert not torch.equal(first, expected)


@settings(max_examples=20, deadline=None)
@given(p=st.floats(0.01, 0.95), count=st.integers(2, 4), seed=st.integers(0, 999))
def test_dropping_keeps_a_branch_of_every_sample_and_the_expectation(
    p: float, count: int, seed: int
) -> None:
    torch.manual_seed(seed)
    samples = 4000
    kept = torch.cat(drop_branches([torch.ones(samples, 3, 2) for _ in range(count)], p), 1)
    by_branch = kept.reshape(samples, count, -1)
    assert (by_branch == by_branch[..., :1]).all(), "a branch is dropped as a whole"
    assert (by_branch.amax((1, 2)) > 0).all(), "some branch survives"
    alive = 1 - p + p**count / count
    five_sigma = 5 * math.sqrt((1 / alive - 1) / samples) + 1e-4
    assert ((by_branch.mean((0, 2)) - 1).abs() < five_sigma).all()


@pytest.mark.parametrize("p", [1.0, -0.1, math.nan])
def test_a_number_that_is_no_probability_is_refused(p: float) -> None:
    with pytest.raises(BadInput, match="branch drop-out"):
        pair(Step("conv", 16))[1].set_branch_drop(p)


def test_what_channels_stand_for_is_not_saved() -> None:
    _, both = pair(Step("conv", 16))
    assert not [key for key in both.state_dict() if "stands_for" in key]
    assert all(key.split(".")[2] == "branches" for key in both.state_dict())


def test_without_inheritance_channels_go_round_the_originals() -> None:
    module = network([Step("conv", 16)])
    cold = stretch(module, halves("blocks", 16, 8), inherit=False)
    assert meeting_points(cold)[0].stands_for.tolist() == [*range(16), *range(8)]


def in_two_halves(module: nn.Module) -> StretchedNetwork:
    """Return the network with its blocks on two processors, each of half the width."""
    branches = tuple(Branch(p, width="0.5x") for p in ("cpu", "dsp"))
    segments = (Segment("input", "blocks", branches), Segment("blocks", "output", (Branch("cpu"),)))
    return stretch(module, Plan("net", INPUT, segments))


@pytest.mark.parametrize("kind", KINDS)
def test_the_teacher_is_the_original(kind: str) -> None:
    module = network([Step(kind, 32, 2)]).eval()
    both = in_two_halves(module)
    seen: list[torch.Tensor] = []
    hook = module.blocks.register_forward_hook(lambda *a: seen.append(a[2]))  # type: ignore[union-attr]
    with torch.no_grad():
        scores, (feature,) = FeatureTeacher(module, both)(X)
        assert relative(module(X), scores) <= 1e-5
    hook.remove()
    assert relative(seen[0], feature) <= 1e-5
    assert meeting_names(both) == ("blocks",)


def test_the_teacher_follows_its_original_and_hides_from_it() -> None:
    module, both = pair(Step("residual", 16, 2))
    teacher, keys = FeatureTeacher(module, both), set(module.state_dict())
    module.to(torch.float64).to(torch.float32)  # replaces every buffer
    module.load_state_dict(network([Step("residual", 16, 2)], seed=1).state_dict())
    module.train()
    scores, _ = teacher(X)
    assert not scores.requires_grad
    assert module.training
    assert set(module.state_dict()) == keys
    with torch.no_grad():
        assert relative(module.eval()(X), scores) <= 1e-5


def test_another_original_is_refused() -> None:
    _, both = pair(Step("conv", 16))
    with pytest.raises(BadInput, match="stretched from one with"):
        FeatureTeacher(network([Step("conv", 24)]), both)


def test_features_of_a_pass_are_what_met_and_its_scores() -> None:
    _, both = pair(Step("conv", 16))
    both.eval()
    scores, (feature,) = with_features(both, X)
    assert torch.equal(scores, both(X))
    assert torch.equal(feature, both.segments[0](X))


@pytest.mark.parametrize("axis", [1, 2])
def test_the_error_of_features_has_a_scale(axis: int) -> None:
    """Zero where they agree, one at the original's mean, whichever dimension holds channels."""
    torch.manual_seed(0)
    teacher = (torch.randn(64, 5, 3) + 2) * torch.tensor([1.0, 4.0, 2.0])
    stands_for = torch.tensor([2, 0, 1, 1])
    mean = teacher.mean((0, 1)).expand_as(teacher)

    def error(student: torch.Tensor) -> float:
        return float(
            feature_error(student.movedim(2, axis), teacher.movedim(2, axis), stands_for, axis)
        )

    assert error(teacher[..., stands_for]) == 0
    assert error(mean[..., stands_for]) == pytest.approx(1, rel=1e-4)
    assert error((2 * teacher - mean)[..., stands_for]) == pytest.approx(1, rel=1e-4)


def test_equal_channels_count_the_same_and_dead_ones_stay_finite() -> None:
    torch.manual_seed(0)
    teacher = torch.randn(64, 4) * torch.tensor([1.0, 3.0, 2.0, 0.0])
    error = feature_error(teacher.mean(0)[:3].expand(64, 3), teacher, torch.arange(3), 1)
    assert float(error) == pytest.approx(1, rel=1e-4)
    assert torch.isfinite(feature_error(teacher + 1, teacher, torch.arange(4), 1))
    assert torch.isfinite(feature_error(teacher[:1] + 1, teacher[:1], torch.arange(4), 1)), (
        "one image with one position"
    )


def test_the_loss_is_the_mean_over_meeting_points_and_reaches_every_branch() -> None:
    module, both = pair(Step("conv", 16))
    _, mine = with_features(both, X)
    _, right = FeatureTeacher(module, both)(X)
    loss = feature_loss(mine, right, meeting_points(both))
    loss.backward()  # type: ignore[no-untyped-call]
    for branch in both.segments[0].branches:
        assert all(
            p.grad is not None and p.grad.abs().sum() > 0
            for p in branch.parameters()
            if p.dim() > 1
        )
    alone = stretch(module, Plan("net", INPUT, (Segment("input", "output", (Branch("cpu"),)),)))
    assert float(feature_loss((), (), meeting_points(alone))) == 0


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
