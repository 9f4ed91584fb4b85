"""Clients of a served bundle: true answers, back-pressure, deadlines, cancellation, a clean end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import replace

import numpy as np
import pytest
from support.bundles import branched_bundle, several_plans

from nnstretch.errors import (
    BadInput,
    Cancelled,
    DeadlineMissed,
    ProcessorFailed,
    Stuck,
    UnknownName,
)
from nnstretch.run import Session
from nnstretch.run.loaded_network import LoadedNetwork, Values
from nnstretch.run.server import Server
from nnstretch.schedule import Disturbances, Interference, Outage
from nnstretch.soc import Processor
from nnstretch.trace import Span


@pytest.fixture(autouse=True)
def _no_thread_stays_behind() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


class Gated(LoadedNetwork):
    """Computes only while its gate is open."""

    def __init__(self) -> None:
        super().__init__(branched_bundle())
        self.gate = threading.Event()
        self.entered = threading.Event()

    def compute(self, subgraph: str, values: Values) -> None:
        self.entered.set()
        assert self.gate.wait(30)
        super().compute(subgraph, values)


def image(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 3, 8, 8)).astype(np.float32)


def test_many_clients_get_the_answers_to_their_own_questions() -> None:
    with Session(branched_bundle()) as session:
        expected = [session.run(image(seed)) for seed in range(8)]
    wrong: list[int] = []
    with Server(branched_bundle(), capacity=4) as server:

        def client(seed: int) -> None:
            wrong.extend(
                seed
                for _ in range(20)
                if not np.array_equal(server.submit(image(seed)).result(30), expected[seed])
            )

        clients = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
    assert not wrong
    assert (server.counts.answered, server.counts.lost) == (160, 0)


def test_a_full_server_makes_its_clients_wait() -> None:
    network = Gated()
    with Server(branched_bundle(), capacity=2, networks={"main": network}) as server:
        first = [server.submit(image(0)) for _ in range(2)]
        with pytest.raises(Stuck, match=r"no room for one more request, .* 2 are open"):
            server.submit(image(0), timeout_s=0.01)
        network.gate.set()
        assert server.submit(image(0), timeout_s=30).result(30).shape == first[0].result(30).shape


def test_what_is_taken_back_or_too_late_ends_at_once_and_makes_room() -> None:
    network = Gated()
    with Server(branched_bundle(), capacity=3, networks={"main": network}) as server:
        running = server.submit(image(0))
        assert network.entered.wait(30)
        late, unwanted = server.submit(image(1), deadline_ms=5), server.submit(image(2))
        assert unwanted.cancel()
        with pytest.raises(DeadlineMissed, match="request 1 missed its deadline"):
            late.result(30)
        with pytest.raises(CancelledError):
            unwanted.result(30)
        again = server.submit(image(3), timeout_s=30)
        network.gate.set()
        assert np.isfinite(running.result(30)).all()
        assert np.isfinite(again.result(30)).all()
    counts = server.counts
    assert (counts.submitted, counts.answered, counts.failed, counts.cancelled, counts.lost) == (
        4,
        2,
        1,
        1,
        0,
    )


def test_a_deadline_counts_from_the_call_that_waits_for_room() -> None:
    network = Gated()
    with Server(branched_bundle(), capacity=1, networks={"main": network}) as server:
        running = server.submit(image(0))
        assert network.entered.wait(30)
        threading.Timer(0.2, network.gate.set).start()
        late = server.submit(image(1), deadline_ms=50)
        with pytest.raises(DeadlineMissed, match="request 1 missed its deadline"):
            late.result(30)
        assert running.result(30).shape


def test_closing_answers_what_is_open_and_takes_no_more() -> None:
    server = Server(branched_bundle())
    open_ = [server.submit(image(seed)) for seed in range(5)]
    server.close()
    assert all(answer.done() and not answer.exception() for answer in open_)
    with pytest.raises(Cancelled, match="no request is taken"):
        server.submit(image(0))
    server.close()


def test_an_exception_in_the_block_cancels_what_is_open() -> None:
    network, answers = Gated(), []

    def interrupted() -> None:
        with server:
            answers.append(server.submit(image(0)))
            network.gate.set()
            raise KeyError

    server = Server(branched_bundle(), networks={"main": network})
    with pytest.raises(KeyError):
        interrupted()
    assert answers[0].done()
    assert server.counts.lost == 0


def test_a_lost_processor_changes_no_answer() -> None:
    with Session(branched_bundle()) as session:
        expected = session.run(image(0))
    with Server(
        branched_bundle(), disturbances=Disturbances(fails=(Outage("dsp", 0.0),))
    ) as server:
        answers = [server.submit(image(0)) for _ in range(10)]
        assert all(np.array_equal(answer.result(30), expected) for answer in answers)
    assert server.counts.replaced == 10
    with Server(
        branched_bundle(), disturbances=Disturbances(fails=(Outage("dsp", 0.0), Outage("cpu", 0.0)))
    ) as server:
        assert isinstance(server.submit(image(0)).exception(30), ProcessorFailed)


def test_what_the_network_does_not_take_is_refused_before_it_counts() -> None:
    with Server(branched_bundle()) as server, pytest.raises(BadInput, match="input "):
        server.submit(np.zeros((1, 2)))
    assert server.counts.submitted == 0
    with pytest.raises(BadInput, match="capacity is 0"):
        Server(branched_bundle(), capacity=0)


def test_a_loop_that_breaks_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(branched_bundle())

    def broken() -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(server._plans.service, "_end", lambda event: broken())
    answer = server.submit(image(0))
    with pytest.raises(Cancelled, match="its loop broke: RuntimeError: bug"):
        answer.result(30)
    server.close()
    assert server.counts.lost == 0


def test_each_answer_says_by_which_plan_it_was_computed() -> None:
    bundle = several_plans()
    with Session(bundle) as main, Session(bundle, plan="gpu") as gpu:
        expected = {"main": main.run(image(0)), "gpu": gpu.run(image(0))}
    for plan, adaptive in (("gpu", None), ("main", None), (None, False), (None, True)):
        with Server(bundle, plan=plan, adaptive=adaptive) as server:
            replies = [server.submit(image(0)) for _ in range(4)]
            assert all(
                np.array_equal(reply.result(30), expected["gpu" if plan == "gpu" else "main"])
                for reply in replies
                if reply.plan != "both"
            )
            assert server.adaptive is bool(adaptive)
        assert sum(server.counts.plans.values()) == 4
        assert {reply.plan for reply in replies} == set(server.counts.plans)
        assert all(
            reply.latency_ms is not None and (adaptive or reply.replaced == 0) for reply in replies
        ), "a host in trouble moves branches"
        if not adaptive:
            assert set(server.counts.plans) == {plan or "main"}


def test_a_server_of_several_plans_leaves_a_busy_processor() -> None:
    bundle = several_plans()
    busy = Disturbances(busy=(Interference("dsp", 0.0, 1e12, 0.1),))
    with Server(bundle, emulated=True, dilation=10.0, disturbances=busy) as server:
        assert server.adaptive
        plans_used = []
        for _ in range(12):
            reply = server.submit(image(0))
            assert np.array_equal(
                reply.result(30), server.networks[reply.plan or ""].run_sequential(image(0))
            )
            plans_used.append(reply.plan)
    assert plans_used[0] == "main", "predicted fastest on a quiet chip"
    assert plans_used[-1] == "gpu"
    assert server.counts.lost == 0


def test_filling_a_queue_holds_the_host_of_a_server_as_of_a_session() -> None:
    phone = (
        Processor("cpu", "cpu", 2),
        Processor("gpu", "gpu", 2, sync_us=500.0, enqueue_us=400.0),
    )
    spans: list[Span] = []
    bundle = branched_bundle(team=("cpu", "gpu"), sync_us=500.0)
    with Server(bundle, phone, emulated=True, dilation=10.0, ended=spans.append) as server:
        server.submit(image(0)).result(30)
    handed_us = {span.task.name: span.handed_us or 0.0 for span in spans}
    assert handed_us["main/s1_gpu#0"] - handed_us["main/stem#0"] >= 300.0 + 400.0


def test_branches_leave_a_busy_processor_within_a_request_and_answers_stay_true() -> None:
    busy = Disturbances(busy=(Interference("dsp", 0.0, 1e12, 0.1),))
    with Server(several_plans(3), emulated=True, dilation=10.0, disturbances=busy) as server:
        first = server.submit(image(0))
        expected = server.networks["main"].run_sequential(image(0))
        assert np.array_equal(first.result(30), expected)
    assert first.plan == "main", "nobody knew that the DSP is busy"
    assert first.replaced >= 2, "the first of three segments shows it"
    assert server.counts.lost == 0


def test_a_server_of_several_plans_leaves_a_lost_processor() -> None:
    lost = Disturbances(fails=(Outage("dsp", 0.0),))
    # Slow enough that a busy host does not pass for a slow GPU.
    with Server(several_plans(), emulated=True, dilation=10.0, disturbances=lost) as server:
        replies = [server.submit(image(0)) for _ in range(6)]
        assert all(reply.exception(30) is None for reply in replies)
    assert set(server.counts.plans) <= {"main", "gpu"}
    assert replies[-1].plan == "gpu"
    assert (
        sum(reply.replaced for reply in replies)
        == server.counts.replaced
        >= server.counts.plans["main"]
    ), "more on a host in trouble"


def test_adaptive_needs_several_plans_that_are_predicted() -> None:
    with pytest.raises(
        BadInput, match="adaptive with the one plan main, bundle, needed are several"
    ):
        Server(branched_bundle(), adaptive=True)
    plain = several_plans()
    subs = tuple(replace(sub, predicted_us={}) for sub in plain.manifest.subgraphs)
    plain = replace(plain, manifest=replace(plain.manifest, subgraphs=subs, sync_us={}))
    with pytest.raises(
        BadInput, match="adaptive without predicted times, main, stem of plan main has none"
    ):
        Server(plain, adaptive=True)
    with Server(plain) as server:
        assert not server.adaptive
    with pytest.raises(UnknownName, match="unknown plan 'best'"):
        Server(plain, plan="best")
