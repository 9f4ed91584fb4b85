"""Files of the Standard Task Graph Set (Kasahara laboratory, Waseda University), `.stg`.

The number of tasks, with or without the two dummies at its ends; then per line a task, its
processing time, the number of its predecessors, and these. Lines behind `#` are comments.
Processors are identical, and data costs nothing.
"""

from __future__ import annotations

import re

from nnstretch.errors import BrokenFile
from nnstretch.files.task_graphs.cost_table import check_prices
from nnstretch.soc import Processor
from nnstretch.task import Task, WorkKey
from nnstretch.task_graph import TaskGraph

DUMMIES = 2
MOST_DIGITS = 15


def parse_standard_task_graph(
    text: str, processors: tuple[Processor, ...], name: str, where: str
) -> TaskGraph:
    """Parse a file's text; tasks bear their numbers as names. Raises BrokenFile."""
    rows: list[tuple[int, list[int]]] = []
    for number, content in enumerate(text.splitlines(), 1):
        words = content.partition("#")[0].split()
        if words:
            rows.append((number, _whole_numbers(words, f"{where} line {number}")))
    if not rows:
        raise BrokenFile(f"{where}, empty, needed is the number of tasks")
    (line, header), *body = rows
    if len(header) != 1:
        raise BrokenFile(f"{where} line {line}, {len(header)} numbers, needed is that of the tasks")
    if len(body) not in (header[0], header[0] + DUMMIES):
        raise BrokenFile(
            f"{where} has {len(body)} tasks, line {line} says {header[0]}, with or without two"
            " dummies"
        )
    check_prices(len(body), len(processors), where)
    tasks: list[Task] = []
    costs_us: dict[tuple[WorkKey, str], float] = {}
    for line, row in body:
        task, time = _task(row, len(tasks), len(body), f"{where} line {line}")
        tasks.append(task)
        for processor in processors:
            costs_us[task.name, processor.name] = float(time)
    return TaskGraph(name, tuple(tasks), processors, costs_us)


def _whole_numbers(words: list[str], where: str) -> list[int]:
    for word in words:
        if not re.fullmatch(rf"[0-9]{{1,{MOST_DIGITS}}}", word):
            raise BrokenFile(f"{where}, {word[:40]!r}, needed is a whole number of at least 0")
    return [int(word) for word in words]


def _task(row: list[int], number: int, count: int, where: str) -> tuple[Task, int]:
    """Return a task and its time."""
    if len(row) < 3 or len(row) != 3 + row[2]:
        raise BrokenFile(
            f"{where}, {len(row)} numbers, needed are task, time, number of predecessors, and these"
        )
    if row[0] != number:
        raise BrokenFile(f"{where}, task {row[0]}, needed is task {number}")
    for need in row[3:]:
        if need >= count:
            raise BrokenFile(
                f"{where}, task {number} needs {need}, which is not among the {count} tasks"
            )
    needs = frozenset(str(need) for need in row[3:])
    if len(needs) < row[2]:
        raise BrokenFile(f"{where}, task {number} names a predecessor twice")
    return Task(str(number), str(number), needs), row[1]
