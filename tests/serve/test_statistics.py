"""Statistics of an application: all of a request's latency is waiting or computing."""

from __future__ import annotations

import pytest

from nnstretch.files.workload.service_record import RecordedRequest, RecordedTask
from nnstretch.serve.statistics import ApplicationStatistics


def request(end: str, *tasks: tuple[float, float]) -> RecordedRequest:
    """A request from 10 to 100 us with tasks at these times."""
    ran = tuple(RecordedTask("a", "cpu0", *times_us) for times_us in tasks)
    return RecordedRequest(0, "net", 10.0, 11.0, 100.0, end, None, 0, ran)


@pytest.mark.parametrize(
    ("tasks", "compute_us"),
    [
        ([(20.0, 30.0)], 10.0),
        ([(20.0, 30.0), (60.0, 90.0)], 40.0),
        ([(20.0, 50.0), (30.0, 60.0)], 40.0),
        ([(30.0, 40.0), (20.0, 60.0), (60.0, 61.0)], 41.0),
        ([], 0.0),
    ],
)
def test_waits_between_tasks_are_waits_and_branches_count_once(
    tasks: list[tuple[float, float]], compute_us: float
) -> None:
    statistics = ApplicationStatistics()
    statistics.add(request("answered", *tasks))
    assert statistics.compute_us == pytest.approx(compute_us)
    assert statistics.queue_us == pytest.approx(90.0 - compute_us)


def test_only_answered_requests_are_counted_as_waiting_and_computing() -> None:
    statistics = ApplicationStatistics()
    statistics.add(request("failed", (20.0, 30.0)))
    assert (statistics.queue_us, statistics.compute_us, statistics.failed_us) == (0, 0, 90)
