"""How processors work: an asynchronous queue, a call with a helper, a call that holds the host."""

from __future__ import annotations

from dataclasses import replace
from time import sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bundles import branched_bundle
from support.phone import CPU, DSP, GPU, PHONE, never_before, placed

from nnstretch.schedule import (
    Disturbances,
    Interference,
    Outage,
    StaticPlacement,
    ThreadExecutor,
    VirtualExecutor,
    enqueue_times_us,
    run_tasks,
    task_durations_us,
    task_graph,
)
from nnstretch.schedule.meeting_waits import meeting_waits
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Failure, Span

pytestmark = pytest.mark.usefixtures("no_thread_stays_behind", "affinity_is_restored")


# How processors work: an asynchronous queue, a call with a helper thread, a call that blocks the
# host
QUEUE = replace(GPU, sync_us=50.0, enqueue_us=30.0)


CALLED = replace(DSP, asynchronous=False, enqueue_us=4.0)


HOST_TIMES = {("g", "gpu"): 200.0, ("g", "dsp"): 100.0, ("g", "cpu"): 60.0}


HANDOVERS = {("g", "gpu"): 30.0, ("g", "dsp"): 4.0}


FORK = tuple(Task(p, "g", processor=p) for p in ("cpu", "dsp", "gpu"))


def starts_us(
    policy: StaticPlacement, *processors: Processor, tasks: tuple[Task, ...] = FORK
) -> dict[str, float]:
    trace = run_tasks(
        tasks, policy, VirtualExecutor(processors, HOST_TIMES, handovers_us=HANDOVERS)
    )
    return {span.task.name: span.start_us for span in trace.spans}


def test_the_host_enqueues_then_calls_then_computes() -> None:
    assert starts_us(placed(), CPU, CALLED, QUEUE) == {"gpu": 30.0, "dsp": 34.0, "cpu": 34.0}


def test_a_runtime_that_walks_its_graph_calls_first_where_the_call_is_listed_first() -> None:
    assert starts_us(placed(False), CPU, CALLED, QUEUE) == {
        "dsp": 4.0,
        "gpu": 34.0,
        "cpu": 34.0,
    }


def test_a_call_without_helper_holds_the_host_while_the_queue_works() -> None:
    blocking = replace(CALLED, blocks_host=True)
    assert starts_us(placed(), CPU, blocking, QUEUE) == {"gpu": 30.0, "dsp": 34.0, "cpu": 134.0}
    assert starts_us(placed(False), CPU, blocking, QUEUE) == {
        "dsp": 4.0,
        "gpu": 134.0,
        "cpu": 134.0,
    }


def test_a_queue_takes_the_next_task_while_it_works_on_one() -> None:
    tasks = tuple(Task(f"t{i}", "g", processor="gpu") for i in range(3))
    trace = run_tasks(
        tasks,
        placed(),
        VirtualExecutor((replace(QUEUE, queue_depth=3),), HOST_TIMES, handovers_us=HANDOVERS),
    )
    assert [(span.handed_us, span.start_us) for span in trace.spans] == [
        (30.0, 30.0),
        (60.0, 230.0),
        (90.0, 430.0),
    ]


@settings(deadline=None, max_examples=10)
@given(st.booleans(), st.booleans(), st.sampled_from([None, "cpu"]))
def test_real_threads_wait_as_the_virtual_clock_says(
    listed: bool, blocks: bool, caller: str | None
) -> None:
    phone = (CPU, replace(CALLED, blocks_host=blocks), QUEUE)
    policy, tasks = (
        placed(not listed),
        (*FORK, Task("meet", "g", frozenset({"cpu", "dsp", "gpu"}), "cpu")),
    )
    virtual = run_tasks(tasks, policy, VirtualExecutor(phone, HOST_TIMES, handovers_us=HANDOVERS))
    with ThreadExecutor(
        phone, lambda task: None, HOST_TIMES, dilation=3.0, caller=caller, handovers_us=HANDOVERS
    ) as threads:
        real = run_tasks(tasks, policy, threads)
    never_before(real, virtual)
    handed_us = {span.task.name: span.handed_us for span in real.spans}
    assert all(
        (handed_us[span.task.name] or 0.0) >= (span.handed_us or 0.0) - 1e-6
        for span in virtual.spans
    )


def test_a_branch_that_ends_late_and_counts_as_early_does_not_let_the_merge_start_early() -> None:
    def work(task: Task) -> None:
        if task.name == "late":
            sleep(600e-6)

    tasks = (
        Task("late", "g", processor="dsp"),
        Task("long", "h", processor="gpu"),
        Task("meet", "i", frozenset({"late", "long"}), "cpu"),
    )
    times_us = {("g", "dsp"): 10.0, ("h", "gpu"): 300.0, ("i", "cpu"): 5000.0}
    virtual = run_tasks(tasks, placed(), VirtualExecutor(PHONE, times_us))
    with ThreadExecutor(PHONE, work, times_us, caller="cpu") as threads:
        never_before(run_tasks(tasks, placed(), threads), virtual)


