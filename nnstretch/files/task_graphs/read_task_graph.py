"""Which form a task graph's file has, and the processors that the command line names."""

from __future__ import annotations

import re
from pathlib import Path

from nnstretch.errors import BadInput, BrokenFile, BrokenGraph
from nnstretch.files.checked import checked
from nnstretch.files.json_text import read_json
from nnstretch.files.read import as_path, read_text
from nnstretch.files.task_graphs.cedr_dag import decode_cedr_dag, processors_of_counts
from nnstretch.files.task_graphs.cost_table import MOST_PROCESSORS, decode_cost_table
from nnstretch.files.task_graphs.standard import parse_standard_task_graph
from nnstretch.task_graph import TaskGraph

MOST_BYTES = 256 << 20


@checked
def read_task_graph(path: str | Path, processors: str | None = None) -> TaskGraph:
    """Read a `.stg` file, CEDR's DAG-mode JSON, or JSON with tasks or a queue and their costs.

    `processors`, for files that name none: a number, or types with counts (`cpu=3,fft=1`).

    Raises UnknownName for no file, BrokenFile for one that is damaged or contradicts itself,
    BadInput where the processors do not fit its form.
    """
    path = as_path(path, "task graph")
    try:
        return _read(path, processors)
    except BrokenGraph as fault:
        raise BrokenFile(f"{path}, {fault}") from None


def _read(path: Path, processors: str | None) -> TaskGraph:
    if path.suffix == ".stg":
        if processors is None:
            raise BadInput(f"--processors is missing, {path}, a .stg file names no processors")
        pool = processors_of_counts(processor_counts(processors))
        text = read_text(path, "task graph", MOST_BYTES)
        return parse_standard_task_graph(text, pool, path.stem, str(path))
    document = read_json(path, MOST_BYTES)
    if isinstance(document, dict) and "DAG" in document:
        counts = None if processors is None else processor_counts(processors)
        return decode_cedr_dag(document, counts, str(path))
    if processors is not None:
        raise BadInput(f"--processors is {processors}, {path}, the file names its own processors")
    return decode_cost_table(document, str(path))


def processor_counts(text: str) -> dict[str, int]:
    """Parse `3` (of type cpu) or `cpu=3,fft=1`. Raises BadInput."""
    counts: dict[str, int] = {}
    for part in text.split(","):
        kind, _, count = part.strip().rpartition("=")
        kind = kind.strip() or "cpu"
        if not re.fullmatch(r"[0-9]{1,6}", count) or kind in counts:
            raise BadInput(
                f"--processors is {text!r}, command line, write a number or types with counts such"
                " as cpu=3,fft=1"
            )
        counts[kind] = int(count)
    if not 1 <= sum(counts.values()) <= MOST_PROCESSORS:
        raise BadInput(
            f"--processors is {text}, command line, needed are 1 to {MOST_PROCESSORS} processors"
        )
    return counts
