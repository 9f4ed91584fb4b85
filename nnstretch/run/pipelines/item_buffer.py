"""The items in flight in a pipeline, and what a worker does with each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from time import perf_counter
from typing import Any

from nnstretch.errors import BadInput, Cancelled, StageFailed, describe_error
from nnstretch.files.checked import check_settings
from nnstretch.files.limits import shorten
from nnstretch.run.pipelines.item_tensors import Values
from nnstretch.run.pipelines.stage_functions import PythonStage, SubgraphStage
from nnstretch.run.pipelines.worker_record import WorkerRecord, worker_name
from nnstretch.schedule.cpu_affinity import sleep_until
from nnstretch.schedule.executors.pipeline import StageFunction
from nnstretch.schedule.executors.timetable import MADE_UP_S, ChipClock, Timetable
from nnstretch.schedule.pipeline_graph import IN, StageGraph
from nnstretch.task import Task, task_name
from nnstretch.trace import Span

Work = Callable[[Values], None]
"""Computes a step on the tensors of an item."""
Open = Callable[[str, int], SubgraphStage | PythonStage]
"""Loads what a replica of a stage computes with."""


@dataclass(slots=True)
class InFlightItem:
    """One item in flight."""

    values: Values
    pushed_s: float
    due_us: list[float]
    """By step, when its time slot ended, or the step itself where it has none; on the chip's clock.

    Empty where stages are not emulated.
    """
    ended_s: float = 0.0
    error: Exception | None = None
    late: bool = False


@dataclass(frozen=True, slots=True)
class ItemResult:
    """What came of one item."""

    item: int
    outputs: Any
    """One output as it is, several by name; None where a stage raised."""
    error: Exception | None
    latency_us: float
    """From its push to its end, on this host's clock."""
    ended_us: float = 0.0
    """Since the pipeline began."""
    late: bool = False
    """Whether its numbers took longer than their time at any emulated stage."""

    def value(self) -> Any:
        """Return the outputs.

        Raises the item's error: StageFailed, with the stage's own error as its cause, or Cancelled.
        """
        if self.error is not None:
            raise self.error
        return self.outputs


@dataclass(frozen=True, slots=True)
class StagePacing:
    """The timetable of emulated stages, on a clock `dilation` times slower than the chip's."""

    durations_us: tuple[tuple[float, ...], ...]
    """By step and replica; 0 leaves a step at its real time."""
    dilation: float = 1.0

    def __post_init__(self) -> None:
        check_settings(self)
        if not all(0 <= time_us < inf for time_us in chain.from_iterable(self.durations_us)):
            times = shorten(self.durations_us)
            raise BadInput(f"durations_us is {times}, pace of a pipeline, times begin at 0")
        if not 0 < self.dilation < inf:
            raise BadInput(f"dilation is {self.dilation:g}, pace of a pipeline, needed is above 0")


def no_copy(values: Values) -> None:
    """Do nothing: stands for a copy whose time is emulated."""