def test_waits_are_read_off_a_trace() -> None:
    tasks = (*FORK, Task("meet", "g", frozenset({"cpu", "dsp", "gpu"}), "cpu"))
    trace = run_tasks(
        tasks, placed(), VirtualExecutor((CPU, CALLED, QUEUE), HOST_TIMES, handovers_us=HANDOVERS)
    )
    assert [(wait.task, wait.host_us, wait.idle_us) for wait in meeting_waits(tasks, trace)] == [
        ("cpu", 60.0, 136.0),
        ("dsp", 100.0, 96.0),
        ("gpu", 196.0, 0.0),
    ]


def test_a_busy_cpu_takes_longer_to_hand_over() -> None:
    tasks = (Task("branch", "branch", processor="gpu"),)
    busy = Disturbances((Interference("cpu", 0.0, 1e9, 0.5),))
    trace = run_tasks(
        tasks,
        placed(),
        VirtualExecutor(
            (CPU, QUEUE),
            {("branch", "gpu"): 100.0},
            disturbances=busy,
            handovers_us={("branch", "gpu"): 30.0},
        ),
    )
    assert [(span.start_us, span.end_us) for span in trace.spans] == [(60.0, 160.0)]


def test_a_lost_call_lets_the_host_go() -> None:
    phone = (CPU, replace(CALLED, blocks_host=True))
    clock = VirtualExecutor(
        phone, HOST_TIMES, disturbances=Disturbances(fails=(Outage("dsp", 50.0),))
    )
    clock.submit(FORK[1], phone[1])
    clock.submit(FORK[0], CPU)
    assert isinstance(clock.wait(), Failure)
    assert clock.wait() == Span(50.0, 110.0, FORK[0], "cpu")


@pytest.mark.parametrize("blocks_host", [False, True])
def test_a_processor_that_is_back_starts_empty_on_the_real_clock_too(blocks_host: bool) -> None:
    """What it was given before is lost at once and keeps neither it nor the host busy."""
    dsp = replace(DSP, blocks_host=blocks_host)
    times_us = {("long", "dsp"): 9e6, ("short", "dsp"): 100.0}
    outage = Disturbances(fails=(Outage("dsp", 100_000.0, 200_000.0),))
    lost, short = Task("lost", "long"), Task("short", "short")
    virtual = VirtualExecutor((CPU, dsp), times_us, disturbances=outage)
    with ThreadExecutor((CPU, dsp), lambda task: None, times_us, disturbances=outage) as threads:
        threads.submit(short, dsp)
        threads.wait()
        threads.restart()  # by now its threads have started
        clocks: tuple[VirtualExecutor | ThreadExecutor, ...] = (virtual, threads)
        for clock in clocks:
            clock.submit(lost, dsp)
            assert isinstance(clock.wait(), Failure)
            clock.set_timer(250_000.0, "back")
            clock.wait()
            clock.submit(short, dsp)
            span = clock.wait()
            assert isinstance(span, Span)
            assert 250_000.0 <= span.start_us < span.end_us < 5e6


@given(
    st.floats(0.0, 500.0),
    st.floats(0.0, 500.0),
    st.tuples(st.floats(1.0, 2000.0), st.floats(1.0, 2000.0)),
)
def test_enqueueing_takes_its_part_of_the_synchronisation_and_no_more(
    handover_us: float, rest_us: float, branch_us: tuple
) -> None:
    """The plan's price stays the virtual clock's time, wherever in a segment the host spends its
    share.
    """
    manifest = branched_bundle(2, branch_us=branch_us, sync_us=handover_us + rest_us).manifest
    phone = (CPU, replace(DSP, enqueue_us=handover_us))
    clock = VirtualExecutor(
        phone, task_durations_us(manifest, phone), handovers_us=enqueue_times_us(manifest, phone)
    )
    plain = run_tasks(
        task_graph(manifest), placed(), VirtualExecutor(PHONE, task_durations_us(manifest))
    )
    assert run_tasks(task_graph(manifest), placed(), clock).makespan_us == pytest.approx(
        plain.makespan_us
    )


def test_data_that_stays_on_a_processor_is_not_handed_over() -> None:
    manifest = replace(branched_bundle(1).manifest, sync_us={})
    assert enqueue_times_us(manifest, (CPU, replace(DSP, enqueue_us=9.0))) == {}


def test_golden_trace_of_two_branches() -> None:
    manifest = branched_bundle().manifest
    trace = run_tasks(
        task_graph(manifest), placed(), VirtualExecutor(PHONE, task_durations_us(manifest))
    )
    assert str(trace).split("\n") == [
        "trace 1400.0 us",
        "         0.0      300.0  cpu    stem#0",
        "       300.0     1200.0  cpu    s1_cpu#0",
        "       300.0     1300.0  dsp    s1_dsp#0",
        "      1300.0     1400.0  cpu    s1_merge#0",
    ]
