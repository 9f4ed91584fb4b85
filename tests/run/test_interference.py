"""The interference experiment on small networks.

The runtime never falls far behind the plan that is fastest when nobody is busy.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from adaptive_runs import MAIN, QUIET, STRETCHES, Played, play, worst
from support.bundles import PHONE, branched_bundle

from nnstretch.bundle.manifest import Manifest
from nnstretch.predict import load_soc
from nnstretch.schedule.slowdown import AdaptationSettings

SOC = load_soc("mi9")


def plan(team: tuple[str, str], us: float, segments: int) -> Manifest:
    """Branches that take `us` together on each processor; what moves takes as long there."""
    sync_us = 500.0 * ("gpu" in team)
    made = branched_bundle(
        segments,
        branch_us=(us / segments,) * 2,
        team=team,
        merge_us=20.0,
        sync_us=sync_us,
        stem_us=500.0,
    ).manifest
    return replace(
        made,
        subgraphs=tuple(
            replace(s, predicted_us=dict.fromkeys(PHONE, s.predicted_us[s.processor]))
            for s in made.subgraphs
        ),
    )


def plans(segments: int) -> dict[str, Manifest]:
    return {
        MAIN: plan(("cpu", "gpu"), 10_000, 1),
        "cpu+dsp": plan(("cpu", "dsp"), 10_300, 2),
        "gpu+dsp": plan(("gpu", "dsp"), 12_000, segments),
    }


@pytest.fixture(scope="module")
def fixed() -> list[float]:
    return play({MAIN: plans(1)[MAIN]}, SOC, 0.5, adaptive=False).latencies_us


def means_us(latencies_us: list[float]) -> list[float]:
    return [
        sum(latencies_us[first + QUIET : last + QUIET]) / (last - first)
        for first, last, _ in STRETCHES
    ]


def test_with_a_meeting_point_it_is_never_far_behind_and_better_in_every_stretch(
    fixed: list[float],
) -> None:
    moving = play(plans(2), SOC, 0.5, adaptive=True)
    assert worst(moving.latencies_us, fixed)[0] <= 1.05
    assert all(
        mine < other
        for mine, other in zip(means_us(moving.latencies_us), means_us(fixed), strict=True)
    )
    assert sum(moving.moved) > 0


@pytest.mark.parametrize(("segments", "moves"), [(2, False), (1, True)])
def test_without_moves_or_without_a_meeting_point_it_falls_behind(
    fixed: list[float], segments: int, moves: bool
) -> None:
    settings = AdaptationSettings(moves=moves)
    found: Played = play(plans(segments), SOC, 0.5, adaptive=True, settings=settings)
    ratio, at = worst(found.latencies_us, fixed)
    assert ratio > 1.05
    assert 155 <= at < 160, "where the GPU becomes busy while the plan of GPU and DSP is in use"


def test_the_page_that_is_kept_says_that_it_holds() -> None:
    page = (Path(__file__).parents[2] / "docs" / "results" / "interference.md").read_text()
    assert "and faster in every stretch with somebody busy" in page
