"""Moves inside a request.

Away from what is clearly slow, to where it ends clearly sooner, each task once.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.errors import BadInput
from nnstretch.schedule import (
    Disturbances,
    Interference,
    Outage,
    Request,
    RequestScheduler,
    StaticPlacement,
    VirtualExecutor,
)
from nnstretch.schedule.finish_times import TaskCosts
from nnstretch.schedule.rebalancing import (
    ProcessorForecast,
    Rebalancer,
    RemainingTasks,
    choose_moves,
)
from nnstretch.schedule.slowdown import AdaptationSettings, SlowdownEstimator
from nnstretch.soc import Processor
from nnstretch.task import Task

NAMES = ("cpu", "gpu", "dsp")
PHONE = tuple(Processor(name, name, depth) for name, depth in zip(NAMES, (1, 4, 2), strict=True))
FOREVER_US = 1e15
Times = dict[tuple[str, str], float]


def network(segments: list[list[str]], request: int = 0) -> tuple[Task, ...]:
    """Branches on these processors, which meet on the CPU, segment after segment."""
    tasks: list[Task] = []
    before: frozenset[str] = frozenset()
    for number, processors in enumerate(segments):
        names = [f"s{number}.{n}" for n in range(len(processors))]
        tasks += [
            Task(f"{name}#{request}", name, before, p, request)
            for name, p in zip(names, processors, strict=True)
        ]
        tasks.append(
            Task(
                f"s{number}.merge#{request}",
                f"s{number}.merge",
                frozenset(f"{name}#{request}" for name in names),
                "cpu",
                request,
            )
        )
        before = frozenset({tasks[-1].name})
    return tuple(tasks)


def rebalancer(times: Times, half_life_us: float = FOREVER_US, **slow: float) -> Rebalancer:
    """One that believes so; what it hears changes that quickly."""
    believed = SlowdownEstimator(evidence_us=1.0, half_life_us=half_life_us)
    for processor, factor in slow.items():
        believed.observe(processor, 1e12, 1e12 * factor, 0.0)
    return Rebalancer(TaskCosts(times), believed)


class Played:
    """Clients that ask again when they are answered, on the virtual clock."""

    def __init__(
        self,
        segments: list[list[str]],
        times: Times,
        disturbances: Disturbances,
        rebalancer: Rebalancer | None,
        requests: int = 1,
        clients: int = 1,
    ):
        self.answers: list[Request] = []
        self.ran: Counter[str] = Counter()
        self.where: dict[str, str] = {}
        clock = VirtualExecutor(
            PHONE, times, lambda task: self.ran.update([task.name]), disturbances
        )
        self.clock = clock
        service = RequestScheduler(
            PHONE, StaticPlacement(NAMES), clock, self.answered, times, rebalancer=rebalancer
        )
        service.heard = lambda event: (
            self.where.update({event.task.name: event.processor})
            if hasattr(event, "start_us")
            else None
        )
        for _ in range(clients):
            clock.set_timer(0.0, "ask")
        asked = 0
        while (what := service.step()) is not None:
            if what == "ask" and asked < requests:
                asked += 1
                service.submit(Request(asked - 1, network(segments, asked - 1)))

    def answered(self, answer: Request) -> None:
        self.answers.append(answer)
        self.clock.set_timer(self.clock.now_us, "ask")


teams = st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4), min_size=1, max_size=4)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[list[str]], Times]:
    """A network, and what each of its sub-graphs takes on each processor."""
    segments = draw(teams)
    times = {
        (task.subgraph, p): float(draw(st.integers(1, 1000)))
        for task in network(segments)
        for p in NAMES
    }
    return segments, times


factors = st.fixed_dictionaries(
    {name: st.sampled_from((1.0, 1.0, 1.25, 2.0, 5.0)) for name in NAMES}
)


def busy(slow: dict[str, float]) -> tuple[Interference, ...]:
    return tuple(
        Interference(p, 0.0, FOREVER_US, 1 / factor) for p, factor in slow.items() if factor > 1
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(cases(), factors)
def test_where_beliefs_are_true_moving_is_never_slower_than_staying(
    case: tuple[list[list[str]], Times], slow: dict[str, float]
) -> None:
    segments, times = case
    stays, moves = (
        Played(segments, times, Disturbances(busy(slow)), m).answers[0].latency_us
        for m in (None, rebalancer(times, **slow))
    )
    assert moves <= stays * (1 + 1e-9)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(cases(), st.data())
def test_each_task_runs_once_whatever_happens(
    case: tuple[list[list[str]], Times], data: st.DataObject
) -> None:
    segments, times = case
    at_us, lasts_us = st.floats(0, 4000), st.floats(1, 4000)
    spells = tuple(
        Interference(
            data.draw(st.sampled_from(NAMES)), at := data.draw(at_us), at + data.draw(lasts_us), 0.2
        )
        for _ in range(4)
    )
    fails = tuple(
        Outage(p, at := data.draw(at_us), at + data.draw(lasts_us))
        for p in data.draw(st.lists(st.sampled_from(NAMES), max_size=2))
    )
    disturbances, clients = Disturbances(spells, fails), data.draw(st.integers(1, 4))
    first, second = (
        Played(segments, times, disturbances, rebalancer(times, half_life_us=500.0), 6, clients)
        for _ in range(2)
    )
    assert sorted(answer.number for answer in first.answers) == list(range(6))
    done = {answer.number for answer in first.answers if answer.error is None}
    expected = {task.name for number in done for task in network(segments, number)}
    assert expected <= first.ran.keys()
    assert max(first.ran.values()) == 1
    assert [(a.number, a.ended_us) for a in first.answers] == [
        (a.number, a.ended_us) for a in second.answers
    ], "deterministic"


@settings(deadline=None)
@given(cases(), st.fixed_dictionaries({name: st.floats(0.8, 1.2) for name in NAMES}))
def test_noise_of_a_fifth_moves_nothing(
    case: tuple[list[list[str]], Times], slow: dict[str, float]
) -> None:
    segments, times = case
    assert (
        Played(segments, times, Disturbances(), rebalancer(times, **slow)).answers[0].replaced == 0
    )


TWO = [["gpu", "dsp"], ["gpu", "dsp"]]
EVEN: Times = {
    (task.subgraph, p): 20.0 if "merge" in task.name else 1000.0
    for task in network(TWO)
    for p in NAMES
}


def test_what_a_request_shows_counts_within_it() -> None:
    """The GPU became slow, nobody knew.

    The first segment shows it, and the second's branch runs on the idle CPU.
    """
    played = Played(TWO, EVEN, Disturbances(busy({"gpu": 2.0})), rebalancer(EVEN))
    assert played.answers[0].latency_us == 2000.0 + 20.0 + 1000.0 + 20.0
    assert played.where["s1.0#0"] == "cpu"
    assert played.answers[0].replaced == 1


def test_a_processor_that_was_left_is_tried_again_later_and_used_when_it_is_quiet() -> None:
    quiet_from_us = 40_000.0
    disturbances = Disturbances((Interference("gpu", 0.0, quiet_from_us, 0.5),))
    played = Played(TWO, EVEN, disturbances, rebalancer(EVEN, half_life_us=4000.0), requests=60)
    first_us = [a.latency_us for a in played.answers if 5000 < a.ended_us < quiet_from_us]
    assert sorted(first_us)[len(first_us) // 2] == 2040.0, "most find it left"
    assert max(first_us) > 2040.0, "one now and then tries"
    assert {
        where for task, where in played.where.items() if task.startswith(("s0.0#59", "s1.0#59"))
    } == {"gpu"}


def test_all_ready_tasks_of_a_slow_processor_find_room() -> None:
    times = {(task.subgraph, p): 100.0 for task in network([["gpu", "gpu", "dsp"]]) for p in NAMES}
    played = Played(
        [["gpu", "gpu", "dsp"]], times, Disturbances(busy({"gpu": 4.0})), rebalancer(times, gpu=4.0)
    )
    assert played.answers[0].latency_us == 300.0, "one on the CPU, one behind the DSP's own"
    assert {played.where[f"s0.{n}#0"] for n in range(3)} == {"cpu", "dsp"}


def test_where_nobody_predicted_it_nothing_goes() -> None:
    times = {
        key: us for key, us in EVEN.items() if key[1] == "cpu" or not key[0].startswith("s1.0")
    } | {("s1.0", "gpu"): 1000.0}
    del times["s1.0", "cpu"]
    played = Played(TWO, times, Disturbances(busy({"gpu": 2.0})), rebalancer(times, gpu=2.0))
    assert played.where["s1.0#0"] == "gpu"
    assert played.answers[0].error is None


def test_a_request_that_stays_is_not_moved_and_others_count_with_it() -> None:
    tasks = network([["gpu"]])
    forecast, costs = (
        ProcessorForecast(0.0, {"cpu": 1.0, "gpu": 9.0}, {}),
        TaskCosts({key: us for key, us in EVEN.items() if key[1] != "dsp"}),
    )
    moves, stays = (RemainingTasks(tasks, (tasks[0].name,), stays=stays) for stays in (False, True))
    assert choose_moves(moves, forecast, costs, AdaptationSettings()) == {tasks[0].name: "cpu"}
    assert choose_moves(stays, forecast, costs, AdaptationSettings()) == {}
    assert forecast.with_queued(stays, {}, costs).free_us == {"gpu": 9000.0}


def test_where_everything_is_slow_alike_nothing_moves() -> None:
    assert (
        Played(TWO, EVEN, Disturbances(), rebalancer(EVEN, cpu=3.0, gpu=3.0, dsp=3.0))
        .answers[0]
        .replaced
        == 0
    )


def test_a_task_that_is_late_says_so_before_it_ends() -> None:
    one = rebalancer(EVEN)
    one.on_dispatch(network(TWO)[0], "gpu", 100.0)
    assert one.forecast(NAMES, 600.0).slow == {"cpu": 1.0, "gpu": 1.0, "dsp": 1.0}
    assert one.forecast(NAMES, 600.0).free_us == {"gpu": 1100.0}
    late = one.forecast(NAMES, 3100.0)
    assert late.slow["gpu"] == 3.0
    assert late.free_us == {"gpu": 3100.0}
    one.on_end("s0.0#0", "gpu", 3500.0, 3600.0)
    assert one.forecast(NAMES, 3600.0).slow["gpu"] == pytest.approx(3.5, rel=0.01)


def test_long_tasks_count_more_than_short_ones_and_beliefs_fade() -> None:
    known = SlowdownEstimator(evidence_us=100.0, half_life_us=1000.0)
    known.observe("cpu", 10.0, 50.0, 0.0)
    assert known.factor("cpu", 0.0) == pytest.approx(1 + 4 / 11)
    known.observe("cpu", 900.0, 1800.0, 0.0)
    assert 1.9 < known.factor("cpu", 0.0) < 2.0
    known.observe("cpu", 0.0, 70.0, 0.0)
    assert known.factor("cpu", 1000.0) - 1 == pytest.approx((known.factor("cpu", 0.0) - 1) / 2)
    assert known.factor("gpu", 0.0) == 1.0


def test_nonsense_is_refused() -> None:
    for wrong in ({"slow": 0.9}, {"gain": 1.0}, {"evidence": 0.0}, {"half_life": 0.0}):
        with pytest.raises(BadInput, match="moves, needed are"):
            AdaptationSettings(**wrong)
