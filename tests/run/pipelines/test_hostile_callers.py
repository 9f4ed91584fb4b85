"""What stages and callers may do while others wait: replace parameters, push, raise what cannot be
printed, be interrupted. Nobody waits for ever, and nothing is lost.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.interrupts import interrupted
from support.pipeline_bundles import (
    both,
    chain,
    full,
    reference_bundle,
    scaled_bundle,
)
from support.within import said_by_fork, within

from nnstretch.errors import BadInput, Cancelled, NnstretchError, StageFailed, Stuck
from nnstretch.run.pipelines.pipeline import Pipeline

pytestmark = pytest.mark.usefixtures("no_thread_stays_behind")


def weight(value: float) -> dict[str, np.ndarray]:
    return {"c": np.array([value], np.float32)}


def test_a_stage_may_replace_parameters_while_pushers_wait() -> None:
    gate = threading.Event()

    def replacing(x: np.ndarray) -> np.ndarray:
        gate.wait(20)
        pipeline.set_parameters("g", weight(float(x[0, 0])))
        return x

    with Pipeline(scaled_bundle(), {"stages:m": replacing}, results=1) as pipeline:
        pushers = [
            threading.Thread(target=pipeline.push, args=(full(k),), daemon=True)
            for k in range(1, 13)
        ]
        for thread in pushers:
            thread.start()
        gate.set()
        results = [within(lambda: pipeline.get(10)) for _ in range(12)]
        for thread in pushers:
            thread.join(20)
            assert not thread.is_alive()
    assert [result.error for result in results] == [None] * 12


def test_parameters_are_replaced_while_a_pusher_waits() -> None:
    gate = threading.Event()

    def waiting(x: np.ndarray) -> np.ndarray:
        gate.wait(20)
        return x

    with Pipeline(scaled_bundle(), {"stages:m": waiting}, results=1) as pipeline:
        pushed: list[int] = []

        def push_all() -> None:
            pushed.extend(pipeline.push(full(1)) for _ in range(12))

        pusher = threading.Thread(target=push_all, daemon=True)
        pusher.start()
        within(lambda: pipeline.set_parameters("g", weight(5)))
        gate.set()
        values = [float(within(lambda: pipeline.get(10)).value()[0, 0]) for _ in range(12)]
        pusher.join(20)
    assert pushed == list(range(12))
    assert values == sorted(values), "2 before, 5 after"
    assert values[-1] == 5


def test_two_hundred_replacements_keep_the_memory_of_one() -> None:
    with Pipeline(reference_bundle()) as pipeline:
        loaded: list[weakref.ref[Any]] = []
        load = pipeline._parameters.replacements

        def noted(*given: Any) -> Any:
            backends = load(*given)
            loaded.extend(weakref.ref(backend) for backend in backends.values())
            return backends

        pipeline._parameters.replacements = noted  # type: ignore[method-assign]
        for value in range(200):
            raised = {"one": np.array([value], np.float32), "two": np.array([2], np.float32)}
            pipeline.set_parameters("param_0", raised)
        gc.collect()
        assert len(loaded) == 200
        assert sum(backend() is not None for backend in loaded) == 1
        assert np.isfinite(pipeline.run(both(3))).all()
        assert float(pipeline.parameters("param_0")["one"][0]) == 199


class Unreadable(Exception):
    """An error that cannot be printed, copied or pickled."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    def __reduce__(self) -> str:
        raise TypeError("no copy")

    __repr__ = __str__


