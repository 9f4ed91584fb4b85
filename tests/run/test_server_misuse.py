"""What clients may do to a server: write on arrays, call it from callbacks, close it, fork. Nobody
else notices.
"""

from __future__ import annotations

import os
import re
import threading
from concurrent.futures import Future, wait
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from support.bundles import filled_image
from support.interrupts import interrupted
from support.within import said_by_fork, within

from nnstretch.bundle.bundle import Bundle
from nnstretch.errors import BadInput, Cancelled, NnstretchError
from nnstretch.run import Session
from nnstretch.run.loaded_network import LoadedNetwork, Values
from nnstretch.run.server import Server

pytestmark = pytest.mark.usefixtures("no_thread_stays_behind")


class Gated(LoadedNetwork):
    """Computes only while its gate is open."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.gate, self.entered = threading.Event(), threading.Event()

    def compute(self, subgraph: str, values: Values) -> None:  # type: ignore[override]
        self.entered.set()
        assert self.gate.wait(30)
        super().compute(subgraph, values)


def answer_to(bundle: Bundle, x: np.ndarray) -> np.ndarray:
    with Session(bundle) as session:
        return session.run(x)  # type: ignore[return-value]


def test_what_is_written_on_an_array_after_its_submit_is_not_computed(bundle: Bundle) -> None:
    network = Gated(bundle)
    expected = [answer_to(bundle, filled_image(k)) for k in range(4)]
    frame = filled_image()
    with Server(bundle, networks={"main": network}) as server:
        replies = []
        for k in range(4):
            frame[:] = k
            replies.append(server.submit(frame if k % 2 else {"image": frame}))
        frame[:] = 100
        network.gate.set()
        answers = [reply.result(30) for reply in replies]
    for k in range(4):
        assert np.array_equal(answers[k], expected[k]), k


def test_an_answer_is_its_clients_own(bundle: Bundle) -> None:
    with Server(bundle) as server:
        first = server.submit(filled_image()).result(30)
        expected = first.copy()
        second = server.submit(filled_image()).result(30)
        second[:] = 7
        assert np.array_equal(first, expected)
        assert np.array_equal(server.submit(filled_image()).result(30), expected)


@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize("clients", [0, 2])
def test_a_callback_may_submit_the_next_request(
    bundle: Bundle, capacity: int, clients: int
) -> None:
    """Alone, and while others take the room that an answer makes."""
    ended: Future[int] = Future()
    with Server(bundle, capacity=capacity) as server:

        def again(number: int, reply: Future[Any]) -> None:
            reply.result()
            if number == 30:
                ended.set_result(number)
            else:
                server.submit(filled_image()).add_done_callback(lambda r: again(number + 1, r))

        def client() -> None:
            for _ in range(60):
                server.submit(filled_image()).result(30)

        others = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
        for thread in others:
            thread.start()
        within(lambda: server.submit(filled_image())).add_done_callback(lambda r: again(1, r))
        assert ended.result(30) == 30
        for thread in others:
            thread.join(30)
    assert server.counts.answered == 30 + 60 * clients


def test_a_callback_may_wait_for_another_answer(bundle: Bundle) -> None:
    heard: Future[Any] = Future()
    with Server(bundle, capacity=1) as server:
        server.submit(filled_image()).add_done_callback(
            lambda _: heard.set_result(server.submit(filled_image()).result(20))
        )
        assert heard.result(30).shape


def test_a_callback_may_close_the_server(bundle: Bundle) -> None:
    closed = threading.Event()
    server = Server(bundle, capacity=1)

    def closing(_: Future[Any]) -> None:
        server.close()
        closed.set()

    server.submit(filled_image()).add_done_callback(closing)
    assert closed.wait(20)
    with pytest.raises(Cancelled, match="no request is taken"):
        server.submit(filled_image())
    within(server.close)


def test_a_client_that_ends_its_own_answer_harms_nobody(bundle: Bundle) -> None:
    network = Gated(bundle)
    with Server(bundle, capacity=2, networks={"main": network}) as server:
        mine, running = server.submit(filled_image()), server.submit(filled_image())
        mine.set_result("mine")
        running.set_running_or_notify_cancel()
        network.gate.set()
        for _ in range(3):
            assert within(lambda: server.submit(filled_image(), timeout_s=10).result(10)).shape
    assert mine.result() == "mine"
    assert server.counts.lost == 0


def test_a_thread_that_serves_is_told_that_it_cannot_wait_for_itself(bundle: Bundle) -> None:
    said: list[str] = []

    class Asking(LoadedNetwork):
        def compute(self, subgraph: str, values: Values) -> None:  # type: ignore[override]
            ask(subgraph)
            super().compute(subgraph, values)

    def ask(_: object) -> None:
        if len(said) < 4:
            for call in (lambda: server.submit(filled_image()), reply[0].result):
                try:
                    call()
                except NnstretchError as error:
                    said.append(f"{type(error).__name__}: {error}")

    entered = threading.Event()
    reply: list[Any] = []
    gated = Asking(bundle)
    compute = gated.compute
    gated.compute = lambda *given: (entered.wait(20), compute(*given))[1]  # type: ignore
    with Server(bundle, capacity=1, networks={"main": gated}, ended=ask) as server:
        reply.append(server.submit(filled_image()))
        entered.set()
        assert reply[0].result(20).shape
    assert len(said) >= 4
    for one in said[:4]:
        assert "would never end" in one or "closed" in one, one


@pytest.mark.parametrize("where", ["hook", "processor"])
def test_a_server_that_is_closed_by_one_of_its_own_threads_ends(bundle: Bundle, where: str) -> None:
    closed: list[bool] = []

    def closing(_: object) -> None:
        server.close()
        closed.append(True)

    class Closing(LoadedNetwork):
        def compute(self, subgraph: str, values: Values) -> None:  # type: ignore[override]
            closing(None)
            super().compute(subgraph, values)

    network = {"main": Closing(bundle)} if where == "processor" else None
    server = Server(bundle, networks=network, ended=closing if where == "hook" else None)
    assert within(lambda: server.submit(filled_image()).result(10)).shape
    within(server.close)
    assert closed


@pytest.mark.parametrize("drain", [True, False])
def test_closing_ends_who_waits_for_room(bundle: Bundle, drain: bool) -> None:
    network = Gated(bundle)
    server = Server(bundle, capacity=1, networks={"main": network})
    first = server.submit(filled_image())
    ends: list[BaseException] = []

    def client() -> None:
        try:
            server.submit(filled_image())
        except Cancelled as error:
            ends.append(error)

    clients = [threading.Thread(target=client, daemon=True) for _ in range(3)]
    for thread in clients:
        thread.start()
    closer = threading.Thread(target=server.close, args=(drain,), daemon=True)
    closer.start()
    for thread in clients:
        thread.join(20)
    assert len(ends) == 3, "they do not wait until what is open has ended"
    network.gate.set()
    closer.join(20)
    assert not closer.is_alive()
    assert first.cancelled() is not drain


def test_many_clients_that_wait_for_room_all_come_to_their_turn(bundle: Bundle) -> None:
    answered: list[int] = []

    def client(number: int) -> None:
        for _ in range(10):
            server.submit(filled_image(), timeout_s=30).result(30)
        answered.append(number)

    with Server(bundle, capacity=2) as server:
        clients = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(16)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join(60)
    assert sorted(answered) == list(range(16))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_is_told_that_it_has_no_server(bundle: Bundle) -> None:
    network = Gated(bundle)
    with Server(bundle, networks={"main": network}) as server:
        reply = server.submit(filled_image())
        told = "Stuck: process .* has no threads, server of test:branched, a fork has no threads"
        for call in (lambda: server.submit(filled_image()), reply.result, reply.exception):
            assert re.match(told, said_by_fork(call)), call
        assert said_by_fork(server.close) == "returned None"
        network.gate.set()
        assert reply.result(20).shape


ODD_INPUTS: list[Any] = [
    None,
    [[1.0]],
    object(),
    filled_image().astype(object),
    filled_image().astype(">f4"),
    filled_image().astype(np.float64),
    np.zeros((0, 3, 8, 8), np.float32),
    filled_image()[0],
    {},
    {"picture": filled_image()},
    {"image": filled_image(), "more": filled_image()},
    {"image": None},
    {3: filled_image()},
    dict.fromkeys(range(100_000)),
    np.full((1, 3, 8, 8), np.nan, np.float32),
]


@pytest.mark.parametrize("inputs", ODD_INPUTS, ids=range(len(ODD_INPUTS)))
def test_inputs_that_are_none_are_refused_in_a_short_line(bundle: Bundle, inputs: Any) -> None:
    with Server(bundle, capacity=1) as server, Session(bundle) as session:
        for call in (server.submit, session.run):
            with pytest.raises(BadInput, match="image") as refused:
                call(inputs)
            assert len(str(refused.value)) < 500
        assert within(lambda: server.submit(filled_image(), timeout_s=10).result(10)).shape


def test_arrays_of_any_memory_are_taken(bundle: Bundle) -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    expected = answer_to(bundle, x)
    readonly = x.copy()
    readonly.flags.writeable = False
    spread = np.zeros((1, 3, 8, 16), np.float32)
    spread[..., ::2] = x
    views: list[np.ndarray] = [readonly, spread[..., ::2], np.asfortranarray(x), x[::-1]]
    with Server(bundle) as server:
        for view in views:
            assert np.array_equal(server.submit(view).result(20), expected)


def test_waiting_for_several_and_as_they_end_works(bundle: Bundle) -> None:
    with Server(bundle) as server:
        replies = [server.submit(filled_image()) for _ in range(8)]
        done, open_ = wait(replies, timeout=20)
        assert (len(done), len(open_)) == (8, 0)
        called: list[object] = []
        replies[0].add_done_callback(called.append)
        assert called == [replies[0]]


@pytest.mark.slow
def test_a_thousand_servers_leave_nothing(bundle: Bundle) -> None:
    network = {"main": LoadedNetwork(bundle)}
    begun_s = perf_counter()
    for number in range(1000):
        with Server(bundle, networks=network) as server:
            if number % 10 == 0:
                server.submit(filled_image()).result(20)
        if perf_counter() - begun_s > 60:
            pytest.fail("a server takes longer than 60 ms to open and close")


def test_a_submit_that_is_interrupted_anywhere_keeps_no_place(bundle: Bundle) -> None:
    with Server(bundle, capacity=1) as server:
        at = 1
        while interrupted(lambda: server.submit(filled_image(), timeout_s=20), at):
            at += 1
            assert within(lambda: server.submit(filled_image(), timeout_s=10).result(10)).shape
        assert at > 30
    assert server.counts.lost == 0


def test_a_wait_for_room_that_is_interrupted_anywhere_wakes_the_next_one(bundle: Bundle) -> None:
    at, is_over = 1, False
    while not is_over:
        network = Gated(bundle)
        with Server(bundle, capacity=1, networks={"main": network}) as server:
            first = server.submit(filled_image())
            threading.Timer(0.002, network.gate.set).start()
            is_over = not interrupted(lambda: server.submit(filled_image(), timeout_s=20), at)
            at += 3
            network.gate.set()
            assert first.result(20).shape
            assert within(lambda: server.submit(filled_image(), timeout_s=10).result(10)).shape
    assert at > 60


def test_a_close_that_is_interrupted_anywhere_can_be_repeated(bundle: Bundle) -> None:
    at, is_over = 1, False
    while not is_over:
        server = Server(bundle)
        reply = server.submit(filled_image())
        is_over = not interrupted(server.close, at)
        at += 1
        within(server.close)
        assert reply.result(20).shape
        assert not server._loop.is_alive()
    assert at > 10


@pytest.mark.parametrize("name", ["processors", "networks", "adaptive", "disturbances", "ended"])
def test_an_argument_of_another_kind_is_told_by_its_name(bundle: Bundle, name: str) -> None:
    with pytest.raises(BadInput, match=f"^{name} is "):
        Server(bundle, **{name: np.zeros((2, 2))})


def test_drain_is_true_or_false(bundle: Bundle) -> None:
    with Server(bundle) as server, pytest.raises(BadInput, match=r"^drain is "):
        server.close(np.zeros((2, 2)))  # type: ignore[arg-type]
