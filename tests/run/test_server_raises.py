"""Whatever callbacks, hooks and sub-graphs raise harms nobody else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import numpy as np
import pytest
from support.bundles import filled_image
from support.within import within

from nnstretch.bundle.bundle import Bundle
from nnstretch.errors import StageFailed
from nnstretch.run.loaded_network import LoadedNetwork, Values
from nnstretch.run.server import Server

pytestmark = pytest.mark.usefixtures("no_thread_stays_behind")


class Raising(LoadedNetwork):
    """Raises what is in `errors`, once each, then computes."""

    def __init__(self, bundle: Bundle, *errors: BaseException) -> None:
        super().__init__(bundle)
        self.errors = list(errors)

    def compute(self, subgraph: str, values: Values) -> None:  # type: ignore[override]
        if subgraph == "stem" and self.errors:
            raise self.errors.pop(0)
        super().compute(subgraph, values)


class Unreadable(Exception):
    """An error that cannot be printed, copied or pickled."""

    def __str__(self) -> str:
        raise ValueError("no text")

    def __reduce__(self) -> str:
        raise TypeError("no copy")

    __repr__ = __str__


RAISED = [
    RuntimeError("once"),
    RuntimeError(),
    Unreadable(),
    SystemExit(3),
    KeyboardInterrupt(),
    StopIteration(4),
    GeneratorExit(),
    CancelledError(),
]


@pytest.fixture
def log() -> Iterator[list[str]]:
    """Collect what the project logs, whatever handlers others have set up in this process."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("nnstretch")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_whatever_a_callback_raises_stops_nobody(
    bundle: Bundle, error: BaseException, log: list[str]
) -> None:
    def raising(_: Future[Any]) -> None:
        raise error

    with Server(bundle, capacity=1) as server:
        for _ in range(3):
            reply = within(lambda: server.submit(filled_image(), timeout_s=10))
            reply.add_done_callback(raising)
            assert reply.result(20).shape
    assert sum("a done-callback of a server raised" in line for line in log) == 3
    assert server.counts.answered == 3


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_whatever_a_subgraph_raises_fails_its_request_alone(
    bundle: Bundle, error: BaseException
) -> None:
    with Server(bundle, capacity=1, networks={"main": Raising(bundle, error)}) as server:
        reply = server.submit(filled_image())
        raised = within(lambda: reply.exception(10))
        for _ in range(2):
            assert within(lambda: server.submit(filled_image(), timeout_s=10).result(10)).shape
    plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
    if plain:
        assert raised is error
    else:
        assert isinstance(raised, StageFailed)
        assert raised.__cause__ is error
    assert (server.counts.failed, server.counts.answered, server.counts.lost) == (1, 2, 0)


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_whatever_the_hook_of_tasks_raises_stops_nobody(
    bundle: Bundle, error: BaseException
) -> None:
    def raising(_: object) -> None:
        raise error

    with Server(bundle, ended=raising) as server:
        assert within(lambda: server.submit(filled_image()).result(10)).shape


def test_an_answer_that_cannot_be_made_fails_its_request_alone(bundle: Bundle) -> None:
    class Forgetful(LoadedNetwork):
        def outputs(self, values: Values, raw: bool = False) -> np.ndarray | Values:
            if float(values["image"][0, 0, 0, 0]) == 2:
                raise SystemExit(2)
            return super().outputs(values, raw)

    with Server(bundle, networks={"main": Forgetful(bundle)}) as server:
        raised = within(lambda: server.submit(filled_image(2)).exception(10))
        assert isinstance(raised, StageFailed)
        assert within(lambda: server.submit(filled_image()).result(10)).shape
