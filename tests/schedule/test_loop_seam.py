"""What crosses the seam between loop and policies: instants, reserved queues, expected times."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.errors import BadInput, DeadlineMissed
from nnstretch.protocols import Choice, ProcessorState
from nnstretch.schedule import Disturbances, Outage, VirtualExecutor, run_tasks
from nnstretch.schedule.costs.cost_rows import CostRows
from nnstretch.schedule.event_loop import EventLoop
from nnstretch.schedule.finish_times import TaskCosts
from nnstretch.schedule.loop.processor_queue import Queueing
from nnstretch.schedule.slowdown import SlowdownEstimator
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Failure, Span

ONE, TWO = Processor("one", "cpu", 1), Processor("two", "cpu", 1)


class Recorder:
    """First in, first out, on the first open processor; keeps what it saw."""

    def __init__(self, only: str | None = None) -> None:
        self.only = only
        self.waiting: list[Task] = []
        self.asked: list[tuple[float, tuple[str, ...]]] = []
        self.free_us: list[list[float]] = []

    def add(self, task: Task, /) -> None:
        self.waiting.append(task)

    def withdraw(self, task: Task, /) -> None:
        self.waiting.remove(task)

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        self.asked.append((now_us, tuple(task.name for task in self.waiting)))
        self.free_us.append([state.free_us for state in processors])
        for state in processors:
            if state.open and self.only in (None, state.name) and self.waiting:
                return self.waiting.pop(0), state
        return None


def tasks(count: int) -> tuple[Task, ...]:
    return tuple(Task(f"t{n}", "g") for n in range(count))


def test_everything_of_an_instant_is_heard_before_anything_is_decided() -> None:
    policy, times = Recorder(), {("g", "one"): 10.0, ("g", "two"): 10.0, ("h", "one"): 1.0}
    joined = (
        Task("late", "h", frozenset({"b"})),
        Task("early", "h", frozenset({"a"})),
        Task("a", "g"),
        Task("b", "g"),
    )
    run_tasks(joined, policy, VirtualExecutor((ONE, TWO), times | {("h", "two"): 1.0}))
    at_ten = [names for now_us, names in policy.asked if now_us == 10.0]
    assert at_ten[0] == ("late", "early"), "both have ended, and tasks are told in their order"


@pytest.mark.parametrize(
    ("queueing", "rounds"),
    [(Queueing.UNBOUNDED, {0.0: 5}), (Queueing.BOUNDED, {0.0: 2, 10.0: 1, 20.0: 1, 30.0: 1})],
)
def test_a_processor_is_given_as_much_as_queueing_says(
    queueing: Queueing, rounds: dict[float, int]
) -> None:
    deep = Processor("one", "cpu", 2)
    policy = Recorder()
    costs = CostRows((deep,), TaskCosts({("g", "one"): 10.0}))
    clock = VirtualExecutor((deep,), {("g", "one"): 10.0})
    trace = run_tasks(tasks(5), policy, clock, costs, queueing)
    assert [span.end_us for span in trace.spans] == [10.0, 20.0, 30.0, 40.0, 50.0]
    chosen = dict.fromkeys(rounds, 0)
    for (now_us, _), free_us in zip(policy.asked, policy.free_us, strict=True):
        if free_us[0] < now_us + 10.0 * queueing.limit(deep) and now_us in chosen:
            chosen[now_us] += 1
    assert chosen == rounds


def test_only_idle_processors_get_work_where_queueing_is_off() -> None:
    deep, policy = Processor("one", "cpu", 4), Recorder()
    clock = VirtualExecutor((deep,), {("g", "one"): 10.0})
    trace = run_tasks(tasks(3), policy, clock, None, Queueing.IDLE)
    assert [span.handed_us for span in trace.spans] == [0.0, 10.0, 20.0]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.floats(0.2, 5.0))
def test_when_a_processor_is_free_is_corrected_whenever_a_task_ends(
    times: list[int], factor: float
) -> None:
    """What is behind a task that ended is expected by what it costs alone."""
    jobs = tuple(Task(f"t{n}", f"g{n}") for n in range(len(times)))
    expected = {(job.work, "one"): float(us) for job, us in zip(jobs, times, strict=True)}
    true = {key: us * factor for key, us in expected.items()}
    policy = Recorder()
    clock = VirtualExecutor((ONE,), true)
    loop = EventLoop((ONE,), policy, clock, CostRows((ONE,), TaskCosts(expected)), UNBOUNDED)
    loop.add(jobs)
    loop.dispatch()
    for ended in range(1, len(times)):
        span = clock.wait()
        assert isinstance(span, Span)
        loop.end(span)
        loop.dispatch()
        assert loop.states[0].free_us == pytest.approx(clock.now_us + sum(times[ended:]))


UNBOUNDED = Queueing.UNBOUNDED


def test_a_task_that_is_late_counts_before_it_ends() -> None:
    clock = VirtualExecutor((ONE,), {("g", "one"): 100.0})
    policy = Recorder()
    loop = EventLoop(
        (ONE,), policy, clock, CostRows((ONE,), TaskCosts({("g", "one"): 10.0})), UNBOUNDED
    )
    loop.add(tasks(3))
    loop.dispatch()
    assert loop.states[0].free_us == 30.0
    clock.set_timer(70.0, "look")
    clock.wait()
    loop.add((Task("new", "g"),))
    loop.dispatch()
    assert policy.free_us[-1] == [70.0 + 20.0], "late since 10, two of ten behind it"


def test_what_is_reserved_on_a_lost_processor_waits_again_and_what_is_withdrawn_does_not() -> None:
    policy = Recorder()
    clock = VirtualExecutor(
        (ONE, TWO),
        {("g", "one"): 10.0, ("g", "two"): 10.0},
        disturbances=Disturbances(fails=(Outage("one", 5.0),)),
    )
    costs = CostRows((ONE, TWO), TaskCosts({("g", "one"): 10.0, ("g", "two"): 10.0}))
    loop = EventLoop((ONE, TWO), policy, clock, costs, UNBOUNDED)
    loop.add(tasks(4))
    loop.dispatch()
    assert [queue.count - queue.handed for queue in loop._queues] == [3, 0]
    loop.withdraw(["t3"])
    assert loop.states[0].free_us == 30.0
    failure = clock.wait()
    assert isinstance(failure, Failure)
    loop.end(failure)
    loop.requeue("t0")
    loop.dispatch()
    ended = []
    while (event := clock.wait()) is not None:
        assert isinstance(event, Span)
        ended.append((event.task.name, event.processor))
        loop.end(event)
        loop.dispatch()
    assert sorted(ended) == [("t0", "two"), ("t1", "two"), ("t2", "two")]


def test_data_between_processors_take_time_and_on_one_they_do_not() -> None:
    times = {(work, name): 10.0 for work in ("a", "b", "c") for name in ("one", "two")}
    chain = (Task("a", "a", processor="one"), Task("b", "b", frozenset("a"), "two"))
    joined = (*chain, Task("c", "c", frozenset("ab"), "two"))
    costs = CostRows((ONE, TWO), TaskCosts(times), None, {("a", "b"): 7.0, ("a", "c"): 30.0})

    class Placed(Recorder):
        def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
            for task in self.waiting:
                self.waiting.remove(task)
                return task, next(s for s in processors if s.name == task.processor)
            return None

    trace = run_tasks(joined, Placed(), VirtualExecutor((ONE, TWO), times), costs, UNBOUNDED)
    assert [(s.task.name, s.start_us) for s in trace.spans] == [("a", 0), ("b", 17), ("c", 40)]


def test_a_cost_that_is_missing_is_a_refusal_and_a_pair_that_is_absent_is_infinite() -> None:
    rows = CostRows((ONE, TWO), TaskCosts({("g", "two"): 0.0}))
    assert rows.row(Task("t", "g")) == (float("inf"), 0.0)
    with pytest.raises(BadInput, match="h can run on no processor, costs, none of one, two"):
        rows.row(Task("t", "h"))
    with pytest.raises(BadInput, match="g can run on one, costs"):
        rows.row(Task("t", "g", processor="one"))
    for bad in (-1.0, float("nan")):
        with pytest.raises(BadInput, match="cost of g on two is"):
            CostRows((ONE, TWO), TaskCosts({("g", "two"): bad}))


def test_rows_are_corrected_by_what_tasks_took() -> None:
    slowdowns = SlowdownEstimator(1.0, 1.0)
    rows = CostRows((ONE, TWO), TaskCosts({("g", "one"): 10.0, ("g", "two"): 10.0}), slowdowns)
    task, heard = Task("t", "g"), []
    rows.watch(heard.append)
    assert rows.row(task) == (10.0, 10.0)
    rows.observe(rows.of(task), Span(0.0, 10.0, task, "one"), 0)
    assert heard == [], "as expected"
    for _ in range(50):
        rows.observe(rows.of(task), Span(0.0, 30.0, task, "one"), 0)
    assert rows.row(task) == (pytest.approx(30.0, rel=0.01), 10.0)
    assert heard[0] == ("", "g", None)
    rows.observe(rows.of(task), Span(0.0, 60.0, task, "one"), 0)
    assert rows.row(task)[0] == pytest.approx(33.0, rel=0.01), "a tenth of what is new"


def test_a_task_that_was_withdrawn_while_it_ran_corrects_no_cost() -> None:
    expected, taken = {("g", "one"): 10.0}, {("g", "one"): 2.0}
    costs = CostRows((ONE,), TaskCosts(expected), SlowdownEstimator(1.0, 1.0))
    clock = VirtualExecutor((ONE,), taken)
    loop = EventLoop((ONE,), Recorder(), clock, costs)
    rows: list[float] = []
    for task, withdrawn in zip(tasks(2), (["t0"], []), strict=True):
        loop.add([task])
        loop.dispatch()
        loop.withdraw(withdrawn)
        span = clock.wait()
        assert isinstance(span, Span)
        assert loop.end(span) == (not withdrawn)
        rows.append(costs.row(task)[0])
    assert rows == pytest.approx([10.0, 2.0]), "the second counts as the first of its kind"


def test_a_task_that_the_policy_gives_up_is_named() -> None:
    class GivesUp(Recorder):
        def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
            return self.waiting.pop(), None

    with pytest.raises(DeadlineMissed, match="t0 cannot end in time"):
        run_tasks(tasks(1), GivesUp(), VirtualExecutor((ONE,), {("g", "one"): 1.0}))


class ChoosesWrongly(Recorder):
    """First in, first out, with one mistake that people make."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        if not self.waiting:
            return None
        if self.mistake == "stays in its list":
            return self.waiting[0], processors[0]
        if self.mistake == "task of its own":
            return Task("mine", "g"), processors[0]
        return self.waiting.pop(0), processors[0]


@pytest.mark.parametrize("queueing", Queueing)
@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("stays in its list", "t0 for one, policy, it was chosen before"),
        ("task of its own", "mine for one, policy, it has ended, was withdrawn or never came"),
        ("looks at no queue", "t1 for one, policy, that processor is not open"),
    ],
)
def test_a_policy_that_chooses_what_it_may_not_is_told_so(
    mistake: str, words: str, queueing: Queueing
) -> None:
    policy, clock = ChoosesWrongly(mistake), VirtualExecutor((ONE,), {("g", "one"): 1.0})
    if mistake == "looks at no queue" and queueing is Queueing.UNBOUNDED:
        assert len(run_tasks(tasks(3), policy, clock, queueing=queueing).spans) == 3
        return
    with pytest.raises(BadInput, match=f"^ChoosesWrongly chose {words}"):
        run_tasks(tasks(3), policy, clock, queueing=queueing)
