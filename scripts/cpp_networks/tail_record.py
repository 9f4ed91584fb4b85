"""What the program `arrivals` did, as the record of a server, whole or of one of two turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nnstretch.files.workload.service_record import (
    RecordedApplication,
    RecordedKind,
    RecordedProcessor,
    RecordedRequest,
    RecordedTask,
    RecordHeader,
    ServiceRecord,
)

PAUSE = 0.5
"""Of a block, after it."""


def record_of_spans(
    graphs: Mapping[str, Mapping[str, Any]], spans: Path, policy: str
) -> ServiceRecord:
    """Return the record of inferences of networks whose tasks are given as graphs."""
    names = list(graphs)
    elements = dict(graphs[names[0]]["processors"])
    inferences: list[tuple[str, float, float]] = []
    tasks: dict[int, list[RecordedTask]] = {}
    for line in spans.read_text().splitlines():
        kind, *words = line.split()
        if kind == "inference":
            inferences.append((names[int(words[0])], float(words[1]), float(words[2])))
            continue
        number, task, element = (int(word) for word in words[:3])
        done = RecordedTask(
            graphs[inferences[number][0]]["tasks"][task],
            list(elements)[element],
            *(float(words[3]), float(words[4])),
        )
        tasks.setdefault(number, []).append(done)
    requests: list[RecordedRequest] = []
    for number, (name, due_us, submitted_us) in enumerate(inferences):
        ran = tuple(sorted(tasks[number], key=lambda task: task.end_us))
        times_us = due_us, submitted_us, ran[-1].end_us
        requests.append(RecordedRequest(number, name, *times_us, "answered", None, 0, ran))
    header = RecordHeader(
        *("0", "arrivals", policy, True, False, 0),
        tuple(RecordedProcessor(name, kind) for name, kind in elements.items()),
        tuple(application_of(name, graph) for name, graph in graphs.items()),
    )
    return ServiceRecord(header, tuple(sorted(requests, key=lambda request: request.ended_us)))


def application_of(name: str, graph: Mapping[str, Any]) -> RecordedApplication:
    """Return a network as the application of a record."""
    needs: dict[str, list[str]] = {task: [] for task in graph["tasks"]}
    for edge in graph["edges"]:
        needs[edge["to"]].append(edge["from"])
    kinds = tuple(
        RecordedKind(task, tuple(needs[task]), None, graph["cost"][task]) for task in graph["tasks"]
    )
    return RecordedApplication(name, 0, None, None, kinds)


@dataclass(frozen=True)
class Turns:
    """Blocks of two drawings of arrivals in turn, with a pause after each in which all end."""

    block_ms: float

    @property
    def period_ms(self) -> float:
        """Return from the begin of a block to that of the other drawing's."""
        return (1 + PAUSE) * self.block_ms

    def turn(self, due_ms: float) -> int:
        """Return of which drawing an inference is, 0 for the one that begins."""
        return int(due_ms // self.period_ms) % 2

    def due_ms(self, times_ms: Sequence[float], turn: int) -> list[float]:
        """Return when inferences of a drawing arrive."""
        blocks = [divmod(at_ms, self.block_ms) for at_ms in times_ms]
        return [(2 * block + turn) * self.period_ms + rest_ms for block, rest_ms in blocks]

    def paused_ms(self, times_ms: Sequence[float]) -> list[float]:
        """Return the times of a drawing with pauses alone, without the other drawing's blocks."""
        blocks = [divmod(at_ms, self.block_ms) for at_ms in times_ms]
        return [block * self.period_ms + rest_ms for block, rest_ms in blocks]

    def overran(self, record: ServiceRecord) -> bool:
        """Return whether an inference ended after the next block had begun."""
        period_us = 1000 * self.period_ms
        return any(
            request.ended_us >= (request.arrived_us // period_us + 1) * period_us
            for request in record.requests
        )

    def record(self, record: ServiceRecord, turn: int) -> ServiceRecord:
        """Return the record of one drawing, as if the other had not been there."""
        period_us = 1000 * self.period_ms
        requests: list[RecordedRequest] = []
        for request in record.requests:
            period = int(request.arrived_us // period_us)
            if self.turn(request.arrived_us / 1000) == turn:
                requests.append(moved(request, -(period - period // 2) * period_us))
        return replace(record, requests=tuple(requests))


def moved(request: RecordedRequest, by_us: float) -> RecordedRequest:
    """Return a request at another time."""
    return replace(
        request,
        arrived_us=request.arrived_us + by_us,
        admitted_us=None if request.admitted_us is None else request.admitted_us + by_us,
        ended_us=request.ended_us + by_us,
        tasks=tuple(
            replace(task, start_us=task.start_us + by_us, end_us=task.end_us + by_us)
            for task in request.tasks
        ),
    )
