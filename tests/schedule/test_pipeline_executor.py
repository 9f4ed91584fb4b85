"""Workers and counters carry out what the loop would decide.

Every item once, in order, within the queues' bounds.
"""

from __future__ import annotations

import signal
import threading
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipeline_bundles import chain, framed, reference

from nnstretch.bundle.manifest import Manifest
from nnstretch.run.pipelines.item_trace import spans_by_step, start_delays_us
from nnstretch.schedule import StaticPlacement, VirtualExecutor, run_tasks
from nnstretch.schedule.executors.pipeline import pipeline_executor, queued_items
from nnstretch.schedule.executors.static import StaticExecutor
from nnstretch.schedule.pipeline_graph import (
    StageNode,
    dependencies,
    in_flight_limit,
    stage_graph,
    stream_processors,
    stream_tasks,
)


@st.composite
def flows(draw: st.DrawFn) -> tuple[StageNode, ...]:
    """Up to five stages; each reads of earlier ones or of the caller, who reads what nobody else
    does.
    """
    count = draw(st.integers(1, 5))
    feeders = [
        tuple(sorted(draw(st.sets(st.integers(0, n - 1), max_size=2)))) if n else ()
        for n in range(count)
    ]
    readers = [tuple(m for m in range(count) if n in feeders[m]) for n in range(count)]
    return tuple(
        StageNode(
            f"s{n}",
            feeders[n],
            readers[n],
            not feeders[n] or draw(st.booleans()),
            not readers[n],
            draw(st.integers(1, 3)),
            draw(st.integers(1, 3)),
        )
        for n in range(count)
    )


class Diary:
    """What happened when, told by the workers."""

    def __init__(self, meanwhile: Callable[[int, int], None] = lambda _stage, _item: None) -> None:
        self.events: list[tuple[str, int, int]] = []
        self._lock, self._meanwhile = threading.Lock(), meanwhile

    def note(self, what: str, stage: int, item: int) -> None:
        with self._lock:
            self.events.append((what, stage, item))

    def make(self, stage: int, _replica: int) -> Callable[[int], None]:
        def compute(item: int) -> None:
            self.note("begin", stage, item)
            self._meanwhile(stage, item)
            self.note("end", stage, item)

        return compute


def started(
    stage_graph: tuple[StageNode, ...], make: Callable[[int, int], Callable[[int], None]]
) -> StaticExecutor:
    executor = pipeline_executor(
        stage_graph, make, [[None] * step.replicas for step in stage_graph]
    )
    executor.start()
    return executor


def feed(executor: StaticExecutor, items: int) -> None:
    for item in range(items):
        assert executor.producer.wait(lambda item=item: executor.has_room(item), 20)  # type: ignore[misc]
        executor.submit()
    assert items == 0 or executor.consumer.wait(lambda: executor.is_complete(items - 1), 20)


@settings(deadline=None, max_examples=60)
@given(flows(), st.integers(0, 12))
def test_every_item_passes_every_stage_once_and_begins_only_when_it_may(
    stage_graph: tuple[StageNode, ...], items: int
) -> None:
    diary = Diary()
    executor = started(stage_graph, diary.make)
    feed(executor, items)
    executor.close()
    over: set[tuple[int, int]] = set()
    begun: dict[int, list[int]] = {n: [] for n in range(len(stage_graph))}
    for what, stage, item in diary.events:
        if what == "end":
            over.add((stage, item))
            continue
        assert {need for need in dependencies(stage_graph, stage, item) if need[1] >= 0} <= over
        begun[stage].append(item)
    assert over == {(stage, item) for stage in begun for item in range(items)}
    for stage, step in enumerate(stage_graph):
        for replica in range(step.replicas):
            own = [item for item in begun[stage] if item % step.replicas == replica]
            assert own == sorted(own)


