"""How far a session slows its clock down on a host that is slower than the chip."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tasks import named_task

from nnstretch.run.time_dilation import (
    MARGIN,
    SLIP,
    Rehearsal,
    correct_dilation,
    required_dilation,
    summarize_rehearsal,
)
from nnstretch.task import Task
from nnstretch.trace import Span, Trace


def test_a_fast_host_plays_in_real_time() -> None:
    assert required_dilation(Rehearsal({"a": 10.0}, 1.0), {"a": 1000.0}, 1000.0) == 1.0


def test_a_slow_host_is_given_room() -> None:
    found = required_dilation(
        Rehearsal({"a": 2500.0, "b": 0.0}, 0.0), {"a": 1000.0, "b": 1000.0}, 2000.0
    )
    assert MARGIN * 2500 - SLIP * 2000 * found <= found * 1000 <= MARGIN * 2500


def test_without_slip_every_task_fits_with_its_margin() -> None:
    rehearsal = Rehearsal({"a": 2500.0, "b": 900.0})
    factor = required_dilation(rehearsal, {"a": 1000.0, "b": 100.0}, 2000.0, slip=0.0)
    assert factor == pytest.approx(MARGIN * 9.0, rel=1e-3)
    assert factor >= MARGIN * 9.0


host_and_chip_us = st.tuples(st.floats(0, 1e5), st.floats(1, 1e5))


@settings(deadline=None)
@given(
    st.dictionaries(st.text(max_size=3), host_and_chip_us, min_size=1),
    st.floats(0, 1e4),
    st.floats(1.01, 10),
)
def test_a_slower_host_never_gets_a_faster_clock(
    tasks: dict[str, tuple[float, float]], gaps_us: float, slower: float
) -> None:
    host = {name: pair[0] for name, pair in tasks.items()}
    predicted = {name: pair[1] for name, pair in tasks.items()}
    factor = required_dilation(Rehearsal(host, gaps_us), predicted, sum(predicted.values()))
    more = required_dilation(
        Rehearsal({name: slower * us for name, us in host.items()}, slower * gaps_us),
        predicted,
        sum(predicted.values()),
    )
    assert 1.0 <= factor <= more * 1.002


@pytest.mark.parametrize(
    ("slip", "factor"), [(0.0, 4.0), (0.015, 4.0), (0.018, 7.2), (0.5, 8.0), (-0.1, 4.0)]
)
def test_a_trial_that_slips_gets_a_slower_clock(slip: float, factor: float) -> None:
    assert correct_dilation(4.0, slip) == pytest.approx(factor)


def test_a_rehearsal_is_the_least_of_its_runs() -> None:
    tasks = (Task("a", "a"), Task("b", "b", frozenset("a")))
    runs = [
        Trace(
            (
                Span(0, us, named_task("a"), "cpu"),
                Span(us + gap, us + gap + 5, named_task("b"), "dsp"),
            )
        )
        for us, gap in ((10, 1), (20, 3), (90, 2))
    ]
    assert summarize_rehearsal(tasks, runs) == Rehearsal({"a": 10, "b": 5}, 1)
