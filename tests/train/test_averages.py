"""Averages of weights while they are trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.trainings import UNMOVED, net, same_weights
from torch import nn

from nnstretch.train import evaluate, fit, load_weights
from nnstretch.train.optimizers import WeightAverage, average_decay
from nnstretch.train.recipe import (
    AverageSettings,
)


@given(st.floats(0, 0.99), st.integers(1, 5))
def test_an_average_is_the_weighted_mean_of_all_that_it_followed(decay: float, steps: int) -> None:
    average, moving = nn.BatchNorm2d(2), nn.BatchNorm2d(2)
    running = WeightAverage(average, moving)
    expected = average.weight.detach().clone()
    for step in range(steps):
        nn.init.constant_(moving.weight, float(step + 2))
        moving.num_batches_tracked += 1  # type: ignore[operator]
        running.update(decay)
        expected = decay * expected + (1 - decay) * moving.weight.detach()
    assert torch.allclose(average.weight, expected, atol=1e-5)
    assert int(average.num_batches_tracked) == steps  # type: ignore[arg-type]


def test_a_weight_of_two_names_is_averaged_once() -> None:
    average, moving = (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)) for _ in range(2))
    for tied in (average, moving):
        tied[1].weight = tied[0].weight
    expected = torch.lerp(average[0].weight.detach(), moving[0].weight.detach(), 0.1)
    WeightAverage(average, moving).update(0.9)
    assert torch.equal(average[0].weight, expected)
    assert average[1].weight is average[0].weight


class Centred(nn.Module):
    """A layer with a buffer that is assigned anew, as a moving centre, and with an infinite mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("center", torch.zeros(3))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 1.0]))


def test_an_average_follows_a_buffer_that_is_assigned_anew() -> None:
    average, moving = Centred(), Centred()
    running = WeightAverage(average, moving)
    moving.center = torch.ones(3)
    running.update(0.75)
    moving.center = moving.center + 1
    running.update(0.5)
    assert average.center.tolist() == [1.125] * 3
    moving.center = torch.ones(4)  # of another size
    running.update(0.5)
    assert average.center.tolist() == [1.0] * 4


def test_what_is_infinite_in_a_buffer_stays_so_in_its_average() -> None:
    average, moving = Centred(), Centred()
    running = WeightAverage(average, moving)
    running.update(0.5)
    assert average.mask.tolist() == [0.0, -torch.inf, 1.0]
    moving.mask = torch.tensor([2.0, 3.0, -torch.inf])
    running.update(0.5)
    assert average.mask.tolist() == [1.0, 3.0, -torch.inf]


def test_saved_weights_are_the_average_and_differ_from_the_last_ones(
    tmp_path: Path,
) -> None:
    plain, averaged = net(), net()
    fit(plain, UNMOVED, tmp_path / "plain", progress=False)
    result = fit(
        averaged,
        replace(UNMOVED, average=AverageSettings(decay=0.99)),
        tmp_path / "averaged",
        progress=False,
    )
    assert not same_weights(plain, averaged)
    assert result.val_accuracy == pytest.approx(evaluate(averaged, UNMOVED))
    fresh = net(seed=4)
    load_weights(fresh, result.checkpoint)
    assert same_weights(fresh, averaged)


def test_an_average_that_keeps_nothing_is_the_network(tmp_path: Path) -> None:
    plain, averaged = net(), net()
    fit(plain, UNMOVED, tmp_path / "plain", progress=False)
    fit(
        averaged,
        replace(UNMOVED, average=AverageSettings(decay=1e-12)),
        tmp_path / "averaged",
        progress=False,
    )
    assert all(
        torch.allclose(a, b, atol=1e-6)
        for a, b in zip(plain.state_dict().values(), averaged.state_dict().values(), strict=True)
    )


@given(st.floats(0, 0.99999), st.integers(1, 40), st.integers(1, 400))
def test_an_average_is_of_the_end_of_a_run_however_short_it_is(
    decay: float, every_steps: int, steps: int
) -> None:
    """A weight that starts far away and then moves by one a step.

    Its average is near the last of them.
    """
    average, pace = 1e4, AverageSettings(decay=decay, every_steps=every_steps)
    for done in range(1, steps + 1):
        kept = average_decay(done, rising=False, average=pace)
        assert (kept is None) == (done >= every_steps and done % every_steps > 0)
        average = average if kept is None else kept * average + (1 - kept) * done
    assert average_decay(every_steps * 10**9, rising=False, average=pace) == decay
    if steps >= 12 * every_steps:
        assert abs(steps - average) < 0.2 * steps + 2 * every_steps
    if every_steps > steps:
        assert average == steps


@pytest.mark.slow
def test_a_decay_for_long_runs_does_not_keep_a_short_one_at_its_start(tmp_path: Path) -> None:
    start, plain, averaged = net(), net(), net()
    fit(plain, UNMOVED, tmp_path / "plain", progress=False)
    for every_steps in (1, 32):  # of 44 steps
        averaged = net()
        fit(
            averaged,
            replace(UNMOVED, average=AverageSettings(decay=0.9999, every_steps=every_steps)),
            tmp_path / "averaged",
            progress=False,
        )
        moved, left = (
            sum(
                float((a - b).detach().norm())
                for a, b in zip(averaged.parameters(), other.parameters(), strict=True)
            )
            for other in (start, plain)
        )
        assert left < 0.5 * moved