class ItemBuffer:
    """A ring of places for items, which are found by their number until they are taken."""

    def __init__(
        self,
        stage_graph: StageGraph,
        names: Sequence[Sequence[tuple[str, ...]]],
        places: int,
        open_: Open,
        stops: bool,
        pace: StagePacing | None,
        traced: int,
    ) -> None:
        """Create the buffer. `names`: the processors of each replica of each stage; `traced`: how
        many items traces have; `stops`: whether the first item that fails is the last one.
        """
        self._stage_graph, self._open, self._stops, self._pace = stage_graph, open_, stops, pace
        self._places: list[InFlightItem | None] = [None] * places
        self._dead: list[tuple[str, ...]] = [() for _ in stage_graph]
        self._clock = ChipClock(perf_counter(), pace.dilation if pace else 1.0)
        self._timetable = Timetable()
        self.names = names
        self.records: list[list[WorkerRecord]] = []
        self.opened: dict[tuple[int, int], SubgraphStage | PythonStage] = {}
        self._changes: dict[tuple[int, int], deque[tuple[int, dict[str, Any]]]] = {}
        """By worker: from which item on which sub-graphs are computed by something else."""
        for stage, replica_names in enumerate(names):
            self.records.append([WorkerRecord(spans=deque(maxlen=traced)) for _ in replica_names])
            self._changes |= {(stage, replica): deque() for replica in range(len(replica_names))}
        self.stopped_by: int | None = None
        """The item that failed, where that stops the pipeline."""
        self.cancelled_from: int | None = None

    def forget(self, tensors: Sequence[tuple[str, ...]]) -> None:
        """Drop these tensors of an item when it has passed a stage."""
        self._dead = list(tensors)

    def put(self, item: int, values: Values) -> None:
        """Put the values of an item into its place."""
        due_us = [0.0] * len(self._stage_graph) if self._pace else []
        self._places[item % len(self._places)] = InFlightItem(values, perf_counter(), due_us)

    def at(self, item: int) -> InFlightItem:
        """Return an item that is in its place."""
        entry = self._places[item % len(self._places)]
        assert entry is not None
        return entry

    def drop(self, item: int) -> None:
        """Forget an item."""
        self._places[item % len(self._places)] = None

    def replace_from(
        self, item: int, subgraph: str, backends: Mapping[tuple[int, int], Any]
    ) -> None:
        """Compute a sub-graph by these, by worker, from `item` on, which nobody has begun.

        What was to be used from there on is forgotten.
        """
        for worker, backend in backends.items():
            changes = self._changes[worker]
            if changes and changes[-1][0] == item:
                changes[-1][1][subgraph] = backend
            else:
                changes.append((item, {subgraph: backend}))

    def stage_function(self, stage: int, replica: int) -> StageFunction:
        """Return what a worker does with each item; loads its files on the calling thread."""
        record, changes = self.records[stage][replica], self._changes[stage, replica]
        work = self._work(stage, replica)
        dead, places = self._dead[stage], self._places
        run = self._run_untimed if self._duration_us(stage, replica) is None else self._run_timed

        def compute(item: int) -> None:
            entry = places[item % len(places)]
            assert entry is not None
            while isinstance(work, SubgraphStage) and changes and changes[0][0] <= item:
                work.replace(changes.popleft()[1])
            if entry.error is None:
                entry.error = self._skip_reason(item)
            if entry.error is None:
                began_s, ended_s = run(stage, replica, item, entry, work)
                record.items += 1
                record.busy_s += ended_s - began_s
                record.recent_s.append(ended_s - began_s)
                record.spans.append((began_s, ended_s, item))
                entry.ended_s = max(entry.ended_s, ended_s)  # the last of stages side by side
            for name in dead:
                entry.values.pop(name, None)

        return compute

    def _run_untimed(
        self, stage: int, replica: int, item: int, entry: InFlightItem, work: Work
    ) -> tuple[float, float]:
        """Do the work; return its begin and end."""
        began_s = perf_counter()
        try:
            work(entry.values)
        except BaseException as error:  # sys.exit(), too, ends its item and not the pipeline
            self._fail(entry, item, stage, replica, error)
        ended_s = perf_counter()
        if entry.due_us:
            entry.due_us[stage] = self._clock.us(ended_s)
        return began_s, ended_s

    def _run_timed(
        self, stage: int, replica: int, item: int, entry: InFlightItem, work: Work
    ) -> tuple[float, float]:
        """Book a time slot, do the work, wait for the slot's end; return its begin and end.

        A late start is made up for, but nothing starts before its item was pushed.
        """
        due_us = [entry.due_us[feeder] for feeder in self._stage_graph[stage].feeders]
        started_s = max(entry.pushed_s, perf_counter() - MADE_UP_S)
        ready_us = max((self._clock.us(started_s), *due_us))
        duration_us = self._duration_us(stage, replica) or 0.0
        slot = self._timetable.book(self.names[stage][replica], ready_us, duration_us)
        start_s, end_s = map(self._clock.at_s, slot)
        _, ended_s = self._run_untimed(stage, replica, item, entry, work)
        if ended_s > end_s:
            self.records[stage][replica].late += 1
            entry.late = True
        sleep_until(end_s)
        entry.due_us[stage] = slot[1]
        return start_s, end_s

    def _duration_us(self, stage: int, replica: int) -> float | None:
        """Return the emulated time of a worker's item; None where it takes what it takes."""
        if self._pace is None:
            return None
        duration_us = self._pace.durations_us[stage][replica]
        return duration_us if duration_us or self._stage_graph[stage].part else None

    def _work(self, stage: int, replica: int) -> Work:
        """Return the work of a stage, or of a copy, which only takes its time where emulated."""
        node = self._stage_graph[stage]
        if not node.part:
            function = self.opened[stage, replica] = self._open(node.stage, replica)
            return function
        return no_copy if self._pace else self._copy(stage, replica)

    def _copy(self, number: int, replica: int) -> Work:
        """Return the copy of an item; the stage that it belongs to may be loaded later."""
        into = self._stage_graph[number].part == IN
        stage = number + (1 if into else -1)

        def copy(values: Values) -> None:
            subgraphs = self.opened[stage, replica]
            assert isinstance(subgraphs, SubgraphStage)
            (subgraphs.enter if into else subgraphs.leave)(values)

        return copy

    def _skip_reason(self, item: int) -> Exception | None:
        """Return why an item is not wanted any more, None while it is."""
        reason = ""
        if self.stopped_by is not None and item > self.stopped_by:
            reason = f"item {self.stopped_by} failed and it stops there"
        elif self.cancelled_from is not None and item >= self.cancelled_from:
            reason = "it has been closed"
        return Cancelled(f"item {item} was not finished, pipeline, {reason}") if reason else None

    def _fail(
        self, entry: InFlightItem, item: int, stage: int, replica: int, error: BaseException
    ) -> None:
        node = self._stage_graph[stage]
        where = f"stage {node.stage}{', ' if node.part else ''}{node.part}"
        what = f"item {item} failed, {where}, {describe_error(error)}"
        entry.error = StageFailed(what, node.stage, item)
        entry.error.__cause__ = error
        self.records[stage][replica].failed += 1
        if self._stops and (self.stopped_by is None or item < self.stopped_by):
            self.stopped_by = item

    def spans(self, origin_s: float, dilation: float) -> list[Span]:
        """Return spans of the last items by their ends, in us of the chip since `origin_s`."""
        clock, spans = ChipClock(origin_s, dilation), list[Span]()
        for node, records, names in zip(self._stage_graph, self.records, self.names, strict=True):
            for record, processors in zip(records, names, strict=True):
                for began_s, ended_s, item in tuple(record.spans):
                    task = Task(task_name(node.name, item), node.name, request=item)
                    start_us, end_us = clock.us(began_s), clock.us(ended_s)
                    spans.append(Span(start_us, end_us, task, worker_name(processors)))
        return sorted(spans, key=lambda span: span.end_us)
