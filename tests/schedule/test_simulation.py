"""What holds for any simulated workload, whatever its policy, arrivals and durations."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated_queue import SERVICE_US, queue

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
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.schedule.simulation.simulate import Simulation
from nnstretch.schedule.task_graphs.schedule_faults import schedule_faults
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.task_graph import TaskGraph
from nnstretch.trace import Span, Trace


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


@pytest.mark.parametrize("per_service", [1, 2])
def test_what_ends_when_another_arrives_makes_room_for_it(per_service: int) -> None:
    instances = 40 * per_service
    times_us = tuple(SERVICE_US / per_service * n for n in range(instances))
    for arrivals in (FixedArrivals(SERVICE_US / per_service), ListedArrivals(times_us)):
        setting = queue(arrivals, instances)
        application = replace(setting.applications[0], queue_limit=1)
        result = Simulation(replace(setting, applications=(application,))).run()
        run = result.runs[0]
        assert (run.latencies.count, run.refused) == (40, instances - 40)
        assert result.open_over_time.most == 1
        assert result.busy_us == {"cpu0": pytest.approx(result.last_end_us)}


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


def half_loaded(instances: int) -> SimulationSettings:
    return queue(ExponentialArrivals(2 * SERVICE_US), instances, durations="exponential")


def overloaded(instances: int) -> SimulationSettings:
    """Three of four instances are given up."""
    gaps, late_us = ExponentialArrivals(SERVICE_US / 4), 5 * SERVICE_US
    setting = queue(gaps, instances, durations="exponential", policy="least_slack_drop")
    late = replace(setting.applications[0], deadline_us=late_us)
    return replace(setting, applications=(late,))


@pytest.mark.slow
@pytest.mark.parametrize("setting", [half_loaded, overloaded])
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
