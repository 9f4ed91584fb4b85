"""Clients, stages and owners in any order that hypothesis comes upon.

A server and a pipeline are driven by rules; after each it is known what has to have ended, nothing
hangs, every answer is the one to its own question, and at the end nothing is left.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.bundles import branched_bundle
from support.pipeline_bundles import full, scaled_bundle
from support.within import within

from nnstretch.errors import Cancelled, DeadlineMissed, NnstretchError, StageFailed, Stuck
from nnstretch.run.loaded_network import LoadedNetwork, Values
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.run.server import Server

EXAMPLES = int(os.environ.get("NNSTRETCH_EXAMPLES", "60"))
"""Of each machine; 60 take ten seconds together."""
ATTACK = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
BUNDLE = branched_bundle()
ERRORS = (ValueError("v"), SystemExit(1), KeyboardInterrupt(), StopIteration(), GeneratorExit())
VALUES = st.integers(0, 5)


class Slow(LoadedNetwork):
    """Fails where the first number says so, and holds those that are to be held."""

    gate: threading.Event

    def compute(self, subgraph: str, values: Values) -> None:  # type: ignore[override]
        code = int(values["image"][0, 0, 0, 0])
        if code >= 20:
            assert self.gate.wait(30)
        elif code >= 10 and subgraph == "stem":
            raise ERRORS[code % len(ERRORS)]
        super().compute(subgraph, values)


NETWORK = Slow(BUNDLE)


def image(code: int) -> np.ndarray:
    return np.full((1, 3, 8, 8), code, np.float32)


EXPECTED = {k: LoadedNetwork(BUNDLE).run_sequential(image(k)) for k in (*range(6), 20, 21, 22)}


class ServerMachine(RuleBasedStateMachine):
    @initialize(capacity=st.integers(1, 3))
    def open(self, capacity: int) -> None:
        self.threads = threading.active_count()
        NETWORK.gate = threading.Event()
        self.capacity = capacity
        self.server = Server(BUNDLE, capacity=capacity, networks={"main": NETWORK})
        self.replies: list[tuple[int, Any]] = []
        self.chained: list[tuple[int, Any]] = []
        self.is_closed = False
        self.held = 0

    def submit(self, code: int, deadline_ms: float | None = None) -> Any:
        x = image(code)
        try:
            reply = self.server.submit(x, deadline_ms, timeout_s=0 if self.held else 20)
        except Stuck:
            assert self.held, "there is room as soon as what is open has ended"
            return None
        except Cancelled:
            assert self.is_closed
            return None
        assert not self.is_closed
        x[:] = 99
        self.replies.append((code, reply))
        return reply

    @rule(code=VALUES)
    def ask(self, code: int) -> None:
        self.submit(code)

    @rule(code=st.integers(10, 19))
    def ask_what_fails(self, code: int) -> None:
        self.submit(code)

    @rule(code=st.integers(20, 22))
    def ask_what_is_held(self, code: int) -> None:
        if not NETWORK.gate.is_set():
            self.held += 1
        self.submit(code)

    @rule()
    def let_go(self) -> None:
        NETWORK.gate.set()
        self.held = 0

    @rule(deadline_ms=st.sampled_from([0, 0.01, 1, 1e9, float("inf"), float("nan"), "1", -1]))
    def ask_for_a_time(self, deadline_ms: Any) -> None:
        try:
            self.submit(1, deadline_ms)
        except NnstretchError as error:
            assert "deadline_ms is" in str(error)  # noqa: PT017

    @rule(which=st.integers(0, 30))
    def cancel(self, which: int) -> None:
        if self.replies:
            reply = self.replies[which % len(self.replies)][1]
            with suppress(SystemExit):  # of a callback, which the thread that cancels calls
                reply.cancel()

    @rule(
        which=st.integers(0, 30),
        depth=st.integers(1, 3),
        what=st.sampled_from(["ask", "raise", "wait"]),
    )
    def call_back(self, which: int, depth: int, what: str) -> None:
        if not self.replies:
            return
        reply = self.replies[which % len(self.replies)][1]
        inside: Future[str] = Future()

        def called(done: Any, left: int) -> None:
            try:
                if what == "raise":
                    raise SystemExit(4)
                again = self.server.submit(image(left), timeout_s=0 if self.held else 20)
                self.chained.append((left, again))
                if what == "wait" and not self.held:
                    again.exception(20)
                if left > 1:
                    again.add_done_callback(lambda r: called(r, left - 1))
            except (Stuck, Cancelled, CancelledError):
                pass
            finally:
                if not inside.done():
                    inside.set_result("called")

        try:
            reply.add_done_callback(lambda r: called(r, depth))
        except SystemExit:
            assert reply.done()

    @rule()
    def read(self) -> None:
        if not self.held:
            for code, reply in self.replies:
                self.check(code, reply)

    def check(self, code: int, reply: Any) -> None:
        try:
            value = reply.result(20)
        except TimeoutError:
            pytest.fail("an answer never comes")
        except (CancelledError, DeadlineMissed):
            return
        except (ValueError, StageFailed):
            assert 10 <= code < 20
            return
        assert np.array_equal(value, EXPECTED[code]), code

    @precondition(lambda self: not self.is_closed)
    @rule(drain=st.booleans(), often=st.integers(0, 5))
    def close(self, drain: bool, often: int) -> None:
        if often:
            return
        self.let_go()
        self.is_closed = True
        within(lambda: self.server.close(drain))

    def teardown(self) -> None:
        if not hasattr(self, "server"):
            return
        NETWORK.gate.set()
        within(self.server.close)
        for code, reply in (*self.replies, *self.chained):
            assert reply.done()
            self.check(code, reply)
        assert self.server.counts.lost == 0
        assert not self.server._open.entries
        for thread in threading.enumerate():
            if thread.name == "within":
                thread.join(20)
        assert threading.active_count() == self.threads


SCALED = scaled_bundle()


class PipelineMachine(RuleBasedStateMachine):
    @initialize(results=st.integers(1, 3), stops=st.integers(0, 3))
    def open(self, results: int, stops: int) -> None:
        self.threads = threading.active_count()
        self.gate = threading.Event()
        self.gate.set()
        self.weight = 2.0
        self.expected: list[tuple[int, float]] = []
        self.is_closed = self.is_drained = False
        self.stops = not stops
        self.stopped = False
        self.pipeline = Pipeline(
            SCALED,
            {"stages:m": self.stage},
            results=results,
            on_error="continue" if stops else "stop",
        )

    def stage(self, x: np.ndarray) -> np.ndarray:
        code = int(x[0, 0])
        if code >= 20:
            assert self.gate.wait(30)
        elif code >= 10:
            raise ERRORS[code % len(ERRORS)]
        return x

    @rule(code=st.integers(0, 22))
    def push(self, code: int) -> None:
        x = full(code)
        try:
            number = self.pipeline.push(x, timeout_s=0.02)
        except Stuck as error:
            assert "no room" in str(error)  # noqa: PT017
            return
        except Cancelled:
            assert self.is_closed or (self.stops and self.stopped)
            return
        x[:] = 99
        assert number == self.pushed
        self.pushed += 1
        self.stopped = self.stopped or 10 <= code < 20
        self.expected.append((code, self.weight))

    pushed = 0
    taken = 0

    @rule()
    def get(self) -> None:
        try:
            result = self.pipeline.get(20 if self.expected and self.gate.is_set() else 0)
        except Stuck as error:
            text = str(error)
            assert "no item is left" in text or not self.gate.is_set() or not self.expected, text
            return
        self.check(result)

    @precondition(lambda self: self.gate.is_set())
    @rule()
    def get_all(self) -> None:
        # How much is expected may depend on time, and what is drawn may not.
        while self.expected:
            self.check(within(lambda: self.pipeline.get(20)))

    def check(self, result: Any) -> None:
        code, weight = self.expected.pop(0)
        assert result.item == self.taken
        self.taken += 1
        if 10 <= code < 20 and not isinstance(result.error, Cancelled):
            assert isinstance(result.error, StageFailed)
            assert result.error.__cause__ is ERRORS[code % len(ERRORS)]
        elif result.error is not None:
            assert isinstance(result.error, Cancelled)
            assert self.is_closed or self.stops
        else:
            assert float(result.value()[0, 0]) == code * weight

    @rule(value=st.integers(1, 9))
    def replace(self, value: int) -> None:
        try:
            within(lambda: self.pipeline.set_parameters("g", {"c": np.array([value], np.float32)}))
        except Cancelled:
            assert self.is_closed or (self.stops and self.stopped)
            return
        self.weight = float(value)

    @rule()
    def hold(self) -> None:
        self.gate.clear()

    @rule()
    def let_go(self) -> None:
        self.gate.set()

    @precondition(lambda self: self.gate.is_set())
    @rule(
        codes=st.lists(VALUES, max_size=8),
        in_flight=st.sampled_from([None, 1, 2]),
        leave=st.integers(0, 9),
    )
    def stream(self, codes: list[int], in_flight: int | None, leave: int) -> None:
        if self.expected:
            return

        def streamed() -> None:
            for number, result in enumerate(
                self.pipeline.stream((full(code) for code in codes), in_flight)
            ):
                self.expected.append((codes[number], self.weight))
                self.check(result)
                if number == leave:
                    break

        try:
            within(streamed)
        except Cancelled:
            assert self.is_closed or (self.stops and self.stopped)
        self.pushed = self.taken = self.pipeline._flow.taken
        assert self.pipeline.open_items == 0

    @rule(drain=st.booleans(), often=st.integers(0, 9))
    def close(self, drain: bool, often: int) -> None:
        if often:
            return
        self.gate.set()
        self.is_closed = True
        within(lambda: self.pipeline.close(drain))

    def teardown(self) -> None:
        if not hasattr(self, "pipeline"):
            return
        self.gate.set()
        within(self.pipeline.close)
        self.is_closed = True
        while self.expected:
            self.check(within(lambda: self.pipeline.get(20)))
        with pytest.raises(Stuck):
            within(lambda: self.pipeline.get(20))
        for thread in threading.enumerate():
            if thread.name == "within":
                thread.join(20)
        assert threading.active_count() == self.threads


TestServer = ServerMachine.TestCase
TestServer.settings = ATTACK
TestPipeline = PipelineMachine.TestCase
TestPipeline.settings = ATTACK
