"""Tasks with nothing to do are passed over, and are in the trace all the same."""

from __future__ import annotations

import numpy as np
from bundles import branched_bundle, image
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.run import Session
from nnstretch.run.measures import dispatch_overhead_us
from nnstretch.schedule import Placed, VirtualClock, run
from nnstretch.schedule.passing import passed_over, with_passed
from nnstretch.soc import Processor
from nnstretch.trace import Task

PROCESSORS = (Processor("cpu", "cpu", 2), Processor("dsp", "dsp", 2))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Task], set[str]]:
    """Tasks behind what they need, and those of them that do nothing."""
    tasks: list[Task] = []
    for number in range(draw(st.integers(1, 12))):
        needs = draw(st.sets(st.sampled_from([task.name for task in tasks]), max_size=3)) if tasks else set()
        tasks.append(Task(f"t{number}#0", f"t{number}", frozenset(needs), draw(st.sampled_from(["cpu", "dsp"]))))
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
def test_who_waited_for_what_still_does(graph: tuple[list[Task], set[str]]) -> None:
    tasks, idle = graph
    left = list(passed_over(tasks, idle))
    assert [task.name for task in left] == [task.name for task in tasks if task.subgraph not in idle]
    names = {task.name for task in left}
    assert all(ancestors(left, task.name) == ancestors(tasks, task.name) & names for task in left)


@given(graphs(), st.lists(st.integers(1, 9), min_size=12, max_size=12))
def test_the_trace_is_that_of_tasks_that_take_no_time(graph: tuple[list[Task], set[str]], lengths: list[int]) -> None:
    tasks, idle = graph
    took_us = {(task.subgraph, task.processor or ""): float(us) for task, us in zip(tasks, lengths, strict=False)}
    trace = run(passed_over(tasks, idle), Placed(("cpu", "dsp")), VirtualClock(PROCESSORS, took_us))
    found = with_passed(trace, tasks, idle)
    spans = {span.task: span for span in found.spans}
    assert spans.keys() == {task.name for task in tasks}
    assert [span.end_us for span in found.spans] == sorted(span.end_us for span in found.spans)
    for task in tasks:
        ready_us = max((spans[need].end_us for need in task.needs), default=0.0)
        assert spans[task.name].start_us >= ready_us
        if task.subgraph in idle:
            assert (spans[task.name].start_us, spans[task.name].end_us, spans[task.name].processor) == (ready_us, ready_us, task.processor)


def test_merges_whose_branches_wrote_side_by_side_are_in_a_sessions_trace() -> None:
    bundle = branched_bundle(segments=3, predicted=False)
    with Session(bundle, clock="real") as session:
        found = session.run(image(bundle))
        assert np.array_equal(found, session.network.in_order(image(bundle)))
        spans = {span.task: span for span in session.trace.spans}
        assert session._wired is not None
        assert session._wired.met
        assert spans.keys() == {task.name for task in session.tasks}
        assert all(spans[f"{name}#0"].duration_us == 0 for name in session._wired.met)
        assert dispatch_overhead_us(session.manifest, session.tasks, session.trace) > 0
