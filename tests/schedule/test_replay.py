"""A record that arrives once more, and the costs that it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from nnstretch.cli.simulate.measured import measured_times
from nnstretch.errors import BadInput, BrokenFile
from nnstretch.files.workload.measured_costs import write_measured_costs
from nnstretch.files.workload.service_record import (
    RecordedApplication,
    RecordedKind,
    RecordedProcessor,
    RecordedRequest,
    RecordedTask,
    RecordHeader,
    RecordWriter,
    ServiceRecord,
    read_record,
)
from nnstretch.schedule.executors.contended import HostCosts
from nnstretch.schedule.request import Request
from nnstretch.schedule.simulation.application import Application, ExponentialArrivals, own_tasks
from nnstretch.schedule.simulation.busy_time import busy_shares
from nnstretch.schedule.simulation.durations import MeasuredTimes, Pace
from nnstretch.schedule.simulation.record_costs import costs_of_record
from nnstretch.schedule.simulation.replay import (
    placed_spans,
    recorded_latencies,
    recorded_utilisation,
    replay_settings,
)
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.schedule.simulation.simulate import ApplicationRun, Simulation
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Span

CORES = (Processor("cpu0", "cpu", 1), Processor("cpu1", "cpu", 1))
BESIDE = 1.5
STEADY = Pace()
COSTS_US = {"big": {"head": 3000.0, "tail": 2000.0}, "small": {"whole": 1500.0}}


def served(
    policy: str = "eft",
    requests: int = 150,
    spread: bool = False,
    beside_factor: float = BESIDE,
    deadline_us: float = 1e6,
    gap_us: float = 9000.0,
    switched: float = 1.0,
    pace: Pace = STEADY,
    priorities: tuple[int, ...] = (),
    **how: Any,
) -> ServiceRecord:
    """A record of a server that is itself simulated, so that everything of it is known."""
    tasks = {
        "big": (Task("head", "head"), Task("tail", "tail", frozenset({"head"}))),
        "small": (Task("whole", "whole"),),
    }
    times_us, samples_us = {}, {}
    for name, costs in COSTS_US.items():
        for task, cost_us in costs.items():
            for core in CORES:
                key = (name, task), core.name
                times_us[key] = cost_us
                widths = (0.8, 0.9, 1.0, 1.1, 1.6) if spread else (1.0,)
                samples_us[key] = [cost_us * width for width in widths]
    applications = [
        Application(name, own_tasks(name, tasks[name]), ExponentialArrivals(gap_us), requests,
                    deadline_us=deadline_us, priorities=priorities)
        for name in COSTS_US
    ]  # fmt: skip
    beside = dict.fromkeys(times_us, beside_factor)
    host = HostCosts(0.0, 60.0, 30.0)
    measured = MeasuredTimes(
        samples_us, beside, dict.fromkeys(times_us, switched), pace=pace, host=host
    )
    setting = SimulationSettings(
        *(tuple(applications), CORES, times_us, policy),
        **{"durations": "measured", "measured": measured, "seed": 7},
    )
    return recorded(replace(setting, **how))


def recorded(setting: SimulationSettings) -> ServiceRecord:
    spans: dict[int, list[RecordedTask]] = {}
    requests: list[RecordedRequest] = []

    def on_span(span: Span) -> None:
        task = RecordedTask(span.task.subgraph, span.processor, span.start_us, span.end_us)
        spans.setdefault(span.task.request, []).append(task)

    def on_outcome(run: ApplicationRun, number: int, outcome: Request, _us: float) -> None:
        requests.append(
            RecordedRequest(
                *(number, run.application.name, outcome.arrived_us - 0.0, outcome.arrived_us),
                *(outcome.ended_us, "answered" if outcome.error is None else "missed"),
                *(outcome.arrived_us + run.application.deadline_us, outcome.tasks[0].priority),
                tuple(spans.pop(number, [])),
            )
        )

    Simulation(setting, on_span, on_outcome).run()
    applications = []
    for application in setting.applications:
        kinds = []
        for task in application.tasks:
            costs_us = {core.name: setting.times_us[task.work, core.name] for core in CORES}
            kinds.append(RecordedKind(task.subgraph, tuple(task.needs), None, costs_us))
        applications.append(
            RecordedApplication(application.name, 0, application.deadline_us, None, tuple(kinds))
        )
    processors = tuple(
        RecordedProcessor(core.name, core.kind, core.queue_depth) for core in setting.processors
    )
    header = RecordHeader(
        *("0.1.0", "w.yaml", setting.policy, setting.queueing, setting.correction, 0),
        *(processors, tuple(applications)),
    )
    return ServiceRecord(header, tuple(requests))


@pytest.mark.parametrize("policy", ["rr", "met", "eft", "heft_rt", "least_slack"])
def test_recorded_durations_give_the_recorded_latencies(policy: str) -> None:
    record = served(policy, spread=True)
    result = Simulation(replay_settings(record, None, None, 0)).run()
    for run in result.runs:
        requests = [r for r in record.requests if r.application == run.application.name]
        was, now = recorded_latencies(requests), run.latencies
        assert now.count == was.count
        assert now.summary_ms() == pytest.approx(was.summary_ms(), rel=1e-6)
    used = {name: us / result.makespan_us for name, us in result.busy_us.items()}
    assert used == pytest.approx(recorded_utilisation(record), rel=1e-3)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_replay_hands_over_as_far_ahead_as_the_server_did(depth: int) -> None:
    """What lies in a processor's queue starts without waiting for the scheduler."""
    cores = tuple(replace(core, queue_depth=depth) for core in CORES)
    record = served(spread=True, processors=cores)
    check_replay(record)


