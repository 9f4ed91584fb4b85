"""A pipeline ends, a reader goes away.

Nothing is lost, nobody waits for ever, no thread is left.
"""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from support.pipeline_bundles import chain, first_of, full

from nnstretch.errors import Cancelled, Stuck
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.schedule.pipeline_graph import in_flight_limit


def test_closing_finishes_what_is_on_its_way_and_its_results_can_still_be_read() -> None:
    pipeline = Pipeline(chain(3))
    for item in range(7):
        pipeline.push(full(item))
    pipeline.close()
    pipeline.close()
    assert [first_of(pipeline.get(0).value()) for _ in range(7)] == [6 + item for item in range(7)]
    with pytest.raises(Stuck, match="no item is left, pipeline of test, it has been closed"):
        pipeline.get()
    with pytest.raises(Cancelled, match="no item is taken, pipeline of test, it has been closed"):
        pipeline.push(full(0))
    assert not threads()


def test_closing_without_draining_cancels_what_is_on_its_way() -> None:
    gate = threading.Event()

    def m1(x: np.ndarray) -> np.ndarray:
        gate.wait(20)
        return np.asarray(x + 2)

    pipeline = Pipeline(chain(3, python=[1]), {"stages:m1": m1})
    for item in range(4):
        pipeline.push(full(item))
    threading.Timer(0.2, gate.set).start()
    pipeline.close(drain=False)
    results = [pipeline.get(0) for _ in range(4)]
    assert all(isinstance(result.error, Cancelled) for result in results[1:])
    assert "item 3 was not finished, pipeline, it has been closed" in str(results[3].error)


def threads() -> list[str]:
    return [
        thread.name for thread in threading.enumerate() if thread.name.startswith("nnstretch-m")
    ]


def test_a_pipeline_that_nobody_holds_any_more_ends() -> None:
    pipeline = Pipeline(chain(3))
    pipeline.push(full(0))
    assert len(threads()) == 3
    del pipeline
    gc.collect()
    assert not threads()


def test_who_waits_for_room_hears_that_the_pipeline_closes() -> None:
    pipeline, heard = Pipeline(chain(2), results=1), list[BaseException]()

    def push() -> None:
        try:
            while True:
                pipeline.push(full(0))
        except Cancelled as error:
            heard.append(error)

    pusher = threading.Thread(target=push)
    pusher.start()
    while pipeline.open_items < in_flight_limit(pipeline.stage_graph) + 1:
        pass
    pipeline.close()
    pusher.join(20)
    assert len(heard) == 1


def test_a_reader_who_goes_away_leaves_the_pipeline_empty() -> None:
    with Pipeline(chain(3)) as pipeline:
        for result in pipeline.stream(full(item) for item in range(50)):
            if result.item == 3:
                break
        gc.collect()
        assert pipeline.open_items == 0
        assert first_of(pipeline.run(full(1))) == 7
        pipeline.push(full(0))
        with pytest.raises(
            Stuck,
            match="1 items are on their way or wait to be read, pipeline of test, get them first",
        ):
            pipeline.run(full(0))
