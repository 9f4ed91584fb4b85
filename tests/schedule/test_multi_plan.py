"""Requests over several plans: one answer each, and the plan that is fastest now."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bundles import branched_bundle, branched_latency_us, several_plans

from nnstretch.bundle.manifest import MAIN, Manifest, plans_by_name
from nnstretch.schedule import (
    Disturbances,
    Interference,
    Outage,
    Request,
    StaticPlacement,
    VirtualExecutor,
)
from nnstretch.schedule.finish_times import TaskCosts
from nnstretch.schedule.multi_plan import (
    MultiPlanScheduler,
    is_probe,
    plan_durations_us,
    plan_enqueue_us,
)
from nnstretch.schedule.plan_selection import PlanSelector, PlanVariant
from nnstretch.schedule.slowdown import AdaptationSettings, slowdown_estimator
from nnstretch.soc import Processor
from nnstretch.task import Task

PHONE = (Processor("cpu", "cpu", 2), Processor("dsp", "dsp", 2), Processor("gpu", "gpu", 1))
SEVERAL = plans_by_name(several_plans().manifest)


class Played:
    """Clients that ask again when they are answered, on the virtual clock."""

    def __init__(
        self,
        manifests: dict[str, Manifest],
        disturbances: Disturbances,
        requests: int,
        clients: int = 1,
        adaptive: bool = True,
        phone: tuple[Processor, ...] = PHONE,
        settings: AdaptationSettings = AdaptationSettings(),  # noqa: B008 (frozen)
    ) -> None:
        self.ends: list[tuple[Request, str]] = []
        self.ran: list[str] = []
        self.processors: set[str] = set()
        handovers_us = plan_enqueue_us(manifests, phone)
        self.clock = VirtualExecutor(
            phone, plan_durations_us(manifests, phone), self.work, disturbances, handovers_us
        )
        policy = StaticPlacement(tuple(p.name for p in phone))
        self.plans = MultiPlanScheduler(
            manifests,
            phone,
            policy,
            self.clock,
            self.answered,
            adaptive,
            settings,
            ended=lambda span: self.processors.add(span.processor),
        )
        self.asked, self.requests = 0, requests
        for _ in range(clients):
            self.clock.set_timer(0.0, "ask")
        while (what := self.plans.step()) is not None:
            if what == "ask" and self.asked < requests:
                self.asked += 1
                self.plans.submit(self.asked - 1)

    def work(self, task: Task) -> None:
        if not is_probe(task):
            self.ran.append(task.name)

    def answered(self, answer: Request, plan: str) -> None:
        self.ends.append((answer, plan))
        self.clock.set_timer(self.clock.now_us, "ask")

    @property
    def by(self) -> list[str]:
        return [plan for _, plan in sorted(self.ends, key=lambda end: end[0].number)]


def test_on_a_quiet_chip_every_request_takes_the_best_plan() -> None:
    played = Played(SEVERAL, Disturbances(), 20)
    assert set(played.by) == {MAIN}
    assert {answer.latency_us for answer, _ in played.ends} == {
        branched_latency_us(1, (1000.0, 1000.0))
    }
    assert len(played.plans) == 0


def test_it_moves_away_from_busy_processors_and_back() -> None:
    busy = Disturbances(
        busy=(Interference("dsp", 20_000, 60_000, 0.2), Interference("gpu", 60_000, 100_000, 0.2))
    )
    adaptive, fixed = (Played(SEVERAL, busy, 100, adaptive=how) for how in (True, False))
    ends_us = [max(answer.ended_us for answer, _ in one.ends) for one in (adaptive, fixed)]
    assert ends_us[0] < ends_us[1]
    at = {answer.arrived_us: plan for answer, plan in adaptive.ends}
    assert at[0.0] == MAIN
    assert {plan for us, plan in at.items() if 35_000 < us < 60_000} == {"gpu"}
    assert {plan for us, plan in at.items() if 75_000 < us < 100_000} == {MAIN}
    assert set(fixed.by) == {MAIN}


def test_a_processor_that_fails_and_returns_is_left_and_used_again() -> None:
    played = Played(SEVERAL, Disturbances(fails=(Outage("dsp", 10_000, 40_000),)), 80)
    assert all(answer.error is None for answer, _ in played.ends)
    assert played.by[0] == played.by[-1] == MAIN
    assert "gpu" in played.by
    late = [plan for answer, plan in played.ends if 12_000 < answer.arrived_us < 40_000]
    assert set(late) == {"gpu"}


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.data())
def test_each_request_ends_once_whatever_fails(data: st.DataObject) -> None:
    times = st.floats(0, 30_000)
    fails = tuple(
        Outage(
            p.name,
            at := data.draw(times),
            at + data.draw(st.floats(1, 1e4) | st.just(float("inf"))),
        )
        for p in PHONE
    )
    busy = tuple(
        Interference(p.name, at := data.draw(times), at + data.draw(st.floats(1, 1e4)), 0.3)
        for p in PHONE
    )
    played = Played(SEVERAL, Disturbances(busy, fails), 25, data.draw(st.integers(1, 5)))
    assert sorted(answer.number for answer, _ in played.ends) == list(range(25))
    assert set(played.by) <= set(SEVERAL)
    assert max(Counter(answer.number for answer, _ in played.ends).values()) == 1
    done = {answer.number for answer, _ in played.ends if answer.error is None}
    assert max(Counter(played.ran).values(), default=1) == 1, "no sub-graph is computed twice"
    assert {
        number: sum(name.endswith(f"#{number}") for name in played.ran) for number in done
    } == dict.fromkeys(done, 4), "and none is left out"


def test_handing_over_is_a_part_of_the_price() -> None:
    """40 us of the synchronisation hold the host before the DSP starts, and are not paid again
    where branches meet.
    """
    phone = tuple(replace(p, enqueue_us=40.0 * (p.name == "dsp")) for p in PHONE)
    for adaptive in (True, False):
        played = Played(SEVERAL, Disturbances(), 9, adaptive=adaptive, phone=phone)
        assert {answer.latency_us for answer, _ in played.ends} == {
            branched_latency_us(1, (1000.0, 1000.0))
        }
    assert plan_enqueue_us(SEVERAL, phone)[("main", "s1_dsp"), "dsp"] == 40.0
    assert (
        plan_durations_us(SEVERAL, phone)[("main", "s1_merge"), "cpu"]
        == plan_durations_us(SEVERAL)[("main", "s1_merge"), "cpu"] - 40.0
    )


def test_what_is_tried_is_handed_over_behind_the_request() -> None:
    """The GPU is idle, and enqueueing takes the host 40 us.

    Before the CPU's branch it would delay that.
    """
    phone = tuple(replace(p, enqueue_us=40.0 * (p.name == "gpu")) for p in PHONE)
    played = Played(SEVERAL, Disturbances(), 12, phone=phone)
    assert {answer.latency_us for answer, _ in played.ends} == {
        branched_latency_us(1, (1000.0, 1000.0))
    }
    assert "gpu" in played.processors, "it was tried all the same"


def test_a_branch_leaves_a_processor_that_became_slow_within_its_request() -> None:
    """Two segments for CPU and DSP: the first shows what the DSP is worth, the second's branch goes
    to the idle GPU.
    """
    manifests, busy = (
        plans_by_name(several_plans(2).manifest),
        Disturbances(busy=(Interference("dsp", 0.0, 1e9, 0.5),)),
    )
    moves, stays = (
        Played(manifests, busy, 1, settings=AdaptationSettings(moves=moves))
        for moves in (True, False)
    )
    assert [answer.latency_us for answer, _ in stays.ends] == [300.0 + 2 * (2000.0 + 100.0)]
    assert [answer.latency_us for answer, _ in moves.ends] == [
        300.0 + 2000.0 + 100.0 + 1000.0 + 100.0
    ]
    assert [answer.replaced for answer, _ in moves.ends] == [1]


def test_a_single_plan_is_served_as_it_is() -> None:
    played = Played({MAIN: branched_bundle().manifest}, Disturbances(), 3, adaptive=False)
    assert [answer.latency_us for answer, _ in played.ends] == [branched_latency_us(1)] * 3
    assert len(played.ran) == 12


def test_one_that_comes_back_is_believed_to_be_as_fast_as_predicted() -> None:
    task = Task("a", "a", processor="dsp")
    slowdowns = slowdown_estimator(AdaptationSettings(), 5.0)
    selector = PlanSelector(
        (
            PlanVariant("a", (task,), TaskCosts({("a", "dsp"): 5.0})),
            PlanVariant("b", (replace(task, processor="gpu"),), TaskCosts({("a", "gpu"): 6.0})),
        ),
        slowdowns,
    )
    assert selector.choose(0.0, {"dsp"}).name == "b"
    slowdowns.observe("dsp", 5.0, 1.0, 50.0)
    assert selector.choose(50.0, {"dsp"}).name == "b", (
        "what ends late on a lost processor says nothing"
    )
    selector.choose(60.0)
    assert slowdowns.factor("dsp", 60.0) == 1.0
