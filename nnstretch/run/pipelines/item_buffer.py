"""The items on their way through a pipeline, and what workers do when one comes to them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from nnstretch.errors import Cancelled, StageFailed, one_line
from nnstretch.run.pipelines.stage_functions import PythonStage, SubgraphStage, Values
from nnstretch.schedule.cpu_affinity import sleep_until
from nnstretch.schedule.executors.pipeline import StageFunction
from nnstretch.schedule.pipeline_graph import IN, StageGraph, StageNode
from nnstretch.task import Task, task_name
from nnstretch.trace import Span

MADE_UP_S = 1e-3
"""How much of a late start an emulated stage makes up for."""
RECENT = 1024
"""Service times that are kept of every worker."""

Work = Callable[[Values], None]
"""What a step does with the tensors of an item."""
Open = Callable[[str, int], SubgraphStage | PythonStage]
"""Loads what a replica of a stage computes with."""


@dataclass(slots=True)
class InFlightItem:
    """One item on its way."""

    values: Values
    begun_s: float
    due_s: list[float]
    """By step, when its time was over on the timetable, or really where it has none.

    Empty where stages are not emulated.
    """
    ended_s: float = 0.0
    error: Exception | None = None


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

    def value(self) -> Any:
        """Return the outputs.

        Raises the item's error: StageFailed, with the stage's own error as its cause, or Cancelled.
        """
        if self.error is not None:
            raise self.error
        return self.outputs


@dataclass(slots=True)
class WorkerRecord:
    """What one worker has done so far; written by its thread alone."""

    items: int = 0
    failed: int = 0
    late: int = 0
    """Items whose numbers took longer than their time, where stages are emulated."""
    busy_s: float = 0.0
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    spans: deque[tuple[float, float, int]] = field(default_factory=deque)
    """Start, end and item of the last ones."""


@dataclass(frozen=True, slots=True)
class StagePacing:
    """The timetable of emulated stages, on a clock `dilation` times slower than the chip's."""

    durations_us: tuple[tuple[float, ...], ...]
    """By step and replica; 0 for what takes as long as it takes."""
    dilation: float = 1.0


def no_copy(values: Values) -> None:
    """Refuse a copy: numbers that are in one memory anyway need none."""


def worker_name(processors: tuple[str, ...]) -> str:
    """Return how traces and statistics name a worker: its processors, joined."""
    return "+".join(processors)


