"""Ctrl-C anywhere in a constructor, a wait for an answer, a stream: what is there goes on, and what
is not leaves no thread.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.bundles import branched_bundle, image
from support.interrupts import count_places, interrupted
from support.pipeline_bundles import chain
from support.within import within

from nnstretch.run import Pipeline, Session
from nnstretch.run.server import Server

ITEM = np.ones((3, 3), np.float32)
FEW = 8
LAST = 30
"""Places at the end of a constructor, where threads are made: each of them is tried."""
RETURNS = 2
"""Places behind these, where a service that is whole is handed to a caller who never gets it."""
BRANCHED, STAGES = branched_bundle(segments=1), chain(2)
SERVICES: dict[str, Callable[[], Any]] = {
    "Session": lambda: Session(BRANCHED, clock="real"),
    "Server": lambda: Server(BRANCHED),
    "Pipeline": lambda: Pipeline(STAGES),
}


def places_of(call: Callable[[], Any]) -> Iterator[int]:
    """Yield some places of a call and all of its last ones."""
    made: list[Any] = []
    for _ in range(2):  # the first one fills caches
        most = count_places(lambda: made.append(call())) - RETURNS
        made.pop().close()
    yield from range(1, most - LAST, max(1, (most - LAST) // FEW))
    yield from range(max(1, most - LAST), most + 1)


def own_threads() -> list[str]:
    """Return the names of threads that stay, after some time to leave."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("nnstretch"):
            thread.join(5)
    return [one.name for one in threading.enumerate() if one.name.startswith("nnstretch")]


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVICES)
def test_a_constructor_that_is_interrupted_leaves_no_thread(name: str) -> None:
    before = own_threads()
    made: list[Any] = []
    for at in places_of(SERVICES[name]):
        if not interrupted(lambda: made.append(SERVICES[name]()), at):
            made.pop().close()
        assert own_threads() == before, f"place {at}"


def test_a_wait_for_an_answer_that_is_interrupted_anywhere_can_be_repeated() -> None:
    with Server(BRANCHED, capacity=1) as server:
        at, is_over = 1, False
        while not is_over:
            reply = server.submit(image(BRANCHED))
            is_over = not interrupted(lambda: reply.result(20), at)  # noqa: B023
            at += 1
            assert within(lambda: reply.result(20)).shape  # noqa: B023
        assert at > 5
    assert server.counts.lost == 0


@pytest.mark.slow
@pytest.mark.parametrize("in_flight", [None, 2])
def test_a_stream_that_is_interrupted_anywhere_leaves_a_pipeline_that_works(
    in_flight: int | None,
) -> None:
    with Pipeline(STAGES, results=4) as pipeline:
        at, is_over = 1, False
        while not is_over:
            is_over = not interrupted(lambda: list(pipeline.stream([ITEM] * 2, in_flight)), at)
            at += 2
            while pipeline.open_items:
                assert within(lambda: pipeline.get(10)).value()[0, 0] == 4
            assert within(lambda: pipeline.run(ITEM, 10))[0, 0] == 4
        assert at > 20


def test_a_run_that_is_interrupted_anywhere_leaves_a_pipeline_that_works() -> None:
    with Pipeline(STAGES, results=4) as pipeline:
        at = 1
        while interrupted(lambda: pipeline.run(ITEM, 10), at):
            at += 1
            while pipeline.open_items:
                assert within(lambda: pipeline.get(10)).value()[0, 0] == 4
            assert within(lambda: pipeline.run(ITEM, 10))[0, 0] == 4
        assert at > 20


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["virtual", "real"])
@pytest.mark.parametrize("method", ["compute", "overlap"])
def test_a_session_goes_on_after_a_method_that_was_interrupted(method: str, clock: str) -> None:
    x = image(BRANCHED)
    with Session(BRANCHED, clock=clock) as session:
        expected = session.run(x)

        def use() -> None:
            given = session.network.inputs(x) if method == "compute" else x
            getattr(session, method)(given)

        for at in range(1, min(count_places(use), 400), 7):
            interrupted(use, at)
            assert np.array_equal(within(lambda: session.run(x)), expected)
