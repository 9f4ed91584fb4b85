"""Deadlines, timeouts and settings of a server that make no sense are refused by their names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.bundles import filled_image
from support.within import within

from nnstretch.bundle.bundle import Bundle
from nnstretch.errors import BadInput, DeadlineMissed
from nnstretch.run.server import Server
from nnstretch.soc import Processor

pytestmark = pytest.mark.usefixtures("no_thread_stays_behind")


@pytest.mark.parametrize("deadline_ms", [float("nan"), "5", -1, -0.1, True, 10**400, [5], np.nan])
def test_a_deadline_that_is_no_time_is_refused_and_takes_no_place(
    bundle: Bundle, deadline_ms: Any
) -> None:
    with Server(bundle, capacity=1) as server:
        for _ in range(3):
            with pytest.raises(BadInput, match="deadline_ms is "):
                server.submit(filled_image(), deadline_ms)
        assert within(lambda: server.submit(filled_image(), timeout_s=10).result(10)).shape
    assert (server.counts.submitted, server.counts.lost) == (1, 0)


@pytest.mark.parametrize(
    "deadline_ms", [float("inf"), 1e300, 1e15, np.float32(1e9), np.int64(10**9)]
)
def test_a_deadline_may_be_far_away(bundle: Bundle, deadline_ms: Any) -> None:
    with Server(bundle, capacity=1) as server:
        for _ in range(3):
            assert within(lambda: server.submit(filled_image(), deadline_ms, 10).result(10)).shape


def test_nothing_is_answered_behind_its_deadline(bundle: Bundle) -> None:
    deadline_ms = 3.0
    with Server(bundle, capacity=8) as server:
        for _ in range(20):
            for reply in [server.submit(filled_image(), deadline_ms) for _ in range(8)]:
                try:
                    within(lambda: reply.result(10))  # noqa: B023 - it is called at once
                except DeadlineMissed:
                    continue
                assert reply.latency_ms is not None
                assert reply.latency_ms <= deadline_ms


def test_a_deadline_of_nothing_is_missed(bundle: Bundle) -> None:
    with Server(bundle) as server, pytest.raises(DeadlineMissed):
        within(lambda: server.submit(filled_image(), 0).result(10))


@pytest.mark.parametrize("timeout", ["1", float("nan"), True, 10**400, [1]])
def test_a_timeout_that_is_no_number_is_refused_by_its_name(bundle: Bundle, timeout: Any) -> None:
    with Server(bundle) as server:
        with pytest.raises(BadInput, match="timeout_s is "):
            server.submit(filled_image(), timeout_s=timeout)
        reply = server.submit(filled_image())
        for call in (reply.result, reply.exception):
            with pytest.raises(BadInput, match="timeout is "):
                call(timeout)


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, np.float32(20)])
def test_a_timeout_may_be_infinite(bundle: Bundle, timeout: Any) -> None:
    with Server(bundle) as server:
        assert server.submit(filled_image(), timeout_s=timeout).result(timeout).shape
        assert server.submit(filled_image()).exception(timeout) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"capacity": 1.5}, "capacity is 1.5"),
        ({"capacity": True}, "capacity is True"),
        ({"capacity": "4"}, "capacity is '4'"),
        ({"capacity": 10**400}, "capacity is an integer of 1329 bits"),
        ({"dilation": 0.0}, "dilation is 0.0"),
        ({"dilation": float("nan")}, "dilation is nan"),
        ({"dilation": "2"}, "dilation is '2'"),
        ({"ended": 3}, "ended is 3"),
    ],
)
def test_settings_of_a_server_are_checked(
    bundle: Bundle, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        Server(bundle, **fields)


def test_processors_of_one_name_are_refused_by_it(bundle: Bundle) -> None:
    first = Processor("cpu", "cpu", 2)
    with pytest.raises(BadInput, match=r"2 processors are called 'cpu', threads, name each"):
        Server(bundle, processors=(first, Processor("gpu", "gpu", 2), first))
