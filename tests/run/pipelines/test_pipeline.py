"""Items stream through a bundle's stages: right numbers in order, and bounded memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from time import sleep
from typing import Any

import numpy as np
import pytest
from support.pipeline_bundles import (
    both,
    bundled,
    chain,
    chain_config,
    first_of,
    framed,
    full,
    reference,
    reference_bundle,
)

from nnstretch.bundle.bundle import Bundle
from nnstretch.errors import BadInput, Stuck
from nnstretch.run.pipelines.item_buffer import ItemResult
from nnstretch.run.pipelines.item_tensors import dead_tensors
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.schedule.pipeline_graph import in_flight_limit


def test_a_slow_reader_stops_the_writer_and_nothing_is_dropped() -> None:
    pushed = 0

    def push_all() -> None:
        nonlocal pushed
        for pushed in range(100):
            pipeline.push(full(pushed), timeout_s=0.5)

    with Pipeline(chain(4), results=3) as pipeline:
        limit = in_flight_limit(pipeline.stage_graph) + 3
        with pytest.raises(
            Stuck,
            match=(
                f"no room for one more item, pipeline of test, {limit} are on their way or wait to"
                f" be read, at most {limit}"
            ),
        ):
            push_all()
        assert pushed == limit
        assert first_of(pipeline.get(20).value()) == 10
        assert pipeline.push(full(pushed), timeout_s=20) == limit
        assert [first_of(pipeline.get(20).value()) for _ in range(limit)] == [
            10 + item for item in range(1, limit + 1)
        ]
        with pytest.raises(
            Stuck, match=r"no result of item \d+ in 0 s, pipeline of test, 0 are on their way"
        ):
            pipeline.get(timeout_s=0)


def test_python_stages_take_and_give_anything() -> None:
    given: dict[str, Callable[..., Any]] = {
        "camera.read:load": lambda frame: (full(frame["v"]), full(frame["v"])),
        "boxes:draw": lambda x: ["drawn", first_of(x)],
    }
    with Pipeline(Bundle(*framed(), name="framed.nns"), given) as pipeline:
        assert [result.value() for result in pipeline.stream({"v": value} for value in (3, 4))] == [
            ["drawn", 43.0],
            ["drawn", 50.0],
        ]
    with pytest.raises(
        BadInput, match="stage after runs boxes:draw, pipeline, no function was passed for it"
    ):
        Pipeline(Bundle(*framed(), name="framed.nns"), {"camera.read:load": len})


def test_many_threads_push_and_get_and_every_item_is_answered_once() -> None:
    taken: list[ItemResult] = []
    with Pipeline(chain(3, replicas=2)) as pipeline:
        pushers = [
            threading.Thread(target=lambda: [pipeline.push(full(1)) for _ in range(200)])
            for _ in range(3)
        ]
        getters = [
            threading.Thread(target=lambda: taken.extend(pipeline.get(30) for _ in range(300)))
            for _ in range(2)
        ]
        for thread in (*pushers, *getters):
            thread.start()
        for thread in (*pushers, *getters):
            thread.join(60)
    assert sorted(result.item for result in taken) == list(range(600))
    assert {first_of(result.value()) for result in taken} == {7.0}


def test_items_are_taken_only_as_fast_as_results_are_read() -> None:
    asked = 0

    def items() -> Iterator[np.ndarray]:
        nonlocal asked
        while True:
            asked += 1
            yield full(asked)

    with Pipeline(chain(3), results=2) as pipeline:
        stream = pipeline.stream(items())
        next(stream)
        assert asked <= in_flight_limit(pipeline.stage_graph) + 2
        stream.close()


def test_an_item_holds_only_what_is_still_wanted() -> None:
    """o2 skips a stage: it stays until its reader is through.

    Nothing is left of an item but its output.
    """
    assert dead_tensors(reference()[0]) == {
        "s0": ("data_a",),
        "s1": ("o3", "data_b"),
        "s2": ("o2", "n"),
    }
    with Pipeline(reference_bundle()) as pipeline:
        pipeline.push(both(3))
        pipeline._executor.consumer.wait(lambda: pipeline._executor.is_complete(0), 20)
        entry = pipeline._items._places[0]
        assert entry is not None
        assert list(entry.values) == ["out"]


def test_two_thousand_items_leave_the_ring_as_large_as_it_was() -> None:
    config, files = chain_config(4)
    with Pipeline(bundled(config.graph, files)) as pipeline:
        places = len(pipeline._items._places)
        assert (
            sum(
                first_of(result.value()) == 10 + result.item
                for result in pipeline.stream(full(item) for item in range(2000))
            )
            == 2000
        )
        assert len(pipeline._items._places) == places
        assert not [entry for entry in pipeline._items._places if entry is not None]


def test_the_first_stages_go_on_while_the_oldest_result_is_waited_for() -> None:
    """The last stage lets item 0 go when the first has begun more items than fit before it.

    Only who pushes meanwhile gets there.
    """
    begun, enough = [0], threading.Event()

    def m0(x: np.ndarray) -> np.ndarray:
        sleep(0.02)  # so that the caller finds no room behind its first items
        begun[0] += 1
        if begun[0] == 6:
            enough.set()
        return np.asarray(x + 1)

    def m2(x: np.ndarray) -> np.ndarray:
        assert enough.wait(20)
        return np.asarray(x + 3)

    with Pipeline(
        chain(3, python=[0, 1, 2], capacity=3),
        {"stages:m0": m0, "stages:m1": lambda x: x + 2, "stages:m2": m2},
    ) as pipeline:
        results = list(pipeline.stream(np.full((3, 3), n, np.float32) for n in range(9)))
    assert [float(result.value()[0, 0]) for result in results] == [n + 6 for n in range(9)]
