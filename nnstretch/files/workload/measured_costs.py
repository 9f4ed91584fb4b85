"""What tasks really take on the processors of a host, as JSON: medians, samples, interference.

{"format": 1, "costs": "measured", "processors": ["cpu0", "cpu1"], "handover_us": 80, ...
 "tasks": [{"application": "detect", "task": "s0", "processor": "cpu0", "median_us": 5000,
            "samples_us": [4900, 5000, 5300], "beside": 1.2, "switched": 1.05,
            "crowded": 1.2}]}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Annotated

from nnstretch.errors import BadInput, BrokenFile
from nnstretch.files.atomic import write_text
from nnstretch.files.decode import decode
from nnstretch.files.json_text import parse_json, read_json
from nnstretch.files.limits import Length, OneOf, Range
from nnstretch.files.read import as_path
from nnstretch.plan import Name

KIND = "measured"
MOST_SAMPLES = 200
MOST_TASKS = 1_000_000
OF_THE_HOST = (
    *("decision_us", "handover_us", "answer_us", "wake_us"),
    *("few_under_way", "many_under_way"),
)
"""What a table says beside its tasks, as numbers."""
TimeUs = Annotated[float, Range(0, 1e12)]
LEAST_FACTOR, MOST_FACTOR = 0.1, 1000.0
Factor = Annotated[float, Range(LEAST_FACTOR, MOST_FACTOR)]


@dataclass(frozen=True, slots=True)
class MeasuredTask:
    """A task on a processor."""

    application: Name
    task: Name
    processor: Name
    median_us: TimeUs
    """While all other processors rest."""
    samples_us: Annotated[tuple[TimeUs, ...], Length(1, 100_000)]
    """Likewise, from the shortest to the longest."""
    beside: Factor = 1.0
    """How many times as long it takes while all other processors work, in the mean; below 1 by
    chance alone."""
    switched: Factor = 1.0
    """How many times as long where the processor's task before was none that it needs, likewise; of
    a task that needs others, with `few_under_way` instances."""
    crowded: Factor = 1.0
    """Likewise with `many_under_way` instances, where these are more."""


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """A host's table."""

    processors: Annotated[tuple[Name, ...], Length(1, 1000)]
    tasks: Annotated[tuple[MeasuredTask, ...], Length(1, MOST_TASKS)]
    decision_us: TimeUs = 0.0
    """From when the scheduler hears of something until a task is handed over."""
    handover_us: TimeUs = 0.0
    """From there until the task starts on an idle processor."""
    answer_us: TimeUs = 0.0
    """From the end of a task until the scheduler hears of it."""
    wake_us: TimeUs = 0.0
    """What a hand-over takes at least on a processor that has come to rest."""
    few_under_way: Annotated[int, Range(0, 1_000_000)] = 0
    """How many instances were under way where `switched` was measured."""
    many_under_way: Annotated[int, Range(0, 1_000_000)] = 0
    """Likewise for `crowded`."""
    pace_window_us: Annotated[float, Range(1, 1e12)] = 50_000.0
    pace: Annotated[tuple[Factor, ...], Length(0, 100_000)] = ()
    """In windows of time in a row, how many times as long tasks took as in the mean: a host has
    slow moments that last."""
    format: Annotated[int, Range(1, 1)] = 1
    costs: Annotated[str, OneOf((KIND,))] = KIND

    def __post_init__(self) -> None:
        seen: set[tuple[str, str, str]] = set()
        for row in self.tasks:
            key = row.application, row.task, row.processor
            if row.processor not in self.processors:
                raise ValueError(f"{row.task} on {row.processor}, the table has no such processor")
            if key in seen:
                raise ValueError(f"{row.task} of {row.application} on {row.processor}, twice")
            seen.add(key)


def measured_task(
    application: str, task: str, processor: str, samples_us: list[float], beside: float
) -> MeasuredTask:
    """Return a row; of many samples, those in the middle of equal parts of all are kept.

    So their mean is that of all.
    """
    ordered = sorted(samples_us)
    count = min(len(ordered), MOST_SAMPLES)
    kept = [ordered[(2 * number + 1) * len(ordered) // (2 * count)] for number in range(count)]
    return MeasuredTask(application, task, processor, median(ordered), tuple(kept), beside)


def read_measured_costs(path: str | Path) -> MeasuredCosts:
    """Read a table. Raises UnknownName for no file, BrokenFile for one that is no such table."""
    path = as_path(path, "costs")
    data = read_json(path)
    try:
        costs: MeasuredCosts = decode(MeasuredCosts, data, "costs")
    except ValueError as error:
        raise BrokenFile(f"{path}, {error}") from None
    return costs


def join_costs(tables: Sequence[MeasuredCosts]) -> MeasuredCosts:
    """Return one table of several of one host: its own times and counts are the most of each.

    Its pace is that of the first that tells one.

    Raises BadInput for tables of other processors, and for a task that is in two.
    """
    first = tables[0]
    for table in tables:
        if table.processors != first.processors:
            raise BadInput(
                f"tables of {', '.join(first.processors)} and of {', '.join(table.processors)},"
                " costs, they are of one host"
            )
    most = {name: max(getattr(table, name) for table in tables) for name in OF_THE_HOST}
    tasks = tuple(chain.from_iterable(table.tasks for table in tables))
    paced = next((table for table in tables if table.pace), first)
    try:
        return replace(paced, tasks=tasks, **most)
    except ValueError as error:
        raise BadInput(f"costs, {error}") from None


def write_measured_costs(path: Path, costs: MeasuredCosts) -> None:
    """Write a table, whole or not at all.

    Raises BadInput for what no table may hold, OSError where the disk does not take it.
    """
    try:
        text = json.dumps(asdict(costs), allow_nan=False)
        decode(MeasuredCosts, parse_json(text.encode()), "costs")
    except ValueError as error:
        raise BadInput(f"cannot write {path}, {error}") from None
    write_text(path, text + "\n")
