"""Tasks with nothing to do are passed over, and are in the trace all the same."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bundles import branched_bundle, image

from nnstretch.run import Session
from nnstretch.run.metrics import _waits_us, dispatch_overhead_us
from nnstretch.schedule import (
    StaticOrderRunner,
    StaticPlacement,
    VirtualExecutor,
    run_tasks,
    static_order,
)
from nnstretch.schedule.elide import restore_noops, without_noops
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Trace

PROCESSORS = (Processor("cpu", "cpu", 2), Processor("dsp", "dsp", 2))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Task], set[str]]:
    """Tasks behind what they need, and those of them that do nothing."""
    tasks: list[Task] = []
    for number in range(draw(st.integers(1, 12))):
        needs = (
            draw(st.sets(st.sampled_from([task.name for task in tasks]), max_size=3))
            if tasks
            else set()
        )
        tasks.append(
            Task(
                f"t{number}#0",
                f"t{number}",
                frozenset(needs),
                draw(st.sampled_from(["cpu", "dsp"])),
            )
        )
    return tasks, set(draw(st.lists(st.sampled_from([task.subgraph for task in tasks]))))


def ancestors(tasks: list[Task], name: str) -> set[str]:
    needs = {task.name: task.needs for task in tasks}
    found, left = set(), list(needs[name])
    while left:
        if (one := left.pop()) not in found:
            found.add(one)
            left += needs[one]
    return found


@given(graphs())
def test_tasks_keep_their_transitive_needs(graph: tuple[list[Task], set[str]]) -> None:
    tasks, idle = graph
    left = list(without_noops(tasks, idle))
    assert [task.name for task in left] == [
        task.name for task in tasks if task.subgraph not in idle
    ]
    names = {task.name for task in left}
    assert all(ancestors(left, task.name) == ancestors(tasks, task.name) & names for task in left)


def run_without_noops(tasks: list[Task], idle: set[str], lengths: list[int]) -> Trace:
    """Run tasks of these lengths, but those of idle sub-graphs, on the virtual clock."""
    took_us = {
        (task.subgraph, task.processor or ""): float(us)
        for task, us in zip(tasks, lengths, strict=False)
    }
    policy, clock = StaticPlacement(("cpu", "dsp")), VirtualExecutor(PROCESSORS, took_us)
    return run_tasks(without_noops(tasks, idle), policy, clock)


@given(graphs(), st.lists(st.integers(1, 9), min_size=12, max_size=12))
def test_the_trace_is_that_of_tasks_that_take_no_time(
    graph: tuple[list[Task], set[str]], lengths: list[int]
) -> None:
    tasks, idle = graph
    trace = run_without_noops(tasks, idle, lengths)
    found = restore_noops(trace, tasks, idle)
    spans = {span.task.name: span for span in found.spans}
    assert spans.keys() == {task.name for task in tasks}
    assert [span.end_us for span in found.spans] == sorted(span.end_us for span in found.spans)
    for task in tasks:
        ready_us = max((spans[need].end_us for need in task.needs), default=0.0)
        assert spans[task.name].start_us >= ready_us
        if task.subgraph in idle:
            assert (
                spans[task.name].start_us,
                spans[task.name].end_us,
                spans[task.name].processor,
            ) == (ready_us, ready_us, task.processor)


@pytest.mark.slow
@given(graphs())
def test_no_list_blocks_another(graph: tuple[list[Task], set[str]]) -> None:
    tasks, idle = graph
    left, done = without_noops(tasks, idle), list[str]()
    lists = StaticOrderRunner(
        static_order(left, PROCESSORS, StaticPlacement(("cpu", "dsp"))),
        "cpu",
        {"cpu": None, "dsp": None},
    )
    try:
        ran = lists.run({task.subgraph: partial(done.append, task.name) for task in left})
    finally:
        lists.close()
    assert sorted(done) == sorted(task.name for task in left)
    place = {name: number for number, name in enumerate(done)}
    assert all(place[need] < place[task.name] for task in left for need in task.needs)
    found = restore_noops(ran.trace(), tasks, idle, ran.duration_us)
    assert {span.task.name for span in found.spans} == {task.name for task in tasks}
    assert max(span.end_us for span in found.spans) <= ran.duration_us or not left


@pytest.mark.slow
@given(graphs(), st.lists(st.integers(0, 9), min_size=12, max_size=12), st.floats(0, 3))
def test_nothing_begins_before_it_may(
    graph: tuple[list[Task], set[str]], lengths: list[int], late_us: float
) -> None:
    tasks, idle = graph
    trace = run_without_noops(tasks, idle, lengths)
    over_us = max((span.end_us for span in trace.spans), default=0.0) + late_us
    waits_us = _waits_us(tasks, restore_noops(trace, tasks, idle, over_us), False)
    assert all(-1e-9 <= waits_us[task.name] <= late_us + 1e-9 for task in tasks)


@pytest.mark.parametrize("segments", [1, 2])
def test_the_caller_that_waits_for_the_last_merge_counts(segments: int) -> None:
    bundle = branched_bundle(segments=segments, predicted=False)
    with Session(bundle, clock="real") as session:
        session.run(image(bundle))
        (last,) = (span for span in session.trace.spans if span.task.name == f"s{segments}_merge#0")
        assert (
            last.end_us
            == session.latency_us
            > max(span.end_us for span in session.trace.spans if span is not last)
        )
        assert dispatch_overhead_us(session.manifest, session.tasks, session.trace) > 0


@pytest.mark.parametrize("mode", ["spatial", "sequential"])
def test_the_numbers_are_those_in_order(mode: str) -> None:
    bundle = branched_bundle(segments=2, predicted=False)
    with Session(bundle, mode=mode, clock="real") as session:
        for seed in range(3):
            assert np.array_equal(
                session.run(image(bundle, seed)),
                session.network.run_sequential(image(bundle, seed)),
            )


def test_a_merge_that_is_run_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = branched_bundle(segments=2, predicted=False)
    monkeypatch.setattr("nnstretch.run.bound_memory.in_place_merges", lambda manifest, backends: {})
    with Session(bundle, clock="real") as session:
        expected = session.run(image(bundle))
        assert session._real_clock.bound is not None
        with monkeypatch.context() as patched:
            patched.setitem(session._real_clock.bound.calls, "s1_merge", lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                session.run(image(bundle))
        assert np.array_equal(session.run(image(bundle)), expected)


def test_merges_whose_branches_wrote_side_by_side_are_in_a_sessions_trace() -> None:
    bundle = branched_bundle(segments=3, predicted=False)
    with Session(bundle, clock="real") as session:
        found = session.run(image(bundle))
        assert np.array_equal(found, session.network.run_sequential(image(bundle)))
        spans = {span.task.name: span for span in session.trace.spans}
        assert session._real_clock.bound is not None
        assert session._real_clock.bound.met
        assert spans.keys() == {task.name for task in session.tasks}
        assert all(spans[f"{name}#0"].duration_us == 0 for name in session._real_clock.bound.met)
        assert dispatch_overhead_us(session.manifest, session.tasks, session.trace) > 0
