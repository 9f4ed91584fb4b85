"""Choosing among plans.

By what processors really take, with hysteresis, and idle ones tried now and then.
"""

from __future__ import annotations

import pytest

from nnstretch.errors import BadInput
from nnstretch.schedule.finish_times import TaskCosts
from nnstretch.schedule.plan_selection import PlanSelector, PlanVariant
from nnstretch.schedule.slowdown import AdaptationSettings, slowdown_estimator
from nnstretch.task import Task

INF = float("inf")


def variant(name: str, **us: float) -> PlanVariant:
    """One task on each processor, all at once."""
    return PlanVariant(
        name,
        tuple(Task(f"{name}.{p}", f"{name}.{p}", processor=p) for p in us),
        TaskCosts({(f"{name}.{p}", p): t for p, t in us.items()}),
    )


FAST, SPARE, SLOW = (
    variant("fast", cpu=10.0, gpu=10.0),
    variant("spare", cpu=12.0, dsp=11.0),
    variant("slow", gpu=15.0, dsp=15.0),
)
PLANS = (SPARE, FAST, SLOW)


class Clients:
    """Requests one after another, on a chip whose processors are as slow as a test says."""

    def __init__(
        self,
        plans: tuple[PlanVariant, ...] = PLANS,
        settings: AdaptationSettings = AdaptationSettings(),  # noqa: B008 (frozen)
    ) -> None:
        self.slowdowns = slowdown_estimator(settings, 10.0)
        self.selector = PlanSelector(plans, self.slowdowns, settings)
        self.plans = plans
        self.now_us = 0.0
        self.probed: set[str | None] = set()

    def served(self, count: int, **factor: float) -> list[str]:
        """Plans of so many requests."""
        names = []
        for _ in range(count):
            names.append(self.selector.choose(self.now_us).name)
            probes = self.selector.probes()
            self.probed |= {task.processor for task in probes}
            self.now_us += 10.0
            for task in (*self.selector.current.tasks, *probes):
                self.observe(task, factor.get(task.processor or "", 1.0))
        return names

    def observe(self, task: Task, factor: float) -> None:
        """What a task takes on its processor."""
        processor = task.processor or ""
        times_us = [plan.costs.quiet_us.get((task.work, processor), 0.0) for plan in self.plans]
        self.slowdowns.observe(processor, max(times_us), max(times_us) * factor, self.now_us)

    def slowdown(self, processor: str) -> float:
        return self.slowdowns.factor(processor, self.now_us)


def test_it_starts_with_the_fastest_and_stays_while_nothing_is_amiss() -> None:
    clients = Clients()
    assert set(clients.served(20)) == {"fast"}
    assert [clients.slowdown(p) for p in ("cpu", "gpu", "dsp")] == [1.0, 1.0, 1.0]
    assert clients.probed == {"dsp"}, "the idle DSP was tried"


def test_it_leaves_a_busy_processor_and_comes_back_when_it_is_quiet() -> None:
    clients = Clients((SPARE, FAST, SLOW), AdaptationSettings(patience=2, gain=0.05))
    clients.served(3)
    busy = clients.served(12, gpu=2.0)
    assert busy[-1] == "spare"
    assert busy.index("spare") <= 4, "within a few requests"
    assert clients.served(12, cpu=3.0)[-1] == "slow"
    assert clients.served(30)[-1] == "fast", (
        "that the GPU and the CPU are quiet again is found by trying them"
    )


def test_one_try_of_a_processor_that_was_idle_for_some_requests_is_believed() -> None:
    clients = Clients((SPARE, FAST), AdaptationSettings(probe_every=4))
    clients.served(8, gpu=2.0)
    assert clients.selector.current.name == "spare"
    assert clients.slowdown("gpu") > 1.9
    quiet = clients.served(8)
    assert 1.0 < clients.slowdown("gpu") < 1.1
    assert quiet[-1] == "fast", "after two tries at the most"


def test_a_little_noise_moves_nothing() -> None:
    clients = Clients()
    names = [name for n in range(30) for name in clients.served(1, gpu=1.0 + 0.1 * (n % 2))]
    assert set(names) == {"fast"}


def test_a_processor_that_is_gone_is_left_at_once() -> None:
    selector = Clients(settings=AdaptationSettings(patience=10)).selector
    assert selector.choose(0.0, {"gpu"}).name == "spare"
    assert FAST.latency_us({"gpu": INF}) == INF
    assert variant("none", cpu=0.0).latency_us({"cpu": INF}) == 0.0, (
        "what takes no time is never late"
    )


def test_work_of_a_lost_processor_counts_where_it_would_go() -> None:
    times = {("a", "cpu"): 10.0, ("b", "dsp"): 10.0, ("b", "cpu"): 4.0, ("b", "gpu"): 9.0}
    able = PlanVariant(
        "able",
        (Task("a", "a", processor="cpu"), Task("b", "b", processor="dsp")),
        TaskCosts(times),
    )
    assert able.latency_us({}) == 10.0
    assert able.latency_us({"dsp": INF}) == 14.0, (
        "one after the other on the CPU, the fastest of those left"
    )
    assert able.latency_us({"dsp": INF, "cpu": 2.0}) == 28.0
    assert able.latency_us({"dsp": INF, "cpu": INF}) == INF, "nobody else was ever timed at `a`"
    selector = Clients((able, variant("slow", cpu=30.0))).selector
    assert selector.choose(0.0, {"dsp"}).name == "able", "re-placed, it is still the fastest"


def test_nonsense_is_refused() -> None:
    with pytest.raises(BadInput, match="no plans"):
        Clients(())
    for wrong in ({"patience": 0}, {"probe_every": 0}, {"gain": -0.1}):
        with pytest.raises(BadInput, match="needed are slow of at least 1"):
            AdaptationSettings(**wrong)
