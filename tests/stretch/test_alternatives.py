"""Plans beside the best: each is the fastest that lacks a branched segment of all before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

import pytest
from support.brute_force import BruteForce, Way
from support.search_instances import Instance, random_instance

from nnstretch.plan import Plan, Segment

Arc = tuple[str, str, tuple[str, ...], str]


def arc(segment: Segment) -> Arc:
    """What plans differ in: where a segment is, on which processors, and how it merges."""
    return segment.start, segment.end, segment.processors, segment.merge


@dataclass
class WithoutArcs(BruteForce):
    """Every plan that lacks some branched segments."""

    excluded: frozenset[Arc] = field(default=frozenset(), kw_only=True)

    def ways(self, i: int, j: int, width_in: int) -> Iterator[Way]:
        for way in super().ways(i, j, width_in):
            if not way.segment.branched or arc(way.segment) not in self.excluded:
                yield way


def fastest_lacking(one: Instance, plans: list[Plan]) -> float | None:
    """Latency of the fastest plan that lacks a branched segment of each of these, by brute force."""
    branched = [[arc(s) for s in plan.segments if s.branched] for plan in plans]
    answers = [WithoutArcs(one, excluded=frozenset(few)).best() for few in product(*branched)]
    return min((answer[0] for answer in answers if answer is not None), default=None)


@pytest.mark.parametrize("seed", [11, 12, 17, 21, 27, 30, 34, 47, 51, 54, 56])
def test_each_alternative_is_the_fastest_that_differs_from_those_before(seed: int) -> None:
    one = replace(random_instance(seed), width_steps=2)
    result = one.search(top=3)
    plans = [scored.trial.plan for scored in result.plans]
    assert len(plans) == 3
    for n in (1, 2):
        expected = fastest_lacking(one, plans[:n])
        assert result.plans[n].trial.latency_us == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", [12, 14, 17, 30, 47, 54])
def test_alternatives_keep_the_limit_on_parameters(seed: int) -> None:
    """The fastest with some segments may hold too much, and another with the same not."""
    free = replace(random_instance(seed), width_steps=2)
    one = replace(free, max_params=free.search().plans[0].trial.params)
    trials = [scored.trial for scored in one.search(top=3).plans]
    for n in range(1, 3):
        expected = fastest_lacking(one, [trial.plan for trial in trials[:n]])
        if expected is None:
            assert len(trials) == n
            return
        assert trials[n].latency_us == pytest.approx(expected, rel=1e-9)
