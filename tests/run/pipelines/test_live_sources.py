"""Streams whose items come when they come: cameras, trackers, sources that wait, fail or never end."""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from time import perf_counter, sleep
from typing import Any

import numpy as np
import pytest
from support.pipeline_bundles import chain, full
from support.within import within

from nnstretch.errors import BadInput, Cancelled, Stuck
from nnstretch.run.pipelines.pipeline import Pipeline

pytestmark = pytest.mark.usefixtures("no_thread_stays_behind")


def first(result: Any) -> float:
    return float(result.value()[0, 0])


@pytest.mark.slow
def test_a_result_is_given_out_when_it_is_there_and_not_when_the_next_item_has_come() -> None:
    taken_s: list[float] = []

    def camera() -> Iterator[np.ndarray]:
        for k in range(5):
            sleep(0.2)
            taken_s.append(perf_counter())
            yield full(k)

    with Pipeline(chain(2)) as pipeline:
        delays_s = [perf_counter() - taken_s[result.item] for result in pipeline.stream(camera())]
    assert len(delays_s) == 5
    assert sorted(delays_s)[2] < 0.1, "the next picture comes after 0.2 s"


def test_a_source_that_waits_for_the_last_result_gets_it() -> None:
    last: queue.SimpleQueue[float] = queue.SimpleQueue()

    def tracker() -> Iterator[np.ndarray]:
        yield full(1)
        for _ in range(9):
            yield full(last.get(timeout=10))

    def followed() -> list[float]:
        seen = []
        for result in pipeline.stream(tracker()):
            seen.append(first(result))
            last.put(seen[-1])
        return seen

    with Pipeline(chain(2)) as pipeline:
        assert within(followed) == [1 + 3 * k for k in range(1, 11)]


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_in_turn_an_item_may_depend_on_results_before_it(lag: int) -> None:
    seen: list[float] = []

    def tracker() -> Iterator[np.ndarray]:
        for k in range(12):
            yield full(1 if k < lag else seen[k - lag])

    with Pipeline(chain(2)) as pipeline:
        for result in pipeline.stream(tracker(), in_flight=lag):
            seen.append(first(result))
        assert seen == [1 + 3 * (k // lag + 1) for k in range(12)]
        assert pipeline.run(full(1), 10)[0, 0] == 4


@pytest.mark.parametrize("in_flight", [0, -1, 1.5, True, "2", 10**9, float("nan")])
def test_what_is_no_count_of_items_is_refused(in_flight: Any) -> None:
    with Pipeline(chain(2)) as pipeline, pytest.raises(BadInput, match="in_flight is "):
        list(pipeline.stream([full(1)], in_flight=in_flight))


@pytest.mark.parametrize("in_flight", [None, 2])
@pytest.mark.parametrize("error", [RuntimeError("dark"), SystemExit(2), KeyboardInterrupt()])
def test_what_a_source_raises_comes_after_the_results_before_it(
    in_flight: int | None, error: BaseException
) -> None:
    def camera() -> Iterator[np.ndarray]:
        for k in range(4):
            yield full(k)
        raise error

    seen: list[int] = []
    with Pipeline(chain(2)) as pipeline:

        def followed() -> None:
            seen.extend(result.item for result in pipeline.stream(camera(), in_flight))

        with pytest.raises(type(error)) as raised:
            within(followed)
        assert raised.value is error
        if in_flight is None:
            assert seen == [0, 1, 2, 3]
            assert pipeline.run(full(1), 10)[0, 0] == 4


def test_a_stream_that_is_left_takes_its_source_along() -> None:
    asked: list[int] = []

    def camera() -> Iterator[np.ndarray]:
        for k in range(1000):
            asked.append(k)
            sleep(0.005)
            yield full(k)

    with Pipeline(chain(2)) as pipeline:
        for result in pipeline.stream(camera()):
            if result.item == 3:
                break
        else:
            pytest.fail("left")
        del result
        gc.collect()
        count = len(asked)
        assert count < 30
        assert pipeline.run(full(1), 10)[0, 0] == 4
        sleep(0.05)
        assert len(asked) == count


def test_a_stream_that_is_left_does_not_wait_for_a_source_that_never_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nnstretch.run.pipelines.streaming.LINGER_S", 0.05)
    gate = threading.Event()

    def camera() -> Iterator[np.ndarray]:
        yield full(1)
        gate.wait(20)
        yield full(2)

    def left() -> None:
        for _ in pipeline.stream(camera()):
            break

    with Pipeline(chain(2)) as pipeline:
        within(left, 5)
        assert within(lambda: pipeline.run(full(1), 10))[0, 0] == 4
        gate.set()
        sleep(0.05)
        assert pipeline.open_items == 0, "what it gives then is not wanted"


def test_closing_ends_a_stream_whose_source_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnstretch.run.pipelines.streaming.LINGER_S", 0.05)
    gate, seen = threading.Event(), list[int]()

    def camera() -> Iterator[np.ndarray]:
        yield full(1)
        gate.wait(20)

    pipeline = Pipeline(chain(2))

    def followed() -> None:
        for result in pipeline.stream(camera()):
            seen.append(result.item)
            threading.Timer(0.05, pipeline.close).start()

    with pytest.raises((Cancelled, Stuck)):
        within(followed, 10)
    gate.set()
    assert seen == [0]


def test_a_source_sees_the_context_of_its_reader() -> None:
    name: ContextVar[int] = ContextVar("name", default=0)
    name.set(5)
    with Pipeline(chain(2)) as pipeline:
        assert [first(r) for r in pipeline.stream(full(name.get()) for _ in range(2))] == [8, 8]


def test_a_pipeline_may_feed_another() -> None:
    with Pipeline(chain(2)) as one, Pipeline(chain(3)) as two:

        def both() -> list[float]:
            middle = (result.value() for result in one.stream(full(k) for k in range(50)))
            return [first(result) for result in two.stream(middle)]

        assert within(both) == [k + 9 for k in range(50)]
