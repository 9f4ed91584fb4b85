"""The loop, its policy and both executors: any DAG becomes a schedule, and nothing stays behind."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bundles import branched_bundle, branched_latency_us
from support.phone import CPU, DSP, GPU, PHONE, never_before, placed

from nnstretch.errors import Stuck, UnknownName
from nnstretch.protocols import ProcessorState
from nnstretch.schedule import (
    ThreadExecutor,
    VirtualExecutor,
    critical_path_us,
    duration_as_placed,
    run_tasks,
    serialize,
    task_durations_us,
    task_graph,
)
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Trace

pytestmark = pytest.mark.usefixtures("no_thread_stays_behind", "affinity_is_restored")


@st.composite
def task_graphs(draw: st.DrawFn) -> tuple[tuple[Task, ...], dict[tuple[str, str], float]]:
    """A random DAG of placed tasks, in any order, and the time of each."""
    tasks: list[Task] = []
    for i in range(draw(st.integers(0, 12))):
        needs = (
            draw(st.frozensets(st.sampled_from([t.name for t in tasks]), max_size=3))
            if tasks
            else frozenset[str]()
        )
        tasks.append(Task(f"t{i}", f"g{i}", needs, draw(st.sampled_from(["cpu", "dsp", "gpu"]))))
    times_us = {
        (task.subgraph, task.processor or ""): float(draw(st.integers(0, 1_000))) for task in tasks
    }
    return tuple(tasks), times_us


def check_is_a_schedule(trace: Trace, tasks: tuple[Task, ...]) -> None:
    """The three things that make a trace a schedule, whoever produced it."""
    by_name = {span.task.name: span for span in trace.spans}
    assert len(by_name) == len(trace.spans) == len(tasks), "every task runs exactly once"
    for task in tasks:
        assert by_name[task.name].processor == task.processor
        for need in task.needs:
            assert by_name[need].end_us <= by_name[task.name].start_us, (
                f"{task.name} overtook {need}"
            )
    for processor in {span.processor for span in trace.spans}:
        mine = sorted(
            (span.start_us, span.end_us) for span in trace.spans if span.processor == processor
        )
        for earlier, later in pairwise(mine):
            assert earlier[1] <= later[0], f"two tasks at once on {processor}"


@pytest.mark.slow
@settings(deadline=None)
@given(task_graphs())
def test_any_dag_becomes_a_valid_and_repeatable_schedule(case: tuple) -> None:
    tasks, times_us = case
    first, second = (run_tasks(tasks, placed(), VirtualExecutor(PHONE, times_us)) for _ in range(2))

    check_is_a_schedule(first, tasks)
    assert first == second
    lower = critical_path_us(tasks, duration_as_placed(times_us))
    assert (
        lower <= max((span.end_us for span in first.spans), default=0.0) <= sum(times_us.values())
    )


@settings(deadline=None, max_examples=30)
@given(task_graphs(), st.sampled_from([None, "cpu"]))
def test_real_threads_make_a_schedule_of_any_dag(case: tuple, caller: str | None) -> None:
    tasks, _ = case
    done: list[str] = []
    with ThreadExecutor(PHONE, lambda task: done.append(task.name), caller=caller) as threads:
        check_is_a_schedule(run_tasks(tasks, placed(), threads), tasks)
    assert sorted(done) == sorted(task.name for task in tasks)


@pytest.mark.slow
@settings(deadline=None)
@given(task_graphs())
def test_in_turn_nothing_overlaps(case: tuple) -> None:
    tasks, times_us = case
    trace = run_tasks(serialize(tasks), placed(), VirtualExecutor(PHONE, times_us))
    assert [span.task.name for span in trace.spans] == [task.name for task in tasks]
    assert trace.makespan_us == sum(times_us.values())


def states(*processors: Processor, busy: tuple[str, ...] = ()) -> tuple[ProcessorState, ...]:
    return tuple(ProcessorState(p, n, p.name not in busy) for n, p in enumerate(processors))


def test_accelerators_are_served_before_the_cpu() -> None:
    policy = placed()
    for name in ("cpu", "gpu", "dsp"):
        policy.add(Task(f"on {name}", name, processor=name))
    assert policy.pick(0.0, states(*PHONE, busy=("cpu", "dsp", "gpu"))) is None
    order = []
    while (choice := policy.pick(0.0, states(*PHONE))) is not None:
        order.append(choice[0].processor)
    assert order == ["gpu", "dsp", "cpu"]


def test_a_placed_task_waits_for_its_processor_and_an_unknown_one_is_refused() -> None:
    policy = placed()
    policy.add(Task("t", "g", processor="gpu"))
    assert policy.pick(0.0, states(CPU, DSP)) is None
    with pytest.raises(UnknownName, match="unknown processor 'npu', task t"):
        policy.add(Task("t", "g", processor="npu"))


def test_a_task_that_was_withdrawn_is_not_chosen_and_one_that_comes_back_is() -> None:
    policy, task = placed(), Task("t", "g", processor="gpu")
    policy.add(task)
    policy.withdraw(task)
    assert policy.pick(0.0, states(*PHONE)) is None
    policy.add(task)
    assert policy.pick(0.0, states(*PHONE)) is not None
    assert policy.pick(0.0, states(*PHONE)) is None


def test_a_queue_takes_no_more_than_its_depth() -> None:
    clock = VirtualExecutor((GPU,), {("g", "gpu"): 5.0})
    clock.submit(Task("a", "g"), GPU)
    with pytest.raises(Stuck, match="b does not fit the queue of gpu, 1 tasks"):
        clock.submit(Task("b", "g"), GPU)


def test_a_task_whose_time_nobody_predicted_fails() -> None:
    with pytest.raises(UnknownName, match="unknown time of h on gpu"):
        run_tasks(
            (Task("c", "h", processor="gpu"),),
            placed(),
            VirtualExecutor(PHONE, {("g", "gpu"): 5.0}),
        )


def test_a_queue_starts_its_tasks_in_order_and_back_to_back() -> None:
    tasks = tuple(Task(f"t{i}", "g", processor="dsp") for i in range(4))
    trace = run_tasks(tasks, placed(), VirtualExecutor(PHONE, {("g", "dsp"): 10.0}))
    assert [(span.task.name, span.start_us) for span in trace.spans] == [
        ("t0", 0.0),
        ("t1", 10.0),
        ("t2", 20.0),
        ("t3", 30.0),
    ]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (
            (Task("a", "g", frozenset("b"), "cpu"), Task("b", "g", frozenset("a"), "cpu")),
            "2 tasks never ran, a, b,",
        ),
        (
            (Task("a", "g", frozenset("z"), "cpu"),),
            "task a needs z, which is not among the 1 tasks",
        ),
        (
            (Task("a", "g", processor="cpu"), Task("a", "g", processor="cpu")),
            "task a is there 2 times",
        ),
        ((Task("a", "g", processor="gpu"),), "1 tasks never ran, a,"),
    ],
)
def test_what_cannot_move_is_named(tasks: tuple[Task, ...], message: str) -> None:
    with pytest.raises(Stuck, match=message):
        run_tasks(tasks, placed(), VirtualExecutor((CPU,), {("g", "cpu"): 1.0}))


def test_a_failing_task_is_raised_in_the_caller_and_leaves_no_thread() -> None:
    def work(task: Task) -> None:
        if task.name == "bad":
            raise RuntimeError("out of luck")

    for processor, caller in (("dsp", None), ("dsp", "cpu"), ("cpu", "cpu")):
        others = tuple(Task(f"o{i}", "g", processor="gpu") for i in range(5))
        tasks = (
            Task("bad", "g", processor=processor),
            Task("next", "g", frozenset({"bad"}), "cpu"),
            *others,
        )
        with (
            ThreadExecutor(PHONE, work, caller=caller) as threads,
            pytest.raises(RuntimeError, match="out of luck"),
        ):
            run_tasks(tasks, placed(), threads)
        with pytest.raises(Stuck, match="late cannot start, the threads have been closed"):
            threads.submit(Task("late", "g"), CPU)
        threads.close()


def test_an_interrupted_caller_joins_its_threads() -> None:
    def work(task: Task) -> None:
        if task.processor == "cpu":
            raise KeyboardInterrupt

    tasks = (Task("a", "g", processor="dsp"), Task("b", "g", processor="cpu"))
    with pytest.raises(KeyboardInterrupt), ThreadExecutor(PHONE, work, caller="cpu") as threads:
        run_tasks(tasks, placed(), threads)


def test_a_timetable_is_never_ahead_of_itself() -> None:
    tasks = (Task("a", "g", processor="dsp"), Task("b", "g", frozenset({"a"}), "cpu"))
    times_us = {("g", "dsp"): 200.0, ("g", "cpu"): 100.0}
    with ThreadExecutor(PHONE, lambda task: None, times_us, dilation=3.0, caller="cpu") as threads:
        trace = run_tasks(tasks, placed(), threads)
    check_is_a_schedule(trace, tasks)
    never_before(trace, run_tasks(tasks, placed(), VirtualExecutor(PHONE, times_us)))


def test_a_machine_without_affinity_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    with ThreadExecutor(PHONE, lambda task: None, caller="cpu") as threads:
        assert len(run_tasks((Task("a", "g", processor="gpu"),), placed(), threads).spans) == 1


def test_a_refused_pin_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse, raising=False)
    with ThreadExecutor((CPU, DSP), lambda task: None) as threads:
        assert len(run_tasks((Task("a", "g", processor="dsp"),), placed(), threads).spans) == 1


def test_tasks_need_whoever_writes_what_they_read() -> None:
    tasks = {task.name: task for task in task_graph(branched_bundle().manifest, request=3)}
    assert tasks["s1_merge#3"].needs == {"s1_cpu#3", "s1_dsp#3"}
    assert tasks["s1_dsp#3"] == Task("s1_dsp#3", "s1_dsp", frozenset({"stem#3"}), "dsp", 3)
    assert {task.subgraph for task in tasks.values()} >= {"stem", "s1_cpu", "s1_merge"}


@pytest.mark.parametrize("segments", [0, 1, 4])
def test_the_virtual_clock_adds_up_the_segments(segments: int) -> None:
    manifest = branched_bundle(segments).manifest
    trace = run_tasks(
        task_graph(manifest), placed(), VirtualExecutor(PHONE, task_durations_us(manifest))
    )
    assert trace.makespan_us == branched_latency_us(segments)
