"""Every policy of the table: schedules of any graph, and each one's own rule and ties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.slow_half import half_slow

from nnstretch.errors import BadInput, UnknownName
from nnstretch.protocols import Choice, Policy, ProcessorState
from nnstretch.schedule.costs.cost_rows import CostRows
from nnstretch.schedule.event_loop import run_tasks
from nnstretch.schedule.executors.virtual import VirtualExecutor
from nnstretch.schedule.finish_times import TaskCosts
from nnstretch.schedule.loop.processor_queue import Queueing
from nnstretch.schedule.policies.priority_classes import PriorityClasses
from nnstretch.schedule.policies.table import POLICIES, PolicySetting, find_policy
from nnstretch.schedule.simulation.run_graph import run_graph
from nnstretch.schedule.task_graphs.schedule_faults import schedule_faults
from nnstretch.soc import Processor
from nnstretch.task import Task, TaskTimes
from nnstretch.task_graph import TaskGraph
from nnstretch.testing.policy_suite import MakePolicy, PlacingPolicySuite
from nnstretch.testing.strategies import platforms, task_graphs

CHIP = (
    Processor("cpu1", "cpu", 1),
    Processor("cpu2", "cpu", 1),
    Processor("fft1", "fft", 1),
    Processor("fft2", "fft", 1),
)
Rows = dict[str, tuple[float | None, ...]]


def times_of(rows: Rows, chip: Sequence[Processor] = CHIP) -> TaskTimes:
    times: dict[tuple[str, str], float] = {}
    for work, row in rows.items():
        for processor, us in zip(chip, row, strict=True):
            if us is not None:
                times[work, processor.name] = us
    return times


def policy_of(name: str, times: TaskTimes, chip: Sequence[Processor] = CHIP) -> Policy:
    return find_policy(name).make(PolicySetting(CostRows(chip, TaskCosts(times))))


def chosen(
    name: str,
    rows: Rows,
    works: str,
    free_us: Sequence[float] = (0.0, 0.0, 0.0, 0.0),
    busy: str = "",
    now_us: float = 0.0,
) -> list[str]:
    """Play a round: which task goes where, free times grown by costs; `busy` ones are closed."""
    policy = policy_of(name, times_of(rows))
    states = [ProcessorState(p, n, p.name not in busy, free_us[n]) for n, p in enumerate(CHIP)]
    for number, work in enumerate(works):
        policy.add(Task(f"{work}{number}", work))
    choices = []
    while (choice := policy.pick(now_us, states)) is not None:
        task, state = choice
        assert state is not None
        cost_us = rows[task.subgraph][state.index]
        assert cost_us is not None
        state.free_us = max(now_us, state.free_us) + cost_us
        if busy:
            state.open = False
        choices.append(f"{task.name}>{state.name}")
    return choices


@pytest.mark.parametrize("name", half_slow(POLICIES))
class TestEveryPolicy(PlacingPolicySuite):
    @pytest.fixture
    def make_policy(self, name: str) -> MakePolicy:
        return lambda processors, times_us: policy_of(name, times_us, processors)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[tuple[Processor, ...], tuple[Task, ...], dict, dict]:
    """Unplaced tasks, costs of which some are absent, and times of copies."""
    processors = draw(platforms())
    tasks = draw(task_graphs(processors, placed=False))
    times: dict[tuple[str, str], float] = {}
    for task in tasks:
        names = [p.name for p in processors]
        for name in draw(st.lists(st.sampled_from(names), min_size=1, unique=True)):
            times[task.subgraph, name] = float(draw(st.integers(0, 50)))
    transfers: dict[tuple[str, str], float] = {}
    for task in tasks:
        for need in sorted(task.needs):
            transfers[need.replace("t", "g"), task.subgraph] = float(draw(st.integers(0, 30)))
    return processors, tasks, times, transfers


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=60)
@given(case=graphs(), queueing=st.booleans(), copies=st.booleans())
def test_any_graph_under_any_policy_is_a_schedule_and_the_same_one_again(
    name: str, case: tuple, queueing: bool, copies: bool
) -> None:
    processors, tasks, times, transfers = case
    transfers = transfers if copies else {}
    traces = [
        run_graph(tasks, processors, times, name, transfers_us=transfers, queueing=queueing)
        for _ in range(2)
    ]
    assert traces[0] == traces[1]
    if tasks:
        graph = TaskGraph("", tasks, processors, times, transfers)
        assert schedule_faults(traces[0], graph) == ()


class ScansAllPairs:
    """ETF as CEDR writes it down."""

    def __init__(self, costs: CostRows) -> None:
        self._costs, self._waiting = costs, list[Task]()

    def add(self, task: Task, /) -> None:
        self._waiting.append(task)

    def withdraw(self, task: Task, /) -> None:
        self._waiting.remove(task)

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        best, choice = inf, None
        for task in self._waiting:
            for state in processors:
                end_us = max(now_us, state.free_us) + self._costs.row(task)[state.index]
                if state.open and end_us < best:
                    best, choice = end_us, (task, state)
        if choice is not None:
            self._waiting.remove(choice[0])
        return choice


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(case=graphs(), queueing=st.booleans(), copies=st.integers(1, 4))
def test_the_fast_etf_makes_every_choice_of_a_scan_over_all_pairs(
    case: tuple, queueing: bool, copies: int
) -> None:
    processors, tasks, times, _ = case
    several: list[Task] = []
    for copy in range(copies):
        for task in tasks:
            needs = frozenset(f"{need}.{copy}" for need in task.needs)
            several.append(replace(task, name=f"{task.name}.{copy}", needs=needs))
    how = Queueing.UNBOUNDED if queueing else Queueing.IDLE
    traces = []
    for fast in (True, False):
        costs = CostRows(processors, TaskCosts(times))
        policy = find_policy("etf").make(PolicySetting(costs)) if fast else ScansAllPairs(costs)
        clock = VirtualExecutor(processors, times)
        traces.append(run_tasks(several, policy, clock, costs, how))
    assert traces[0] == traces[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["olb", "rr", "eft", "mct"])
@settings(deadline=None, max_examples=60)
@given(case=graphs())
def test_without_queueing_no_processor_idles_that_a_waiting_task_could_use(
    name: str, case: tuple
) -> None:
    processors, tasks, times, _ = case
    trace = run_graph(tasks, processors, times, name, queueing=False)
    ends = {span.task.name: span.end_us for span in trace.spans}
    for span in trace.spans:
        ready_us = max((ends[need] for need in span.task.needs), default=0.0)
        for processor in processors:
            if (span.task.work, processor.name) not in times:
                continue
            busy_us = sum(
                min(other.end_us, span.start_us) - max(other.start_us, ready_us)
                for other in trace.spans
                if other.processor == processor.name
                and other.start_us < span.start_us
                and other.end_us > ready_us
            )
            assert busy_us == span.start_us - ready_us, (span.task.name, processor.name)


def test_rr_moves_its_pointer_with_every_try() -> None:
    rows: Rows = {"a": (1.0, 1.0, 1.0, 1.0), "f": (None, None, 1.0, 1.0)}
    assert chosen("rr", rows, "aafa") == ["a0>cpu1", "a1>cpu2", "f2>fft1", "a3>fft2"]
    assert chosen("rr", rows, "ffa") == ["f0>fft1", "f1>fft2", "a2>cpu1"]


def test_random_shuffles_each_round_from_its_seed() -> None:
    rows: Rows = {"a": (1.0, 1.0, 1.0, 1.0)}
    order = chosen("random", rows, "aaaaaa")
    assert sorted(choice[:2] for choice in order) == [f"a{n}" for n in range(6)]
    assert [choice[:2] for choice in order] != [f"a{n}" for n in range(6)]
    assert order == chosen("random", rows, "aaaaaa")


def test_met_takes_the_cheapest_type_the_last_of_equals_and_has_one_pointer() -> None:
    rows: Rows = {"a": (5.0, 5.0, 5.0, 5.0), "c": (1.0, 1.0, 9.0, 9.0)}
    assert chosen("met", rows, "aa") == ["a0>fft1", "a1>fft2"]
    assert chosen("met", rows, "ccc") == ["c0>cpu1", "c1>cpu2", "c2>cpu1"]
    assert chosen("met", rows, "cac") == ["c0>cpu1", "a1>fft1", "c2>cpu1"], (
        "the task of another type moved the pointer, so both are on cpu1"
    )
    busy = (100.0, 100.0, 0.0, 0.0)
    assert chosen("met", rows, "c", busy) == ["c0>cpu1"], "load is ignored"
    assert chosen("met", rows, "c", busy="cpu1cpu2") == [], "it waits for its type"


def test_eft_takes_the_last_of_equals_mct_the_first() -> None:
    rows: Rows = {"a": (5.0, 5.0, 5.0, 5.0), "b": (1.0, None, 4.0, None)}
    assert chosen("eft", rows, "a") == ["a0>fft2"]
    assert chosen("mct", rows, "a") == ["a0>cpu1"]
    assert chosen("eft", rows, "bbbbb", (3.0, 0.0, 0.0, 0.0)) == [
        "b0>fft1",
        "b1>cpu1",
        "b2>cpu1",
        "b3>cpu1",
        "b4>cpu1",
    ]


def test_free_times_in_the_past_count_as_now() -> None:
    rows: Rows = {"a": (5.0, 4.0, None, None)}
    assert chosen("eft", rows, "a", (0.0, 90.0, 0.0, 0.0), now_us=100.0) == ["a0>cpu2"]


def test_etf_takes_the_pair_that_ends_first_and_of_equals_the_first_task() -> None:
    rows: Rows = {
        "a": (9.0, 9.0, 9.0, 9.0),
        "b": (2.0, 2.0, None, None),
        "c": (2.0, None, 2.0, 9.0),
    }
    assert chosen("etf", rows, "abc") == ["b1>cpu1", "c2>fft1", "a0>cpu2"]


def test_heft_rt_sorts_by_the_mean_over_types_and_not_processors() -> None:
    rows: Rows = {"a": (10.0, None, 4.0, 4.0), "b": (6.5, 6.5, 6.5, 6.5)}
    assert chosen("heft_rt", rows, "ba") == ["a1>fft1", "b0>cpu1"], "7 over types, 6 over all"
    assert chosen("heft_rt", rows, "bbb") == ["b0>cpu1", "b1>cpu2", "b2>fft1"], "first of equals"


def test_olb_ignores_costs_and_max_min_and_sufferage_look_at_all() -> None:
    rows: Rows = {"a": (9.0, 1.0, None, None), "b": (5.0, 6.0, None, None)}
    assert chosen("olb", rows, "a") == ["a0>cpu1"]
    assert chosen("max_min", rows, "ab") == ["b1>cpu1", "a0>cpu2"]
    assert chosen("band", rows, "ab") == chosen("max_min", rows, "ab")
    assert chosen("sufferage", rows, "ba") == ["a1>cpu2", "b0>cpu1"]
    assert chosen("etf_start", rows, "ab", (3.0, 2.0, 0.0, 0.0)) == ["a0>cpu2", "b1>cpu1"]


def test_least_slack_goes_first_and_drops_what_no_processor_can_end_in_time() -> None:
    times = times_of({"a": (10.0, None, None, None)})
    for name, ends in (("least_slack", "sooner later hopeless"), ("least_slack_drop", "sooner")):
        policy = policy_of(name, times)
        states = [ProcessorState(p, n) for n, p in enumerate(CHIP)]
        policy.add(Task("later", "a", deadline_us=80.0))
        policy.add(Task("sooner", "a", deadline_us=30.0))
        first = policy.pick(0.0, states)
        assert first is not None
        assert (first[0].name, first[1]) == ("sooner", states[0])
        states[0].free_us = 75.0
        second = policy.pick(0.0, states)
        assert second is not None
        assert (second[1] is None) == (ends == "sooner")


def test_an_idle_processor_steals_where_that_pays_and_only_there() -> None:
    rows: Rows = {"a": (10.0, 11.0, None, None), "b": (10.0, 40.0, None, None)}
    assert chosen("work_stealing", rows, "aaa", busy=" ") == ["a0>cpu1", "a1>cpu2"]
    assert chosen("work_stealing", rows, "bb", busy=" ") == ["b0>cpu1"], "20 there, 40 here"


def test_of_priority_classes_the_higher_goes_first() -> None:
    costs = CostRows(CHIP, TaskCosts(times_of({"a": (1.0, 1.0, 1.0, 1.0)})))
    policy = PriorityClasses(lambda: find_policy("mct").make(PolicySetting(costs)))
    for number, priority in enumerate((0, 2, 1, 2)):
        policy.add(Task(f"t{number}", "a", priority=priority))
    policy.withdraw(Task("t3", "a", priority=2))
    states = [ProcessorState(p, n) for n, p in enumerate(CHIP)]
    order = [choice[0].name for _ in range(3) if (choice := policy.pick(0.0, states)) is not None]
    assert order == ["t1", "t2", "t0"]
    assert policy.pick(0.0, states) is None


def test_an_unknown_policy_is_refused_with_the_closest_and_a_task_nobody_can_run_too() -> None:
    with pytest.raises(UnknownName, match=r"unknown policy 'heft_tr'.*close to it: heft_rt"):
        find_policy("heft_tr")
    with pytest.raises(BadInput, match="z can run on no processor"):
        run_graph((Task("z", "z"),), CHIP, {("a", "cpu1"): 1.0}, "eft")