def test_a_slow_stage_stops_those_before_it_at_the_bound_of_the_queues() -> None:
    gate = threading.Event()
    stage_graph = (
        StageNode("fast", (), (1,), True, False, 1, 2),
        StageNode("slow", (0,), (), False, True, 1, 3),
    )
    diary = Diary(lambda stage, _: None if stage == 0 else (gate.wait(20), None)[1])
    executor = started(stage_graph, diary.make)
    pushed = 0
    while executor.producer.wait(lambda item=pushed: executor.has_room(item), 0.3):  # type: ignore[misc]
        executor.submit()
        pushed += 1
    begun = [item for what, stage, item in diary.events if (what, stage) == ("begin", 0)]
    assert begun == [0, 1, 2, 3], "one at work in the slow stage, three in its queue"
    assert pushed == 4 + 3, "and one that waits to be begun, two in the queue before it"
    assert pushed <= in_flight_limit(stage_graph)
    assert (queued_items(executor, stage_graph, 0), queued_items(executor, stage_graph, 1)) == (
        3,
        4,
    )
    gate.set()
    executor.close()
    assert executor.is_complete(pushed - 1)


def test_what_breaks_a_worker_is_heard_by_who_waits_and_every_thread_ends() -> None:
    def make(stage: int, _replica: int) -> Callable[[int], None]:
        def compute(item: int) -> None:
            if (stage, item) == (1, 3):
                raise KeyboardInterrupt

        return compute

    executor = started(
        (StageNode("a", (), (1,), True, False), StageNode("b", (0,), (), False, True)), make
    )
    for _ in range(5):
        executor.submit()
    assert executor.consumer.wait(lambda: executor.error is not None or executor.is_complete(4), 20)
    assert isinstance(executor.error, KeyboardInterrupt)
    assert not executor.is_complete(3)
    executor.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("nnstretch-a")]


def test_a_compute_that_cannot_be_made_is_told_at_once() -> None:
    def make(stage: int, _replica: int) -> Callable[[int], None]:
        if stage:
            raise ValueError("no such file")
        return lambda _item: None

    with pytest.raises(ValueError, match="no such file"):
        started(
            (StageNode("a", (), (1,), True, False), StageNode("b", (0,), (), False, True)), make
        )


def test_waiting_has_an_end() -> None:
    executor = started((StageNode("a", (), (), True, True),), lambda _s, _r: lambda _i: None)
    assert not executor.consumer.wait(lambda: executor.is_complete(0), 0.01)
    executor.submit()
    assert executor.consumer.wait(lambda: executor.is_complete(0), 20)
    executor.close()


def manifests() -> dict[str, Manifest]:
    return {
        "reference": reference()[0],
        "framed": framed()[0],
        "replicas": chain(3, replicas=2).manifest,
        "python": chain(3, python=[1]).manifest,
    }


@pytest.mark.parametrize("name", ["reference", "framed", "replicas", "python"])
def test_the_loop_schedules_a_stream_by_the_same_rules(name: str) -> None:
    """On the virtual clock, with every stage as fast as any: nothing begins later than it may."""
    manifest = manifests()[name]
    pipeline = manifest.pipeline
    assert pipeline is not None
    tasks, processors = stream_tasks(manifest, 9), stream_processors(manifest, {})
    alike = {(task.subgraph, task.processor or ""): 5.0 for task in tasks}
    shared = {
        p.name
        for p in processors
        if len({task.subgraph for task in tasks if task.processor == p.name}) > 1
    }
    flow = stage_graph(pipeline, manifest)
    spans = spans_by_step(
        run_tasks(
            tasks,
            StaticPlacement(tuple(p.name for p in processors)),
            VirtualExecutor(processors, alike),
        ),
        pipeline,
        flow,
    )
    assert {stage: len(own) for stage, own in spans.items()} == {
        stage.name: 9 for stage in pipeline.stages
    }
    late_us = start_delays_us(flow, spans)
    assert min(late_us) >= 0
    assert shared or max(late_us) == 0


@pytest.fixture
def heard() -> Iterator[None]:
    """SIGINT as Python hears it, also where the tests run behind a shell that goes on (which has it
    ignored).
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_a_start_that_is_interrupted_leaves_no_thread() -> None:
    """Ctrl-C while a worker loads its file."""
    stage_graph = tuple(
        StageNode(
            f"interrupted{n}", (n - 1,) if n else (), (n + 1,) if n < 3 else (), n == 0, n == 3
        )
        for n in range(4)
    )

    def make(stage: int, _replica: int) -> Callable[[int], None]:
        if stage == 0:
            interrupt_main()
        return lambda item: None

    with pytest.raises(KeyboardInterrupt):
        started(stage_graph, make)
    until_s = perf_counter() + 20
    while (
        left := [thread for thread in threading.enumerate() if "interrupted" in thread.name]
    ) and perf_counter() < until_s:
        left[0].join(0.1)
    assert not left
