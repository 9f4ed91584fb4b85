"""Branch drop-out, and features at meeting points: the teacher's and their error."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.halved_layers import X, halves, in_two_halves, pair
from support.random_networks import INPUT, KINDS, Step, network, relative
from torch import nn

from nnstretch.errors import BadInput
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import stretch
from nnstretch.stretch.weights.branched_module import drop_branches
from nnstretch.stretch.weights.feature_matching import (
    FeatureTeacher,
    feature_error,
    feature_loss,
    meeting_names,
    meeting_points,
    with_features,
)


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


@pytest.mark.slow
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


@pytest.mark.slow
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
