"""Simulated queues against what queueing theory says, and what holds for any workload."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from math import factorial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.schedule.policies.table import POLICIES
from nnstretch.schedule.simulation.application import (
    Application,
    ExponentialArrivals,
    FixedArrivals,
    ListedArrivals,
    own_tasks,
)
from nnstretch.schedule.simulation.durations import Crowd, MeasuredTimes, Pace
from nnstretch.schedule.simulation.latencies import EXACT, Latencies
from nnstretch.schedule.simulation.replications import measured, replicate
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.schedule.simulation.simulate import Simulation
from nnstretch.schedule.task_graphs.schedule_faults import schedule_faults
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.task_graph import TaskGraph
from nnstretch.trace import Span, Trace

SERVICE_US = 1000.0


def queue(
    arrivals: FixedArrivals | ExponentialArrivals | ListedArrivals,
    instances: int,
    servers: int = 1,
    durations: str = "exact",
    policy: str = "olb",
    queueing: bool = False,
) -> SimulationSettings:
    """One application of one task on equal processors."""
    processors = tuple(Processor(f"cpu{n}", "cpu", 1) for n in range(servers))
    application = Application("q", own_tasks("q", (Task("t", "t"),)), arrivals, instances)
    times_us = {(("q", "t"), processor.name): SERVICE_US for processor in processors}
    return SimulationSettings(
        (application,), processors, times_us, policy, queueing=queueing, durations=durations
    )


def latencies_of(setting: SimulationSettings) -> list[float]:
    latencies: list[float] = []
    simulation = Simulation(
        setting, on_outcome=lambda run, number, outcome, first: latencies.append(outcome.latency_us)
    )
    simulation.run()
    return latencies


@pytest.mark.parametrize("queueing", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_d_d_1_to_the_microsecond(policy: str, queueing: bool) -> None:
    slow = queue(FixedArrivals(1500.0), 100, policy=policy, queueing=queueing)
    assert latencies_of(slow) == [SERVICE_US] * 100
    fast = queue(FixedArrivals(700.0), 100, policy=policy, queueing=queueing)
    if policy != "random":
        assert latencies_of(fast) == [SERVICE_US + k * 300.0 for k in range(100)]


def erlang_c(servers: int, offered: float) -> float:
    """Probability that an arrival waits."""
    last = offered**servers / factorial(servers) / (1 - offered / servers)
    return last / (sum(offered**k / factorial(k) for k in range(servers)) + last)


def expected_us(kind: str, load: float) -> float:
    if kind == "M/M/1":
        return SERVICE_US / (1 - load)
    if kind == "M/D/1":
        return SERVICE_US + load * SERVICE_US / (2 * (1 - load))
    return SERVICE_US + erlang_c(2, 2 * load) * SERVICE_US / (2 * (1 - load))


def queue_of(kind: str, load: float, instances: int) -> SimulationSettings:
    servers = 2 if kind == "M/M/2" else 1
    gaps = ExponentialArrivals(SERVICE_US / load / servers)
    durations = "exact" if kind == "M/D/1" else "exponential"
    return queue(gaps, instances, servers, durations)


def check_queue(kind: str, load: float, instances: int, replications: int) -> None:
    results = replicate(queue_of(kind, load, instances), replications)
    interval = measured([result.runs[0].latencies.mean_us for result in results])
    assert interval.half_width is not None
    assert interval.half_width <= (0.07 if load > 0.8 else 0.05) * interval.mean
    assert abs(interval.mean - expected_us(kind, load)) <= interval.half_width
    for result in results:
        latencies = result.runs[0].latencies
        rate = latencies.count / result.last_event_us
        assert result.mean_open == pytest.approx(rate * latencies.mean_us, rel=1e-6), "Little"
        assert sum(result.busy_us.values()) <= result.makespan_us * len(result.busy_us) + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["M/M/1", "M/D/1", "M/M/2"])
def test_half_loaded_queues_wait_as_long_as_theory_says(kind: str) -> None:
    check_queue(kind, 0.5, 8_000, 8)


@pytest.mark.slow
def test_servers_without_a_queue_lose_what_erlang_says() -> None:
    servers, offered = 3, 2.4
    setting = queue(ExponentialArrivals(SERVICE_US / offered), 3_000, servers, "exponential")
    limited = replace(setting.applications[0], queue_limit=servers)
    runs = [r.runs[0] for r in replicate(replace(setting, applications=(limited,)), 6)]
    interval = measured([run.refused / run.arrived for run in runs])
    terms = [offered**k / factorial(k) for k in range(servers + 1)]
    assert interval.half_width is not None
    assert abs(interval.mean - terms[-1] / sum(terms)) <= interval.half_width <= 0.02


@pytest.mark.slow
def test_spread_service_waits_as_long_as_pollaczek_and_khinchine_say() -> None:
    load, spread = 0.5, 0.5
    setting = queue(ExponentialArrivals(SERVICE_US / load), 6_000, durations="spread")
    results = replicate(replace(setting, spread=spread), 6)
    interval = measured([result.runs[0].latencies.mean_us for result in results])
    waits_us = load * SERVICE_US * (1 + spread**2) / 2 / (1 - load)
    assert interval.half_width is not None
    assert abs(interval.mean - SERVICE_US - waits_us) <= interval.half_width
    assert interval.half_width <= 0.05 * interval.mean


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "load", "instances"),
    [
        ("M/M/1", 0.8, 20_000),
        ("M/D/1", 0.8, 10_000),
        ("M/M/2", 0.8, 20_000),
        ("M/M/1", 0.9, 25_000),
        ("M/D/1", 0.9, 15_000),
        ("M/M/2", 0.9, 25_000),
    ],
)
def test_loaded_queues_wait_as_long_as_theory_says(kind: str, load: float, instances: int) -> None:
    check_queue(kind, load, instances, 10)


@st.composite
def workloads(draw: st.DrawFn) -> SimulationSettings:
    """Several applications of small graphs, some of whose tasks some processors cannot run."""
    processors = tuple(
        Processor(f"p{n}", draw(st.sampled_from(("cpu", "gpu"))), draw(st.integers(1, 3)))
        for n in range(draw(st.integers(1, 3)))
    )
    times_us: dict[tuple[tuple[str, str], str], float] = {}
    transfers_us: dict[tuple[tuple[str, str], tuple[str, str]], float] = {}
    applications = []
    for number in range(draw(st.integers(1, 3))):
        name, tasks = f"a{number}", []
        for index in range(draw(st.integers(1, 4))):
            needs = draw(st.frozensets(st.sampled_from([t.name for t in tasks]))) if tasks else ()
            tasks.append(Task(f"t{index}", f"t{index}", frozenset(needs)))
            names = [p.name for p in processors]
            for where in draw(st.lists(st.sampled_from(names), min_size=1, unique=True)):
                times_us[(name, f"t{index}"), where] = float(draw(st.integers(1, 50)))
            for need in sorted(needs):
                transfers_us[(name, need), (name, f"t{index}")] = float(draw(st.integers(0, 20)))
        gap_us = float(draw(st.integers(5, 100)))
        kind = draw(st.sampled_from((FixedArrivals, ExponentialArrivals)))
        applications.append(
            Application(
                name,
                own_tasks(name, tuple(tasks)),
                kind(gap_us),
                draw(st.integers(1, 12)),
                deadline_us=draw(st.sampled_from((30.0, 200.0))),
                priority=draw(st.integers(0, 1)),
                queue_limit=draw(st.sampled_from((None, 2))),
            )
        )
    copies = transfers_us if draw(st.booleans()) else {}
    return SimulationSettings(
        tuple(applications),
        processors,
        times_us,
        draw(st.sampled_from(sorted(POLICIES))),
        copies,
        draw(st.booleans()),
        durations=draw(st.sampled_from(("exact", "spread", "exponential"))),
        spread=0.3,
        wrong_costs=draw(st.sampled_from((1.0, 3.0))),
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(workloads())
def test_any_workload_becomes_a_schedule_and_the_same_one_again(
    setting: SimulationSettings,
) -> None:
    spans: list[list[Span]] = [[], []]
    arrived_us: dict[int, float] = {}
    for number in range(2):
        simulation = Simulation(
            setting,
            spans[number].append,
            lambda run, n, outcome, first: arrived_us.update({n: outcome.arrived_us}),
        )
        result = simulation.run()
    assert spans[0] == spans[1]
    for run in result.runs:
        assert run.arrived == run.refused + run.dropped + run.latencies.count
        assert run.open == 0
    dropped = any(run.dropped for run in result.runs)
    tasks = tuple(span.task for span in spans[0])
    if not dropped:
        graph = TaskGraph("", tasks, setting.processors, setting.times_us, setting.transfers_us)
        arrivals = {task.name: arrived_us[task.request] for task in tasks}
        assert schedule_faults(Trace(tuple(spans[0])), graph, arrivals) == ()
        total_us = sum(run.latencies.total_us for run in result.runs)
        assert result.open_over_time.area_us == pytest.approx(total_us), "Little"


def test_equal_seeds_give_equal_arrivals_whatever_the_policy() -> None:
    arrivals = []
    for policy in ("rr", "etf"):
        setting = replace(queue(ExponentialArrivals(500.0), 50, 2), policy=policy, seed=7)
        arrivals.append(list(setting.applications[0].times_us(setting.seed)))
    assert arrivals[0] == arrivals[1]
    assert arrivals[0] != list(setting.applications[0].times_us(8))


def test_tasks_take_the_longer_the_more_instances_are_under_way() -> None:
    chain = (Task("head", "head"), Task("tail", "tail", frozenset({"head"})))
    application = Application("q", own_tasks("q", chain), ListedArrivals((0.0,) * 3), 3)
    keys = {task.work: (task.work, "cpu0") for task in application.tasks}
    times_us = dict.fromkeys(keys.values(), 10.0)
    samples_us = {key: [time_us] for key, time_us in times_us.items()}
    switched, crowded = dict.fromkeys(times_us, 1.5), dict.fromkeys(times_us, 2.5)
    setting = SimulationSettings(
        *((application,), (Processor("cpu0", "cpu", 1),), times_us, "rr"),
        **{"durations": "measured", "queueing": False},
    )
    for crowd, expected_us in (
        (Crowd(1, 3, crowded), [10, 10, 10, 25, 20, 15]),
        (Crowd(5, 9, crowded), [10, 10, 10, 15, 15, 15]),
        (Crowd(factors=crowded), [10, 10, 10, 15, 15, 15]),
    ):
        spans: list[Span] = []
        measured_times = MeasuredTimes(samples_us, switched=switched, crowd=crowd)
        Simulation(replace(setting, measured=measured_times), on_span=spans.append).run()
        assert [span.end_us - span.start_us for span in spans] == expected_us


def test_a_host_repeats_its_measured_pace_from_a_drawn_window_on() -> None:
    factors = Pace((1.0, 2.0, 4.0), window_us=10.0)
    starts = set()
    for seed in range(20):
        paced = [factors.from_seed(seed)(now_us) for now_us in (0.0, 9.9, 10.0, 25.0, 30.0)]
        first = (1.0, 2.0, 4.0).index(paced[0])
        assert paced == [(1.0, 2.0, 4.0)[(first + step) % 3] for step in (0, 0, 1, 2, 3)]
        starts.add(first)
    assert starts == {0, 1, 2}
    assert Pace().from_seed(0)(1e9) == 1.0


def test_tasks_of_a_ready_queue_that_compute_the_same_stay_apart() -> None:
    tasks = (
        Task("fft0", "fft"),
        Task("fft1", "fft"),
        Task("join", "join", frozenset({"fft0", "fft1"})),
    )
    application = Application("radar", tasks, FixedArrivals(10.0), 1)
    instance = application.instantiate()(3, 100.0)
    assert [task.subgraph for task in instance] == ["fft", "fft", "join"]
    assert len({task.name for task in instance}) == 3
    assert instance[2].needs == {instance[0].name, instance[1].name}


def test_a_queue_limit_refuses_and_deadlines_are_counted() -> None:
    setting = queue(ListedArrivals((0.0, 0.0, 0.0, 5000.0)), 4)
    application = replace(setting.applications[0], queue_limit=2, deadline_us=1500.0)
    result = Simulation(replace(setting, applications=(application,))).run()
    run = result.runs[0]
    assert (run.arrived, run.refused, run.latencies.count, run.missed) == (4, 1, 3, 1)
    assert result.open_over_time.most == 2


@pytest.mark.parametrize("policy", ["eft", "least_slack_drop"])
@pytest.mark.parametrize("recorded", [False, True])
def test_what_ends_at_its_deadline_is_not_late(policy: str, recorded: bool) -> None:
    cost_us, instances = 3.3, 2000
    setting = queue(FixedArrivals(700.0), instances, policy=policy, queueing=True)
    dues_us = (cost_us,) * instances if recorded else ()
    exact = replace(setting.applications[0], deadline_us=cost_us, deadlines_us=dues_us)
    times_us = dict.fromkeys(setting.times_us, cost_us)
    run = Simulation(replace(setting, applications=(exact,), times_us=times_us)).run().runs[0]
    assert (run.latencies.count, run.missed) == (instances, 0)
    late = replace(exact, deadline_us=cost_us - 0.01, deadlines_us=())
    run = Simulation(replace(setting, applications=(late,), times_us=times_us)).run().runs[0]
    assert run.missed == instances


def test_a_policy_that_drops_ends_instances_without_an_answer() -> None:
    setting = queue(ListedArrivals((0.0, 0.0, 0.0)), 3, policy="least_slack_drop", queueing=True)
    application = replace(setting.applications[0], deadline_us=2500.0)
    run = Simulation(replace(setting, applications=(application,))).run().runs[0]
    assert (run.latencies.count, run.dropped, run.missed) == (2, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2, 3])
def test_wrong_costs_are_corrected_by_what_tasks_take(seed: int) -> None:
    """Two kinds, each fast on one processor; every cost off by a factor up to 3 either way."""
    processors = (Processor("cpu", "cpu", 1), Processor("gpu", "gpu", 1))
    apps, times_us = [], {}
    for name, costs in {"a": (100.0, 300.0), "b": (300.0, 100.0)}.items():
        for processor, cost_us in zip(processors, costs, strict=True):
            times_us[(name, "t"), processor.name] = cost_us
        tasks = own_tasks(name, (Task("t", "t"),))
        apps.append(Application(name, tasks, ExponentialArrivals(150.0), 2000))
    true = SimulationSettings(tuple(apps), processors, times_us, "eft")
    means = {}
    for label, correction, wrong in (("true", True, 1.0), ("off", False, 3.0), ("on", True, 3.0)):
        setting = replace(true, correction=correction, wrong_costs=wrong, seed=seed)
        runs = Simulation(setting).run().runs
        means[label] = sum(run.latencies.mean_us for run in runs) / 2
    assert means["on"] <= 1.1 * means["true"]
    assert means["off"] > 1.4 * means["true"]


def test_quantiles_of_many_latencies_are_among_them() -> None:
    merged, many = Latencies(), Latencies()
    merged.add(999.6)
    for _ in range(EXACT + 1):
        many.add(999.5)
    assert set(many.summary_ms().values()) == {0.9995}
    merged.merge(many)
    assert 999.5 <= merged.quantile_us(0.0) <= merged.quantile_us(1.0) <= 999.6
    for latency_us in (1.0, 2000.0):
        many.add(latency_us)
    assert (many.quantile_us(0.0), many.quantile_us(0.5)) == pytest.approx((1.0, 999.5), rel=5.1e-4)


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(0.1, 1e9), min_size=1, max_size=300), st.floats(0.01, 1.0))
def test_quantiles_of_many_latencies_are_close(values: list[float], share: float) -> None:
    few, many = Latencies(), Latencies()
    for value in values:
        few.add(value)
    for number in range(EXACT + len(values)):
        many.add(values[number % len(values)])
    exact = sorted(values)[max(1, -int(-share * len(values) // 1)) - 1]
    assert few.quantile_us(share) == exact
    assert many.quantile_us(0.0) == pytest.approx(min(values), rel=5.1e-4)
    assert many.quantile_us(1.0) == pytest.approx(max(values), rel=5.1e-4)
    together = Latencies()
    together.merge(few)
    together.merge(many)
    assert together.count == few.count + many.count
    assert together.mean_us == pytest.approx((few.total_us + many.total_us) / together.count)


def overloaded(instances: int) -> SimulationSettings:
    """Three of four instances are given up."""
    gaps, late_us = ExponentialArrivals(SERVICE_US / 4), 5 * SERVICE_US
    setting = queue(gaps, instances, durations="exponential", policy="least_slack_drop")
    late = replace(setting.applications[0], deadline_us=late_us)
    return replace(setting, applications=(late,))


@pytest.mark.slow
@pytest.mark.parametrize("setting", [lambda n: queue_of("M/M/1", 0.5, n), overloaded])
def test_memory_does_not_grow_with_the_number_of_tasks(
    setting: Callable[[int], SimulationSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnstretch.schedule.simulation.latencies.EXACT", 4_000)
    peaks = []
    for instances in (30_000, 60_000):
        simulation = Simulation(setting(instances))
        tracemalloc.start()
        simulation.run()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.02 * peaks[0]
