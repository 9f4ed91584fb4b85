"""Ratios, limits and means of the page of published and searched plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from comparison_rows import (
    COMBINATIONS,
    Bound,
    Row,
    Task,
    geometric_mean,
    sum_of_rates,
)
from hypothesis import given
from hypothesis import strategies as st
from support.reproduction_rows import original, plan, row_of


def test_ratios_of_a_row() -> None:
    row = row_of(plan("R-34-CD"))
    assert row.fastest_us / 50 == 2.0
    assert row.rates == pytest.approx(1 + 100 / 125)
    assert row.limit(800) == pytest.approx(1.8 / 0.8)
    assert row.share(50, 800) == pytest.approx(2 / 2.25)
    assert row.met is True


def test_alone_means_on_a_processor_of_the_combination() -> None:
    task = Task("R-34", "G+D", Bound("R-34-DG", 700, 300))
    assert Row(original(), task, None, None).fastest == "dsp"


@pytest.mark.parametrize("change", [{"latency_us": 81.0}, {"macs": 699}, {"params": 299}])
def test_a_plan_that_is_slower_or_smaller_does_not_count(change: Mapping[str, Any]) -> None:
    assert row_of(plan("R-34-CD"), **change).met is False


@given(us=st.lists(st.floats(1, 1e6), min_size=3, max_size=3))
def test_the_sum_of_rates_lies_between_one_and_the_number_of_processors(us: list[float]) -> None:
    alone = original(**dict(zip(("cpu", "gpu", "dsp"), us, strict=True)))
    for combination, processors in COMBINATIONS.items():
        assert 1 <= sum_of_rates(alone, combination) <= len(processors) + 1e-9


@given(us=st.floats(1, 1e4), macs=st.integers(1, 5000))
def test_a_perfect_split_reaches_the_whole_limit(us: float, macs: int) -> None:
    row = row_of()
    assert row.share(row.fastest_us / row.limit(macs), macs) == pytest.approx(1)
    assert row.share(us, macs) == pytest.approx(
        macs / us / sum(1000 / row.original.predicted_us[p] for p in row.processors)
    )


@given(values=st.lists(st.floats(0.1, 10), min_size=1, max_size=6), factor=st.floats(0.1, 10))
def test_a_geometric_mean_scales_and_stays_inside(values: list[float], factor: float) -> None:
    mean = geometric_mean(values)
    assert mean is not None
    assert min(values) * (1 - 1e-9) <= mean <= max(values) * (1 + 1e-9)
    assert geometric_mean(v * factor for v in values) == pytest.approx(mean * factor)


def test_no_values_have_no_mean() -> None:
    assert geometric_mean([]) is None
