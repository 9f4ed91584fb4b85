"""Intervals over replications are Student's, however many there are."""

from __future__ import annotations

import pytest
from scipy import stats

from nnstretch.schedule.simulation.replications import measured, student_t


@pytest.mark.parametrize("freedom", [1, 2, 10, 30, 31, 32, 60, 200, 5000])
def test_the_quantile_is_that_of_students_distribution(freedom: int) -> None:
    assert student_t(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=6e-4)


def test_one_replication_has_no_interval() -> None:
    assert measured([3.0]).half_width is None
    assert measured([1.0, 3.0]).half_width == pytest.approx(12.706)
