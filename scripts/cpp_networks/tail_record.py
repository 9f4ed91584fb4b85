"""What the program `arrivals` did, as the record of a server, and how fast the host was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
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


def slowing_since(before: ServiceRecord, after: ServiceRecord) -> float:
    """Return how many times as long tasks took in a record as in one before it.

    Each task of a network counts by what it takes before and as often as it ran afterwards.
    """
    times_us = task_times_us(after)
    usual_us = {kind: fmean(times) for kind, times in task_times_us(before).items()}
    known = usual_us.keys() & times_us.keys()
    expected_us = sum(usual_us[kind] * len(times_us[kind]) for kind in known)
    return sum(sum(times_us[kind]) for kind in known) / expected_us


def task_times_us(record: ServiceRecord) -> dict[tuple[str, str], list[float]]:
    """Return what each run of each task of a network took."""
    times_us: dict[tuple[str, str], list[float]] = {}
    for request in record.requests:
        for task in request.tasks:
            times = times_us.setdefault((request.application, task.task), [])
            times.append(task.end_us - task.start_us)
    return times_us


def application_of(name: str, graph: Mapping[str, Any]) -> RecordedApplication:
    """Return a network as the application of a record."""
    needs: dict[str, list[str]] = {task: [] for task in graph["tasks"]}
    for edge in graph["edges"]:
        needs[edge["to"]].append(edge["from"])
    kinds = tuple(
        RecordedKind(task, tuple(needs[task]), None, graph["cost"][task]) for task in graph["tasks"]
    )
    return RecordedApplication(name, 0, None, None, kinds)
