"""Fronts and sensitivities of searches that end in different ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from support.search_instances import chip
from support.toy_network import residual

from nnstretch.errors import NoPlan
from nnstretch.stretch.search.pareto import Progress, sensitivity, trace_front
from nnstretch.stretch.search.search import search
from nnstretch.stretch.search.search_result import SearchResult

GRAPH = residual(((8, 1),), 8, 8)


class Answers:
    """Searches that end one after another as told: None with a plan."""

    def __init__(self, ends: Sequence[BaseException | None]) -> None:
        self.ends = list(ends)

    def __call__(self, settings: Mapping[str, float], progress: Progress | None) -> SearchResult:
        end = self.ends.pop(0)
        if end is not None:
            raise end
        return search(GRAPH, chip())


def test_limits_that_no_plan_keeps_stand_apart_from_those_for_which_time_was_over() -> None:
    ask = Answers([None, NoPlan("none"), NoPlan("late", out_of_time=True), None])
    front = trace_front(ask, "macs", GRAPH.macs, 4)
    first, second, third, _ = (0.5, 0.733333333, 0.966666667, 1.2)
    assert [point.asked for point in front.points] == [first]
    assert front.without == (second,)
    assert front.unanswered == (third,)
    assert not front.interrupted


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), NoPlan("stopped", interrupted=True)])
def test_an_interrupt_without_a_plan_ends_a_front_with_its_points(stop: BaseException) -> None:
    ask = Answers([None, stop, None])
    front = trace_front(ask, "macs", GRAPH.macs, 3)
    assert len(front.points) == 1
    assert front.without == front.unanswered == ()
    assert front.interrupted
    assert len(ask.ends) == 1, "nothing is searched after it"


def test_a_sensitivity_tells_no_plan_from_no_time() -> None:
    ends = [NoPlan("none"), NoPlan("late", out_of_time=True), NoPlan("stop", interrupted=True)]
    rows, interrupted = sensitivity(Answers(ends))
    assert [(row.found, row.out_of_time) for row in rows] == [(None, False), (None, True)]
    assert interrupted