def test_a_replay_ends_requests_at_their_deadline_as_the_server_does() -> None:
    """Equal tasks take equal times, so what the record does not say is drawn as it was."""
    cores = tuple(replace(core, queue_depth=2) for core in CORES)
    how = {"processors": cores, "ends_at_deadline": True}
    record = served(requests=300, beside_factor=1.0, deadline_us=7_000.0, **how)
    missed = sum(request.end == "missed" for request in record.requests)
    assert missed > 5
    runs = check_replay(record)
    assert sum(run.dropped for run in runs) == missed


def test_requests_keep_the_priorities_that_their_clients_gave() -> None:
    priorities = tuple(number % 3 - 1 for number in range(150))
    how: dict[str, Any] = {"queueing": False, "beside_factor": 1.0, "gap_us": 3500.0}
    record = served(priorities=priorities, **how)
    plain = served(**how)
    assert [r.ended_us for r in record.requests] != [r.ended_us for r in plain.requests]
    check_replay(record)


def check_replay(record: ServiceRecord) -> tuple[ApplicationRun, ...]:
    """Check that the same requests are answered after the same time."""
    result = Simulation(replay_settings(record, None, None, 0)).run()
    for run in result.runs:
        requests = [r for r in record.requests if r.application == run.application.name]
        was = recorded_latencies(requests)
        assert run.latencies.count == was.count
        assert run.latencies.summary_ms() == pytest.approx(was.summary_ms(), rel=1e-6)
    return result.runs


def test_another_policy_hears_the_same_arrivals() -> None:
    record = served("rr")
    result = Simulation(replay_settings(record, "heft_rt", None, 0)).run()
    assert sum(run.arrived for run in result.runs) == len(record.requests)
    assert all(run.latencies.mean_us > 0 for run in result.runs)


def test_costs_of_a_record_are_those_that_made_it() -> None:
    costs = costs_of_record(served())
    assert {(row.application, row.task) for row in costs.tasks} == {
        *(("big", "head"), ("big", "tail"), ("small", "whole"))
    }
    for row in costs.tasks:
        expected_us = COSTS_US[row.application][row.task]
        assert row.median_us == pytest.approx(expected_us, rel=1e-3)
        assert row.beside == pytest.approx(BESIDE, rel=1e-3)
    assert costs.handover_us == pytest.approx(60.0)
    assert costs.answer_us == pytest.approx(30.0)


def test_a_pause_of_the_host_is_no_cost_of_every_hand_over() -> None:
    """Where processors hardly ever rest, few hand-overs tell what one takes."""
    record = served(requests=1)
    first, *others = record.requests
    pause_us = 10_000.0
    tasks = tuple(
        replace(task, start_us=task.start_us + pause_us, end_us=task.end_us + pause_us)
        for task in first.tasks
    )
    paused = replace(first, tasks=tasks, ended_us=first.ended_us + pause_us)
    costs = costs_of_record(replace(record, requests=(*others, paused)))
    assert costs.handover_us <= costs.wake_us == pytest.approx(60.0)


@pytest.mark.slow
def test_measured_times_with_recorded_arrivals_are_near() -> None:
    record = served(requests=1500, spread=True)
    costs = costs_of_record(record)
    samples = {((r.application, r.task), r.processor): r.samples_us for r in costs.tasks}
    beside = {((r.application, r.task), r.processor): r.beside for r in costs.tasks}
    host = HostCosts(costs.decision_us, costs.handover_us, costs.answer_us)
    measured = MeasuredTimes(samples, beside, host=host)
    result = Simulation(replay_settings(record, None, measured, 3)).run()
    for run in result.runs:
        requests = [r for r in record.requests if r.application == run.application.name]
        was = recorded_latencies(requests)
        assert run.latencies.quantile_us(0.95) == pytest.approx(was.quantile_us(0.95), rel=0.08)


def test_what_follows_strangers_is_told_apart_from_what_follows_its_own() -> None:
    costs = costs_of_record(served("rr", requests=600, switched=1.4))
    rows = {(row.task, row.processor): row for row in costs.tasks}
    assert rows["head", "cpu0"].switched == rows["whole", "cpu0"].switched == 1.0
    for core in CORES:
        tail = rows["tail", core.name]
        assert tail.switched == pytest.approx(1.4, rel=0.02)
        assert tail.median_us == pytest.approx(2000.0, rel=0.02)
        assert tail.beside == pytest.approx(BESIDE, rel=0.02)


