"""Every policy under trouble, on both clocks: what ran is a schedule, and each request ends once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.protocols import Executor
from nnstretch.schedule import Disturbances, Interference, Outage, Request, RequestScheduler
from nnstretch.schedule.executors.threads import ThreadExecutor
from nnstretch.schedule.executors.virtual import VirtualExecutor
from nnstretch.schedule.loop.processor_queue import Queueing
from nnstretch.schedule.policies.table import POLICIES
from nnstretch.schedule.simulation.application import (
    Application,
    FixedArrivals,
    ListedArrivals,
    own_tasks,
)
from nnstretch.schedule.simulation.policy_setting import cost_rows, make_policy
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.schedule.simulation.simulate import Simulation
from nnstretch.schedule.task_graphs.schedule_faults import schedule_faults
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.task_graph import TaskGraph
from nnstretch.trace import Span, Trace

TIMES_US = st.floats(0, 600)


@dataclass(frozen=True, slots=True)
class Trouble:
    """A workload, and what happens to it."""

    settings: SimulationSettings
    arrivals_us: tuple[tuple[float, str], ...]
    """When a request arrives, and of which application; its number is its place."""
    cancels_us: tuple[tuple[float, int], ...]
    deadline_us: float


@st.composite
def troubles(draw: st.DrawFn) -> Trouble:
    kinds = draw(st.lists(st.sampled_from(("cpu", "gpu")), min_size=2, max_size=3))
    names = [f"p{number}" for number in range(len(kinds))]
    processors = tuple(
        Processor(*pair, draw(st.integers(1, 2))) for pair in zip(names, kinds, strict=True)
    )
    times_us, transfers_us, applications = {}, {}, []
    placed = draw(st.booleans())
    for app in ("a", "b"):
        tasks: list[Task] = []
        for number in range(draw(st.integers(1, 4))):
            needs = draw(st.frozensets(st.sampled_from(tasks), max_size=2)) if tasks else ()
            able = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
            place = able[0] if placed else None
            task = Task(f"t{number}", f"t{number}", frozenset(need.name for need in needs), place)
            tasks.append(task)
            for name in able:
                times_us[(app, task.name), name] = float(draw(st.integers(1, 80)))
            for need in task.needs:
                transfers_us[(app, need), (app, task.name)] = float(draw(st.integers(0, 30)))
        priority = draw(st.integers(0, 1))
        arrivals = ListedArrivals(())
        applications.append(
            Application(app, own_tasks(app, tuple(tasks)), arrivals, priority=priority)
        )
    fails, busy = [], []
    for name in names:
        if draw(st.booleans()):
            at_us = draw(TIMES_US)
            fails.append(Outage(name, at_us, at_us + draw(st.floats(1, 200) | st.just(inf))))
        if draw(st.booleans()):
            at_us = draw(TIMES_US)
            busy.append(Interference(name, at_us, at_us + draw(st.floats(1, 200))))
    count = draw(st.integers(1, 10))
    setting = SimulationSettings(
        tuple(applications),
        processors,
        times_us,
        "eft",
        transfers_us if draw(st.booleans()) else {},
        draw(st.booleans()),
        wrong_costs=draw(st.sampled_from((1.0, 3.0))),
        disturbances=Disturbances(tuple(busy), tuple(fails)),
    )
    cancelled = draw(st.sets(st.integers(0, count - 1)))
    return Trouble(
        setting,
        tuple((draw(TIMES_US), draw(st.sampled_from("ab"))) for _ in range(count)),
        tuple((draw(TIMES_US), number) for number in sorted(cancelled)),
        draw(st.sampled_from((inf, 150.0))),
    )


def served(trouble: Trouble, clock: Executor) -> tuple[list[Request], list[Span]]:
    """Play a workload; return how its requests ended, and what ran."""
    setting = trouble.settings
    ends: list[Request] = []
    spans: list[Span] = []
    costs = cost_rows(setting)
    scheduler = RequestScheduler(
        setting.processors,
        make_policy(setting, costs, clock, lambda number: scheduler.is_open(number)),
        clock,
        ends.append,
        setting.times_us,
        spans.append,
        costs=costs,
        queueing=Queueing.UNBOUNDED if setting.queueing else Queueing.IDLE,
        placed=any(task.processor for app in setting.applications for task in app.tasks),
    )
    tasks_of = {app.name: app.instantiate() for app in setting.applications}
    for number, (at_us, app) in enumerate(trouble.arrivals_us):
        clock.set_timer(at_us, (number, app))
    for at_us, number in trouble.cancels_us:
        clock.set_timer(at_us, number)
    while (tag := scheduler.step()) is not None:
        if isinstance(tag, tuple):
            number, app = tag
            deadline_us = clock.now_us + trouble.deadline_us
            scheduler.submit(Request(number, tasks_of[app](number, deadline_us), deadline_us))
        elif tag is not True and isinstance(tag, int):
            scheduler.cancel(tag)
    return ends, spans


def check(trouble: Trouble, ends: Sequence[Request], spans: Sequence[Span]) -> None:
    """Check that each request has one end, and that what ran is a schedule.

    While no processor is lost placed tasks run where they are placed.
    """
    assert sorted(end.number for end in ends) == list(range(len(trouble.arrivals_us)))
    arrived_us = {end.number: end.arrived_us for end in ends}
    tasks = tuple(span.task for span in spans)
    ran = {task.name for task in tasks}
    for end in ends:
        if end.error is None:
            assert {task.name for task in end.tasks} <= ran
    setting = trouble.settings
    if not setting.disturbances.fails:
        for span in spans:
            assert span.task.processor in (None, span.processor)
    if tasks:
        graph = TaskGraph("", tasks, setting.processors, setting.times_us, setting.transfers_us)
        arrivals_us = {task.name: arrived_us[task.request] for task in tasks}
        assert schedule_faults(Trace(tuple(spans)), graph, arrivals_us) == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=60)
@given(trouble=troubles())
def test_on_the_virtual_clock(name: str, trouble: Trouble) -> None:
    trouble = replace(trouble, settings=replace(trouble.settings, policy=name))
    setting = trouble.settings
    played = []
    for _ in range(2):
        clock = VirtualExecutor(
            setting.processors, setting.times_us, disturbances=setting.disturbances
        )
        played.append(served(trouble, clock))
    check(trouble, *played[0])
    assert played[0][1] == played[1][1], "equal seeds give equal traces"


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=8)
@given(trouble=troubles())
def test_on_threads(name: str, trouble: Trouble) -> None:
    trouble = replace(trouble, settings=replace(trouble.settings, policy=name))
    setting = trouble.settings
    with ThreadExecutor(
        setting.processors,
        lambda task: None,
        setting.times_us,
        dilation=3.0,
        disturbances=setting.disturbances,
    ) as clock:
        check(trouble, *served(trouble, clock))


@pytest.mark.parametrize("name", ["heft", "cpop", "peft"])
def test_the_plan_of_a_cancelled_job_holds_no_other_though_none_of_its_tasks_waited(
    name: str,
) -> None:
    chain = (Task("t0", "t0"), Task("t1", "t1", frozenset({"t0"})))
    apps = {"cancelled": chain, "long": chain[:1], "next": chain[:1]}
    applications = [
        Application(app, own_tasks(app, tasks), ListedArrivals(())) for app, tasks in apps.items()
    ]
    times_us = {
        (("cancelled", "t0"), "p0"): 100.0,
        (("cancelled", "t1"), "p0"): 100.0,
        (("long", "t0"), "p1"): 1000.0,
        (("next", "t0"), "p0"): 50.0,
    }
    processors = (Processor("p0", "cpu", 1), Processor("p1", "gpu", 1))
    setting = SimulationSettings(tuple(applications), processors, times_us, name)
    arrivals_us = ((0.0, "cancelled"), (0.0, "long"), (60.0, "next"))
    trouble = Trouble(setting, arrivals_us, ((50.0, 0),), inf)
    ends, spans = served(trouble, VirtualExecutor(processors, times_us))
    check(trouble, ends, spans)
    assert [span.start_us for span in spans if span.task.plan == "next"] == [100.0]


@pytest.mark.parametrize("name", POLICIES)
def test_requests_whose_placed_tasks_move_from_a_lost_processor_are_answered(name: str) -> None:
    placed = Task("t0", "t0", processor="p0"), Task("t1", "t1", processor="p1")
    merge = Task("t2", "t2", frozenset({"t0", "t1"}), "p1")
    apps = {"a": placed, "b": (*placed, merge)}
    applications = tuple(
        Application(app, own_tasks(app, tasks), ListedArrivals(())) for app, tasks in apps.items()
    )
    processors = (Processor("p0", "cpu", 1), Processor("p1", "gpu", 1))
    works = [task.work for app in applications for task in app.tasks]
    times_us = {(work, each.name): 100.0 for work, each in product(works, processors)}
    arrivals_us = tuple((at_us, app) for at_us, app in product((0.0, 10.0), apps))
    for fails_us, back_us in product((25.0, 125.0, 225.0, 325.0), (250.0, inf)):
        lost = Disturbances(fails=(Outage("p1", fails_us, max(fails_us + 1, back_us)),))
        setting = SimulationSettings(applications, processors, times_us, name, disturbances=lost)
        trouble = Trouble(setting, arrivals_us, (), inf)
        ends, spans = served(trouble, VirtualExecutor(processors, times_us, disturbances=lost))
        check(trouble, ends, spans)
        assert [end.error for end in ends] == [None] * len(arrivals_us)


def test_a_request_whose_processors_have_all_failed_ends_at_once_and_others_go_on() -> None:
    tasks = (Task("t0", "t0"), Task("t1", "t1", frozenset({"t0"})))
    times_us = {(("a", "t0"), "p0"): 10.0, (("a", "t0"), "p1"): 20.0, (("a", "t1"), "p1"): 10.0}
    times_us[("b", "t0"), "p0"] = 5.0
    applications = (
        Application("a", own_tasks("a", tasks), ListedArrivals(())),
        Application("b", own_tasks("b", tasks[:1]), ListedArrivals(())),
    )
    processors = (Processor("p0", "cpu", 1), Processor("p1", "gpu", 1))
    gone = Disturbances(fails=(Outage("p1", 3.0),))
    setting = SimulationSettings(applications, processors, times_us, "met", disturbances=gone)
    trouble = Trouble(setting, ((0.0, "a"), (0.0, "b"), (50.0, "a")), (), inf)
    clock = VirtualExecutor(processors, times_us, disturbances=gone)
    ends, spans = served(trouble, clock)
    check(trouble, ends, spans)
    errors = {end.number: str(end.error) for end in ends}
    assert errors[1] == "None"
    for number in (0, 2):
        words = f"request {number} cannot run, service, p1 has failed and t1 has no time on another"
        assert errors[number] == f"{words} processor"


def test_met_takes_the_next_type_while_its_favourite_has_failed() -> None:
    times_us = {(("a", "t0"), "p0"): 20.0, (("a", "t0"), "p1"): 10.0}
    app = Application("a", own_tasks("a", (Task("t0", "t0"),)), ListedArrivals(()))
    processors = (Processor("p0", "cpu", 1), Processor("p1", "gpu", 1))
    away = Disturbances(fails=(Outage("p1", 5.0, 95.0),))
    setting = SimulationSettings((app,), processors, times_us, "met", disturbances=away)
    trouble = Trouble(setting, ((0.0, "a"), (40.0, "a"), (100.0, "a"), (100.0, "a")), (), inf)
    _, spans = served(trouble, VirtualExecutor(processors, times_us, disturbances=away))
    ran = [(span.task.request, span.processor, span.start_us) for span in spans]
    assert ran == [(0, "p0", 5.0), (1, "p0", 40.0), (2, "p1", 100.0), (3, "p1", 110.0)]


@pytest.mark.parametrize("durations", ["spread", "exponential"])
def test_a_task_that_starts_again_elsewhere_takes_as_long_as_it_would_have(durations: str) -> None:
    application = Application("a", own_tasks("a", (Task("t", "t"),)), FixedArrivals(100.0), 3)
    processors = (Processor("p0", "cpu", 1), Processor("p1", "cpu", 1))
    times_us = {(("a", "t"), each.name): 10.0 for each in processors}
    setting = SimulationSettings(
        *((application,), processors, times_us, "mct"), durations=durations, spread=0.1
    )
    for name in ("p0", "p1"):
        lost = Disturbances(fails=(Outage(name, 0.5, 50.0), Outage(name, 200.5, 250.0)))
        took_us: list[list[float]] = []
        for each in (setting, replace(setting, disturbances=lost)):
            spans: list[Span] = []
            Simulation(each, spans.append).run()
            took_us.append([span.duration_us for span in spans])
        assert took_us[1] == pytest.approx(took_us[0])