class ItemBuffer:
    """A ring of places for items.

    Whoever holds an item's number finds it; a place is free again when its item was taken.
    """

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
        """Create the buffer. `names`: on what each replica runs, for traces of the last `traced`
        items; `stops`.

        An item that fails is the last one.
        """
        self._stage_graph, self._open, self._stops, self._pace = stage_graph, open_, stops, pace
        self._places: list[InFlightItem | None] = [None] * places
        self._forget: list[tuple[str, ...]] = [() for _ in stage_graph]
        self.records = [
            [WorkerRecord(spans=deque(maxlen=traced)) for _ in replica_names]
            for replica_names in names
        ]
        self.names = names
        self.opened: dict[tuple[int, int], SubgraphStage | PythonStage] = {}
        self.changes: dict[tuple[int, int], deque[tuple[int, str, Any]]] = {
            (s, r): deque()
            for s, replica_names in enumerate(names)
            for r in range(len(replica_names))
        }
        """By worker: from which item on a sub-graph is computed by something else."""
        self._free_s: dict[str, float] = {}
        """By emulated processor, until when it is booked."""
        self._booking = threading.Lock()
        self.stopped_by: int | None = None
        """The item that failed, where that stops the pipeline."""
        self.cancelled_from: int | None = None

    def forget(self, tensors: Sequence[tuple[str, ...]]) -> None:
        """Drop what an item need not hold any more behind a stage."""
        self._forget = list(tensors)

    def put(self, item: int, values: Values) -> None:
        """Put the values of an item into its place."""
        self._places[item % len(self._places)] = InFlightItem(
            values, perf_counter(), [0.0] * len(self._stage_graph) if self._pace else []
        )

    def take(self, item: int) -> InFlightItem:
        """Take an item out of its place."""
        place = item % len(self._places)
        entry = self._places[place]
        assert entry is not None
        self._places[place] = None
        return entry

    def stage_function(self, stage: int, replica: int) -> StageFunction:
        """Return what a worker does with each item.

        Loads its files on the thread that calls this.
        """
        record, changes, step = (
            self.records[stage][replica],
            self.changes[stage, replica],
            self._stage_graph[stage],
        )
        work = self._work(stage, replica)
        forget, book, places = self._forget[stage], self._book_time(stage, replica), self._places

        def one(item: int) -> None:
            entry = places[item % len(places)]
            assert entry is not None
            while isinstance(work, SubgraphStage) and changes and changes[0][0] <= item:
                work.replace(*changes.popleft()[1:])
            if entry.error is None:
                entry.error = self._skip_reason(item)
            if entry.error is None:
                began_s = perf_counter()
                slot = None if book is None else book(entry, began_s)
                try:
                    work(entry.values)
                except (
                    BaseException
                ) as error:  # sys.exit(), too, ends its item and not the pipeline
                    self._fail(entry, item, step, error)
                    record.failed += 1
                ended_s = perf_counter()
                if slot is not None:
                    record.late += ended_s > slot[1]
                    sleep_until(slot[1])
                    began_s, ended_s = slot
                elif entry.due_s:
                    entry.due_s[stage] = ended_s
                record.items += 1
                record.busy_s += ended_s - began_s
                record.recent_s.append(ended_s - began_s)
                record.spans.append((began_s, ended_s, item))
                entry.ended_s = ended_s
            for name in forget:
                entry.values.pop(name, None)

        return one

    def _work(self, number: int, replica: int) -> Work:
        """Return the work of a stage, or of a copy.

        Where stages are emulated a copy takes its time and does nothing.
        """
        step = self._stage_graph[number]
        if not step.part:
            function_ = self.opened[number, replica] = self._open(step.stage, replica)
            return function_
        return no_copy if self._pace else self._copy(number, replica)

    def _copy(self, number: int, replica: int) -> Work:
        """Return the copy of an item; the stage that it belongs to may be loaded later, by its own
        worker.

        No item comes before all are.
        """
        whose = number + (1 if self._stage_graph[number].part == IN else -1)
        into = self._stage_graph[number].part == IN

        def one(values: Values) -> None:
            graphs = self.opened[whose, replica]
            assert isinstance(graphs, SubgraphStage)
            (graphs.enter if into else graphs.leave)(values)

        return one

    def _book_time(
        self, stage: int, replica: int
    ) -> Callable[[InFlightItem, float], tuple[float, float]] | None:
        """Book an item's time on a worker's processors.

        When it begins and ends on the timetable.
        """
        if self._pace is None or not (
            self._pace.durations_us[stage][replica] or self._stage_graph[stage].part
        ):
            return None
        time_s = self._pace.durations_us[stage][replica] * self._pace.dilation / 1e6
        feeders, processors = self._stage_graph[stage].feeders, self.names[stage][replica]

        def book(entry: InFlightItem, began_s: float) -> tuple[float, float]:
            ready_s = max(began_s - MADE_UP_S, *(entry.due_s[feeder] for feeder in feeders), 0.0)
            with self._booking:  # stages on one processor take turns
                start_s = max(ready_s, *(self._free_s.get(name, 0.0) for name in processors))
                self._free_s |= dict.fromkeys(processors, start_s + time_s)
            entry.due_s[stage] = start_s + time_s
            return start_s, start_s + time_s

        return book

    def _skip_reason(self, item: int) -> Exception | None:
        """Return why an item is not wanted any more, None while it is."""
        if self.stopped_by is not None and item > self.stopped_by:
            return Cancelled(
                f"item {item} was not finished, pipeline, item {self.stopped_by} failed and it"
                " stops there"
            )
        if self.cancelled_from is not None and item >= self.cancelled_from:
            return Cancelled(f"item {item} was not finished, pipeline, it has been closed")
        return None

    def _fail(self, entry: InFlightItem, item: int, step: StageNode, error: BaseException) -> None:
        where = f"stage {step.stage}{', ' if step.part else ''}{step.part}"
        entry.error = StageFailed(
            f"item {item} failed, {where}, {type(error).__name__}: {one_line(error)}",
            step.stage,
            item,
        )
        entry.error.__cause__ = error
        if self._stops and (self.stopped_by is None or item < self.stopped_by):
            self.stopped_by = item

    def spans(self, origin_s: float, dilation: float) -> list[Span]:
        """Return spans of the last items in the order of their ends, in us since `origin_s` on the
        chip's clock.
        """
        spans_ = [
            Span(
                (began - origin_s) * 1e6 / dilation,
                (ended - origin_s) * 1e6 / dilation,
                Task(task_name(step.name, item), step.name, request=item),
                worker_name(self.names[s][r]),
            )
            for s, step in enumerate(self._stage_graph)
            for r, record in enumerate(self.records[s])
            for began, ended, item in tuple(record.spans)
        ]
        return sorted(spans_, key=lambda span: span.end_us)