def test_slow_moments_of_a_host_are_told_apart_from_long_tasks() -> None:
    slow = Pace((1.0, 1.0, 1.0, 2.0, 1.0, 1.0), 50_000.0)
    record = served(requests=1500, pace=slow, gap_us=7000.0)
    costs = costs_of_record(record)
    assert median(costs.pace) == pytest.approx(6 / 7, abs=0.08)
    assert 1.5 < max(costs.pace) < 2.0
    # In most windows tasks take what they take without slow moments, each as long as the other.
    for row in costs.tasks:
        expected_us = COSTS_US[row.application][row.task]
        assert row.median_us * median(costs.pace) == pytest.approx(expected_us, rel=0.05)
        assert max(row.samples_us) < 1.4 * min(row.samples_us)
    result = Simulation(replay_settings(record, None, measured_times(costs), 3)).run()
    for run in result.runs:
        requests = [r for r in record.requests if r.application == run.application.name]
        was = recorded_latencies(requests)
        assert run.latencies.quantile_us(0.95) == pytest.approx(was.quantile_us(0.95), rel=0.08)


def test_a_record_on_disk_is_the_same_and_one_of_nothing_has_no_costs(tmp_path: Path) -> None:
    record = served(requests=5)
    writer = RecordWriter(tmp_path / "r.jsonl", record.header)
    for request in record.requests:
        writer.add(request)
    writer.close()
    assert read_record(tmp_path / "r.jsonl") == record
    with pytest.raises(BadInput, match="no task has run"):
        costs_of_record(ServiceRecord(record.header, ()))


def test_seed_0_repeats_slow_moments_when_they_came_and_others_draw_where_to_begin() -> None:
    pace = Pace((1.0, 3.0, 2.0), 10.0)
    assert [pace.from_seed(0)(at_us) for at_us in (0, 9, 10, 25, 30)] == [1.0, 1.0, 3.0, 2.0, 1.0]
    begins = {pace.from_seed(seed)(0) for seed in range(1, 30)}
    assert begins == {1.0, 2.0, 3.0}


@pytest.mark.parametrize("shorter", [0.0, 1e-9])
def test_tasks_that_take_no_time_have_costs(shorter: float) -> None:
    record = served(requests=40)
    requests = []
    for request in record.requests:
        tasks = [
            replace(task, end_us=task.start_us + shorter * (task.end_us - task.start_us))
            for task in request.tasks
        ]
        requests.append(replace(request, tasks=tuple(tasks)))
    costs = costs_of_record(ServiceRecord(record.header, tuple(requests)))
    assert all(row.median_us < 1e-3 for row in costs.tasks)


def test_busy_shares_are_those_of_brute_force() -> None:
    spans = placed_spans(served("rr", requests=60, spread=True))
    for span, share in zip(spans, busy_shares(spans, 2), strict=True):
        overlap_us = 0.0
        for other in spans:
            if other.processor != span.processor:
                both_us = min(other.end_us, span.end_us) - max(other.start_us, span.start_us)
                overlap_us += max(0.0, both_us)
        assert share == pytest.approx(overlap_us / (span.end_us - span.start_us), abs=1e-6)


def test_a_table_that_nothing_could_read_is_not_written(tmp_path: Path) -> None:
    record = served(requests=10)
    costs = costs_of_record(record)
    row = replace(costs.tasks[0], median_us=1e18)
    with pytest.raises(BadInput, match=r"cannot write .*median_us"):
        write_measured_costs(tmp_path / "costs.json", replace(costs, tasks=(row,)))
    assert not (tmp_path / "costs.json").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tasks: tasks[1:], "task tail, .* line 2, it needs head, which did not run"),
        (lambda tasks: [*tasks, tasks[0]], "a task of request 0 twice, .* line 2"),
        (
            lambda tasks: [{**tasks[0], "start_us": 0.0}, *tasks[1:]],
            "task head, .* line 2, it starts before its request arrived",
        ),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(
    tmp_path: Path, change: Callable[[list[dict[str, Any]]], Any], said: str
) -> None:
    record = served(requests=3)
    first = next(request for request in record.requests if request.application == "big")
    writer = RecordWriter(tmp_path / "r.jsonl", record.header)
    writer.add(replace(first, request=0))
    writer.close()
    header, line = (tmp_path / "r.jsonl").read_text().splitlines()
    row = json.loads(line)
    row["tasks"] = change(row["tasks"])
    (tmp_path / "r.jsonl").write_text(f"{header}\n{json.dumps(row)}\n")
    with pytest.raises(BrokenFile, match=said):
        read_record(tmp_path / "r.jsonl")


def test_a_record_with_a_long_pause_makes_a_short_table() -> None:
    record = served(requests=100, gap_us=7000.0)
    late = tuple(
        replace(
            request,
            arrived_us=request.arrived_us + 1e12,
            admitted_us=None if request.admitted_us is None else request.admitted_us + 1e12,
            ended_us=request.ended_us + 1e12,
            tasks=tuple(
                replace(task, start_us=task.start_us + 1e12, end_us=task.end_us + 1e12)
                for task in request.tasks
            ),
        )
        for request in record.requests
    )
    costs = costs_of_record(ServiceRecord(record.header, (*record.requests, *late)))
    assert 1 < len(costs.pace) < 100
