"""How much slower tasks are beside others, from few runs of which the host may hold one up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.bench.cost_meter import factor_beside
from nnstretch.files.workload.measured_costs import LEAST_FACTOR, MOST_FACTOR

TIMES_US = st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=20)


def test_the_factor_is_that_of_the_means() -> None:
    assert factor_beside([100.0, 110.0, 120.0], [120.0, 132.0, 144.0]) == pytest.approx(1.2)
    assert factor_beside([100.0], [90.0]) == pytest.approx(0.9)


def test_a_run_that_the_host_held_up_counts_as_four_times_the_median() -> None:
    assert factor_beside([100.0, 100.0, 9000.0], [100.0, 100.0, 100.0]) == pytest.approx(0.5)
    assert factor_beside([100.0, 100.0, 100.0], [100.0, 9000.0, 100.0]) == pytest.approx(2.0)


@given(TIMES_US, TIMES_US)
def test_a_table_takes_every_factor(alone_us: list[float], beside_us: list[float]) -> None:
    assert LEAST_FACTOR <= factor_beside(alone_us, beside_us) <= MOST_FACTOR