RAISED = [
    Unreadable(),
    RuntimeError(),
    RuntimeError("x" * 100_000),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    StopIteration(),
    StopAsyncIteration(),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_whatever_a_stage_raises_is_its_items_own_and_a_short_line(error: BaseException) -> None:
    def raising(x: np.ndarray) -> np.ndarray:
        if x[0, 0] == 2:
            raise error
        return x

    with Pipeline(chain(2, (0,)), {"stages:m0": raising}) as pipeline:
        results = within(lambda: list(pipeline.stream([full(k) for k in range(5)])))
        assert within(lambda: pipeline.run(full(1), 10))[0, 0] == 3
    assert [result.item for result in results if result.error is not None] == [2]
    failed = results[2].error
    assert isinstance(failed, StageFailed)
    assert failed.__cause__ is error
    assert str(failed).startswith(f"item 2 failed, stage m0, {type(error).__name__}")
    assert len(str(failed)) < 500


def test_a_stage_is_told_that_it_cannot_wait_for_itself() -> None:
    said: list[str] = []

    def asking(x: np.ndarray) -> np.ndarray:
        for call in (
            pipeline.get,
            lambda: pipeline.run(full(1)),
            lambda: [pipeline.push(full(9)) for _ in range(100)],
            lambda: list(pipeline.stream([full(1)])),
        ):
            try:
                call()
            except NnstretchError as error:
                said.append(str(error))
        return x

    pipeline = Pipeline(chain(2, (0,)), {"stages:m0": asking})
    pipeline.push(full(1))
    assert within(lambda: pipeline.get(10)).error is None
    within(lambda: pipeline.close(drain=False))
    assert "waiting for a result would never end" in said[0]
    assert "get them first" in said[1]
    assert "waiting for room for one more item would never end" in said[2]
    assert "get them first" in said[3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_may_close_and_replaces_nothing() -> None:
    with Pipeline(scaled_bundle(), {"stages:m": lambda x: x}) as pipeline:
        assert said_by_fork(pipeline.close) == "returned None"
        said = said_by_fork(lambda: pipeline.set_parameters("g", weight(3)))
        assert "a fork has no threads" in said
        said = said_by_fork(lambda: list(pipeline.stream([full(1)])))
        assert "a fork has no threads" in said
        assert pipeline.run(full(3))[0, 0] == 6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_leaves_a_stream_half_way_in_silence() -> None:
    with Pipeline(chain(2)) as pipeline:
        results = pipeline.stream([full(1)] * 9)
        next(results)
        assert said_by_fork(results.close) == "returned None"
        assert len(list(results)) == 8


@pytest.mark.parametrize("timeout_s", [10**400, True, b"1"])
def test_a_timeout_is_a_number_that_someone_may_mean(timeout_s: Any) -> None:
    with Pipeline(chain(2)) as pipeline:
        for call in (pipeline.run, pipeline.push):
            with pytest.raises(BadInput, match="timeout_s is "):
                call(full(1), timeout_s)
        with pytest.raises(BadInput, match="timeout_s is "):
            pipeline.get(timeout_s)


@pytest.mark.parametrize("items", [3, None, 1.5])
def test_a_stream_needs_items(items: Any) -> None:
    with Pipeline(chain(2)) as pipeline, pytest.raises(BadInput, match="items is "):
        list(pipeline.stream(items))


def test_a_thread_that_waits_is_told_of_the_end() -> None:
    gate, ends = threading.Event(), list[BaseException]()
    pipeline = Pipeline(chain(2, (0,)), {"stages:m0": lambda x: gate.wait(20) and x}, results=1)

    def waiting(call: Callable[[], object]) -> threading.Thread:
        def called() -> None:
            try:
                while True:
                    call()
            except NnstretchError as error:
                ends.append(error)

        thread = threading.Thread(target=called, daemon=True)
        thread.start()
        return thread

    callers = [waiting(lambda: pipeline.push(full(1))) for _ in range(4)]
    callers += [waiting(pipeline.get) for _ in range(4)]
    closer = threading.Thread(target=pipeline.close, daemon=True)
    closer.start()
    gate.set()
    for thread in (*callers, closer):
        thread.join(20)
        assert not thread.is_alive()
    assert {type(error) for error in ends} == {Cancelled, Stuck}
    assert len(ends) == 8


def test_a_push_that_is_interrupted_anywhere_leaves_a_pipeline_that_works() -> None:
    with Pipeline(chain(2), results=4) as pipeline:
        at, done = 1, 0
        while interrupted(lambda: pipeline.push(full(at), 10), at):  # noqa: B023
            at += 1
            while pipeline.open_items:
                value = within(lambda: pipeline.get(10)).value()[0, 0]
                assert value == at - 1 + 3
                done += 1
            assert within(lambda: pipeline.run(full(1), 10))[0, 0] == 4, "from another thread"
        assert at > 15
        within(pipeline.get)


def test_a_get_that_is_interrupted_anywhere_leaves_a_pipeline_that_works() -> None:
    with Pipeline(chain(2), results=4) as pipeline:
        at = 1
        pipeline.push(full(1))
        while interrupted(lambda: pipeline.get(10), at):
            at += 1
            while pipeline.open_items:
                assert within(lambda: pipeline.get(10)).value()[0, 0] == 4
            within(lambda: pipeline.push(full(1), 10))
        assert at > 15
        assert within(lambda: pipeline.run(full(1), 10))[0, 0] == 4


@pytest.mark.slow
def test_a_close_that_is_interrupted_anywhere_still_ends() -> None:
    at, is_over = 1, False
    while not is_over:
        pipeline = Pipeline(chain(2))
        pipeline.push(full(1))
        is_over = not interrupted(pipeline.close, at)
        at += 1
        del pipeline
        gc.collect()
        alive = [one for one in threading.enumerate() if one.name.startswith("nnstretch")]
        for thread in alive:
            thread.join(20)
            assert not thread.is_alive()
    assert at > 15


def test_a_replacement_that_is_interrupted_anywhere_is_made_or_not() -> None:
    with Pipeline(scaled_bundle(), {"stages:m": lambda x: x}) as pipeline:
        at, before = 1, 2.0
        while interrupted(lambda: pipeline.set_parameters("g", weight(at)), at):  # noqa: B023
            now = float(pipeline.parameters("g")["c"][0])
            assert within(lambda: pipeline.run(full(1), 10))[0, 0] == now
            assert now in (before, at)
            before, at = now, at + 1
        assert at > 15


@pytest.mark.parametrize("name", ["functions", "on_error", "traced", "bind", "backend"])
def test_an_argument_of_another_kind_is_told_by_its_name(name: str) -> None:
    with pytest.raises(BadInput, match=f"^{name} is "):
        Pipeline(chain(2), **{name: np.zeros((2, 2))})  # type: ignore[arg-type]
