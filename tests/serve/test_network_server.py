"""Networks on real processors under every policy: true answers, each request ends exactly once."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import CancelledError, wait
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from support.serving import TWO, Gate, image, serving

from nnstretch.cli.serve.result_json import result_json
from nnstretch.cli.serve.show import show
from nnstretch.errors import BadInput, Cancelled, DeadlineMissed, ProcessorFailed, UnknownName
from nnstretch.files.workload.service_record import RecordedRequest
from nnstretch.schedule import Disturbances, Outage
from nnstretch.schedule.policies.table import POLICIES
from nnstretch.schedule.task_graphs.schedule_faults import schedule_faults
from nnstretch.serve.network_server import NetworkServer
from nnstretch.task import Task
from nnstretch.task_graph import TaskGraph
from nnstretch.trace import Span, Trace

ONE_CORE = "pool: {cpu: 1}\nqueueing: false\npolicy: rr\n"


@pytest.fixture(autouse=True)
def _no_thread_stays_behind():
    before = threading.active_count()
    yield
    assert threading.active_count() <= before  # one of an earlier test may end meanwhile


def expected(server: NetworkServer, inputs: np.ndarray) -> np.ndarray:
    return server.applications["net"].network.network.run_sequential(inputs)  # type: ignore[return-value]


def submitted(server: NetworkServer, name: str = "net", seed: int = 0, **how: int):
    reply = server.submit(name, image(seed), **how)
    assert reply is not None
    return reply


def faults(server: NetworkServer, ended: list[RecordedRequest]) -> tuple[str, ...]:
    """What the checker, which knows no policies, says of a record."""
    tasks: list[Task] = []
    spans: list[Span] = []
    arrivals_us: dict[str, float] = {}
    for request in ended:
        tasks_of = server.applications[request.application].tasks_of
        by_kind = {task.subgraph: task for task in tasks_of(request.request, float("inf"))}
        tasks += by_kind.values()
        for ran in request.tasks:
            task = by_kind[ran.task]
            arrivals_us[task.name] = request.arrived_us
            spans.append(Span(ran.start_us, ran.end_us, task, ran.processor))
    settings = server.settings
    graph = TaskGraph("", tuple(tasks), settings.processors, settings.times_us, {})
    return schedule_faults(Trace(tuple(spans)), graph, arrivals_us)


def test_an_event_loop_is_told_that_an_answer_is_there(tmp_path: Path) -> None:
    closed = asyncio.new_event_loop()
    closed.close()

    async def told() -> None:
        ended = asyncio.Event()
        reply = submitted(server)
        reply.notify(closed, ended.set)  # which nobody hears, and which harms nobody
        reply.notify(asyncio.get_running_loop(), ended.set)
        await asyncio.wait_for(ended.wait(), 30)
        assert reply.done()

    with serving(tmp_path, f"pool: {{cpu: 1}}\n{TWO}") as server:
        asyncio.run(told())


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_true_answers_and_a_schedule(tmp_path: Path, policy: str) -> None:
    ended: list[RecordedRequest] = []
    workload = f"pool: {{cpu: 2}}\npolicy: {policy}\n{TWO}"
    with serving(tmp_path, workload, on_end=ended.append) as server:
        replies = [submitted(server, ("net", "other")[n % 2], n) for n in range(12)]
        for number, reply in enumerate(replies):
            outputs = reply.result(30)
            assert np.array_equal(outputs["s1.merged"], expected(server, image(number)))
    assert [request.end for request in ended] == ["answered"] * 12
    assert len({request.request for request in ended}) == 12
    assert faults(server, ended) == ()
    statistics = server.applications["net"].statistics
    assert (statistics.accepted, statistics.answered, statistics.lost) == (6, 6, 0)


def test_a_full_queue_refuses_at_once_and_has_room_again(tmp_path: Path) -> None:
    ended: list[RecordedRequest] = []
    workload = f"{ONE_CORE}applications: [{{name: net, model: net.nns, queue_limit: 2}}]"
    with serving(tmp_path, workload, on_end=ended.append) as server:
        gate = Gate(server.applications["net"].network)
        first = [submitted(server), submitted(server)]
        assert server.submit("net", image(2)) is None
        assert [request.end for request in ended] == ["refused"]
        gate.open()
        wait(first, 30)
        assert submitted(server).result(30)


def test_a_higher_priority_goes_first_and_a_deadline_ends_a_request(tmp_path: Path) -> None:
    ended: list[RecordedRequest] = []
    with serving(tmp_path, ONE_CORE + TWO, on_end=ended.append) as server:
        gate = Gate(server.applications["net"].network)
        blocker = submitted(server)
        assert gate.entered.wait(30)
        late = submitted(server, timeout_us=1000)
        low, high = submitted(server), submitted(server, priority=5)
        other = submitted(server, "other")
        with pytest.raises(DeadlineMissed):
            late.result(30)
        gate.open()
        wait([blocker, low, high, other], 30)
    starts_us = {request.request: request.tasks[0].start_us for request in ended if request.tasks}
    assert sorted(starts_us, key=lambda number: starts_us[number]) == [0, 3, 4, 2]
    assert {request.request: request.end for request in ended}[1] == "missed"


def test_a_cancelled_request_computes_no_more(tmp_path: Path) -> None:
    ended: list[RecordedRequest] = []
    with serving(tmp_path, f"{ONE_CORE}{TWO}", on_end=ended.append) as server:
        gate = Gate(server.applications["net"].network)
        blocker = submitted(server)
        assert gate.entered.wait(30)
        taken_back = submitted(server)
        assert taken_back.cancel()
        gate.open()
        blocker.result(30)
        with pytest.raises(CancelledError):
            taken_back.result(30)
    by_number = {request.request: request for request in ended}
    assert by_number[1].end == "cancelled"
    assert by_number[1].tasks == ()


def test_work_leaves_a_processor_that_is_lost(tmp_path: Path) -> None:
    ended: list[RecordedRequest] = []
    lost = Disturbances(fails=(Outage("cpu1", 0.0),))
    with serving(tmp_path, f"pool: {{cpu: 2}}\n{TWO}", lost, ended.append) as server:
        for number in range(6):
            assert submitted(server, seed=number).result(30)
    assert {task.processor for request in ended for task in request.tasks} == {"cpu0"}
    everything = Disturbances(fails=(Outage("cpu0", 0.0), Outage("cpu1", 0.0)))
    with (
        serving(tmp_path, f"pool: {{cpu: 2}}\n{TWO}", everything) as server,
        pytest.raises(ProcessorFailed),
    ):
        submitted(server).result(30)


def test_a_slower_processor_takes_so_many_times_as_long(tmp_path: Path) -> None:
    ended: list[RecordedRequest] = []
    workload = f"pool: {{cpu: 1, slow: 1}}\nfactors: {{slow: 50}}\npolicy: rr\n{TWO}"
    with serving(tmp_path, workload, on_end=ended.append) as server:
        for number in range(20):
            submitted(server, seed=number).result(30)
        costs = server.settings.times_us
    assert costs[("net", "stem"), "slow"] == 50 * costs[("net", "stem"), "cpu"]
    took_us: dict[str, list[float]] = {"cpu": [], "slow": []}
    for request in ended:
        for task in request.tasks:
            took_us[task.processor].append(task.end_us - task.start_us)
    assert np.median(took_us["slow"]) > 10 * np.median(took_us["cpu"])


def test_closing_answers_or_cancels_what_is_open_and_takes_no_more(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        replies = [submitted(server, seed=number) for number in range(8)]
        server.close()
        assert all(reply.done() and reply.exception() is None for reply in replies)
        with pytest.raises(Cancelled):
            server.submit("net", image(0))
    with serving(tmp_path) as server:
        gate = Gate(server.applications["net"].network)
        reply = submitted(server)
        assert gate.entered.wait(30)
        threading.Timer(0.05, gate.open).start()
        server.close(drain=False)
        with pytest.raises(Cancelled):
            reply.result(30)
    assert server.applications["net"].statistics.lost == 0


def test_a_missed_deadline_is_among_the_failed_and_nothing_answered_has_no_latency(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as server:
        gate = Gate(server.applications["net"].network)
        reply = submitted(server, timeout_us=1000)
        with pytest.raises(DeadlineMissed):
            reply.result(30)
        gate.open()
    result = result_json(server, 1.0)
    ends = ("accepted", "answered", "failed", "deadline_misses", "lost")
    for counts in (result, *result["apps"]):
        assert [counts[end] for end in ends] == [1, 0, 1, 1, 0]
        assert counts["latency_ms"] == dict.fromkeys(("mean", "p50", "p95", "p99"))
    page = StringIO()
    show(result, Console(file=page, width=120))
    assert re.search(r"net +│ 0 of 1 +│ 0, 1, 0, 0 +│ - +│ - +│ - +│ - ", page.getvalue())


def test_a_failing_task_ends_its_request_alone(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        network = server.applications["net"].network
        compute = network.compute

        def broken(*_: object) -> None:
            raise ValueError("no luck")

        network.compute = broken  # type: ignore[method-assign]
        with pytest.raises(ValueError, match="no luck"):
            submitted(server).result(30)
        network.compute = compute  # type: ignore[method-assign]
        assert submitted(server).result(30)
    assert server.applications["net"].statistics.ends["failed"] == 1


def test_unknown_names_and_wrong_inputs_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        with pytest.raises(UnknownName, match="close to it: net"):
            server.submit("nett", image(0))
        with pytest.raises(BadInput, match="image"):
            server.submit("net", image(0)[:, :2])
