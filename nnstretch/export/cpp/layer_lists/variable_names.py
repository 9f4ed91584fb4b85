"""What a network's `forward` calls the values it assigns, by the lines that made its operators."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable, Iterator, Mapping

FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in forward\n')
"""The first frame of an operator's stack: the forward of the network itself."""
Statement = tuple[str, int, str]
"""File, first line, and the variable that is assigned."""


def variable_names(stack_traces: Mapping[str, str], taken: Iterable[str]) -> dict[str, str]:
    """Return the variable of the last value that each assignment computes.

    A variable that several statements assign, or that is `taken`, names no value. Values of
    networks without source have no entry.
    """
    assignments: dict[str, dict[tuple[int, int], str]] = {}
    last: dict[Statement, str] = {}
    for value, trace in stack_traces.items():
        frame = FRAME.match(trace.lstrip())
        if frame is None:
            continue
        file = frame["file"]
        if file not in assignments:
            assignments[file] = dict(assignments_of(file))
        line = int(frame["line"])
        for (first, end), variable in assignments[file].items():
            if first <= line <= end:
                last.pop((file, first, variable), None)
                last[file, first, variable] = value
    assigned = [variable for _, _, variable in last]
    reserved = set(taken)
    names: dict[str, str] = {}
    for (_, _, variable), value in last.items():
        if assigned.count(variable) == 1 and variable not in reserved:
            names[value] = variable
    return names


def assignments_of(file: str) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield the lines and the variable of each assignment to one variable."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return
    for statement in ast.walk(tree):
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        target = statement.targets[0]
        if isinstance(target, ast.Name) and not isinstance(statement.value, ast.Tuple | ast.List):
            lines = (statement.lineno, statement.end_lineno or statement.lineno)
            yield lines, target.id
