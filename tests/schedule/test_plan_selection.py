"""Choosing among plans.

By what processors really take, with hysteresis, and idle ones tried now and then.
"""

from __future__ import annotations

import pytest

from nnstretch.errors import BadInput
from nnstretch.schedule.plan_selection import PlanSelector, PlanVariant, SelectionSettings
from nnstretch.task import Task
from nnstretch.trace import Span

INF = float("inf")


def variant(name: str, **us: float) -> PlanVariant:
    """One task on each processor, all at once."""
    return PlanVariant(
        name,
        tuple(Task(f"{name}.{p}", f"{name}.{p}", processor=p) for p in us),
        {(f"{name}.{p}", p): t for p, t in us.items()},
    )


FAST, SPARE, SLOW = (
    variant("fast", cpu=10.0, gpu=10.0),
    variant("spare", cpu=12.0, dsp=11.0),
    variant("slow", gpu=15.0, dsp=15.0),
)
PLANS = (SPARE, FAST, SLOW)


def heard(chooser: PlanSelector, factor: dict[str, float]) -> None:
    """One request of the plan in use, and what is tried beside it."""
    tasks = (*chooser.current.tasks, *chooser.probes())
    for task in tasks:
        work = next(
            v.durations_us[task.work, task.processor or ""]
            for v in PLANS
            if (task.work, task.processor) in v.durations_us
        )
        chooser.observe(
            Span(0.0, work * factor.get(task.processor or "", 1.0), task, task.processor or "")
        )


def served(chooser: PlanSelector, count: int, **factor: float) -> list[str]:
    names = []
    for _ in range(count):
        names.append(chooser.choose().name)
        heard(chooser, factor)
    return names


def test_it_starts_with_the_fastest_and_stays_while_nothing_is_amiss() -> None:
    chooser = PlanSelector(PLANS)
    assert set(served(chooser, 20)) == {"fast"}
    assert chooser.slowdown == {"cpu": 1.0, "gpu": 1.0, "dsp": 1.0}, "the idle DSP was tried"


def test_it_leaves_a_busy_processor_and_comes_back_when_it_is_quiet() -> None:
    chooser = PlanSelector((SPARE, FAST, SLOW), SelectionSettings(patience=2, gain=0.05))
    served(chooser, 3)
    busy = served(chooser, 12, gpu=2.0)
    assert busy[-1] == "spare"
    assert busy.index("spare") <= 4, "within a few requests"
    assert served(chooser, 12, cpu=3.0)[-1] == "slow"
    assert served(chooser, 30)[-1] == "fast", (
        "that the GPU and the CPU are quiet again is found by trying them"
    )


def test_one_try_of_a_processor_that_was_idle_for_some_requests_is_believed() -> None:
    chooser = PlanSelector((SPARE, FAST), SelectionSettings(memory=0.5, probe_every=4))
    served(chooser, 8, gpu=2.0)
    assert chooser.current.name == "spare"
    assert chooser.slowdown["gpu"] > 1.9
    quiet = served(chooser, 8)
    assert 1.0 < chooser.slowdown["gpu"] < 1.1
    assert quiet[-1] == "fast", "after two tries at the most"


def test_a_little_noise_moves_nothing() -> None:
    chooser = PlanSelector(PLANS)
    names = [name for n in range(30) for name in served(chooser, 1, gpu=1.0 + 0.1 * (n % 2))]
    assert set(names) == {"fast"}


def test_a_processor_that_is_gone_is_left_at_once() -> None:
    chooser = PlanSelector(PLANS, SelectionSettings(patience=10))
    chooser.mark_failed("gpu")
    assert chooser.choose().name == "spare"
    assert FAST.latency_us({"gpu": INF}) == INF
    assert variant("none", cpu=0.0).latency_us({"cpu": INF}) == 0.0, (
        "what takes no time is never late"
    )


def test_work_of_a_lost_processor_counts_where_it_would_go() -> None:
    times = {("a", "cpu"): 10.0, ("b", "dsp"): 10.0, ("b", "cpu"): 4.0, ("b", "gpu"): 9.0}
    able = PlanVariant(
        "able", (Task("a", "a", processor="cpu"), Task("b", "b", processor="dsp")), times
    )
    assert able.latency_us({}) == 10.0
    assert able.latency_us({"dsp": INF}) == 14.0, (
        "one after the other on the CPU, the fastest of those left"
    )
    assert able.latency_us({"dsp": INF, "cpu": 2.0}) == 28.0
    assert able.latency_us({"dsp": INF, "cpu": INF}) == INF, "nobody else was ever timed at `a`"
    chooser = PlanSelector((able, variant("slow", cpu=30.0)))
    chooser.mark_failed("dsp")
    assert chooser.choose().name == "able", "re-placed, it is still the fastest"


def test_nonsense_is_refused() -> None:
    with pytest.raises(BadInput, match="no plans"):
        PlanSelector(())
    with pytest.raises(BadInput, match="memory"):
        SelectionSettings(memory=0.0)
