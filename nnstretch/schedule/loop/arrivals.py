"""When the data of a task are on each processor: what its predecessors wrote has to be copied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nnstretch.task import Task, WorkKey
from nnstretch.trace import Span

Transfers = Mapping[tuple[WorkKey, WorkKey], float]
"""Microseconds by (what writes, what reads), paid unless both are on one processor."""


class Arrivals:
    """Where and when predecessors ended, of tasks that have not started."""

    def __init__(self, transfers_us: Transfers, processors: int) -> None:
        self._transfers_us = transfers_us
        self._processors = processors
        self._rows: dict[str, list[float]] = {}

    def note(self, writer: Task, index: int, end_us: float, reader: Task) -> None:
        """Hear that what a task needs has ended on a processor."""
        copied_us = end_us + self._transfers_us.get((writer.work, reader.work), 0.0)
        row = self._rows.setdefault(reader.name, [0.0] * self._processors)
        for other in range(self._processors):
            there_us = end_us if other == index else copied_us
            row[other] = max(row[other], there_us)

    def note_end(self, span: Span, index: int, readers: Iterable[Task]) -> None:
        """Hear that a task has ended, whose data these tasks read."""
        for reader in readers:
            self.note(span.task, index, span.end_us, reader)
        self.forget(span.task.name)

    def row(self, task: Task) -> Sequence[float] | None:
        """Return when a task's data are on each processor; None where it reads none."""
        return self._rows.get(task.name)

    def ready_us(self, task: Task, index: int) -> float:
        """Return when a task's data are on one processor."""
        row = self._rows.get(task.name)
        return 0.0 if row is None else row[index]

    def forget(self, name: str) -> None:
        """Forget a task that has ended or was withdrawn."""
        self._rows.pop(name, None)
