"""Records of a server: what was written is read, and nothing that contradicts itself is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.files.workload.service_record import (
    ENDS,
    RecordedApplication,
    RecordedKind,
    RecordedProcessor,
    RecordedRequest,
    RecordedTask,
    RecordHeader,
    RecordWriter,
    read_record,
)

CPUS = (RecordedProcessor("cpu0", "cpu"), RecordedProcessor("cpu1", "cpu"))
TASKS = (
    RecordedKind("a", (), None, {"cpu0": 10.0, "cpu1": 11.5}),
    RecordedKind("b", ("a",), "cpu1", {"cpu1": 3.0}),
)
HEADER = RecordHeader(
    *("0.1.0", "w.yaml", "eft", True, True, 0, CPUS),
    (RecordedApplication("net", 0, None, 16, TASKS),),
)
RAN = RecordedTask("a", "cpu0", 12.0, 20.0)
REQUEST = RecordedRequest(0, "net", 10.0, 11.0, 21.0, "answered", None, 0, (RAN,))

times = st.floats(0, 1e9)


def ran(came_us: float, tasks: list[tuple[str, float, float]]) -> Iterator[RecordedTask]:
    """The first tasks of a request, each when those before it have ended."""
    free_us = came_us
    for name, (cpu, waited_us, took_us) in zip("ab", tasks, strict=False):
        start_us = free_us + waited_us
        free_us = start_us + took_us
        yield RecordedTask(name, cpu, start_us, free_us)


requests = st.builds(
    lambda number, came, took, end, deadline, priority, tasks: RecordedRequest(
        *(number, "net", came, None if end == "refused" else came, came + took, end),
        *(deadline, priority, tuple(ran(came, tasks))),
    ),
    *(st.integers(0, 1 << 40), times, times, st.sampled_from(ENDS)),
    *(st.none() | times, st.integers(-100, 100)),
    st.lists(st.tuples(st.sampled_from(["cpu0", "cpu1"]), times, times), max_size=2),
)


def written(path: Path, rows: list[RecordedRequest], header: RecordHeader = HEADER) -> Path:
    writer = RecordWriter(path, header)
    for row in rows:
        writer.add(row)
    writer.close()
    return path


@settings(max_examples=30, deadline=None)
@given(st.lists(requests, max_size=4, unique_by=lambda request: request.request))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list) -> None:
    path = written(tmp_path_factory.mktemp("r") / "r.jsonl", rows)
    record = read_record(path)
    assert record.header == HEADER
    assert list(record.requests) == rows


def test_a_line_that_a_kill_cut_off_is_dropped(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl", [REQUEST, replace(REQUEST, request=1)])
    path.write_bytes(path.read_bytes()[:-7])
    assert read_record(path).requests == (REQUEST,)


@pytest.mark.parametrize(
    ("line", "key", "value", "says"),
    [
        (0, "format", 2, "out of range"),
        (0, "record", "journal", "unknown record"),
        (0, "applications", [], "0 items"),
        (0, "processors", [{"name": "cpu0", "kind": "cpu"}] * 2, "cpu0 is there twice"),
        (1, "application", "other", "application other"),
        (1, "end", "lost", "unknown end"),
        (1, "ended_us", 9.0, "before it came"),
        (1, "color", 3, "unknown key"),
        (1, "arrived_us", "now", "expected float"),
        (1, "tasks", [{"task": "c", "processor": "cpu0", "start_us": 1, "end_us": 2}], "task c"),
        (1, "tasks", [{"task": "a", "processor": "gpu", "start_us": 1, "end_us": 2}], "gpu"),
        (1, "tasks", [{"task": "a", "processor": "cpu0", "start_us": 3, "end_us": 2}], "before it"),
        (2, "request", 0, "request 0 is there twice"),
    ],
)
def test_a_contradiction_is_refused_by_line(
    tmp_path: Path, line: int, key: str, value: object, says: str
) -> None:
    path = written(tmp_path / "r.jsonl", [REQUEST, replace(REQUEST, request=1)])
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    rows[line][key] = value
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(BrokenFile, match=says) as refusal:
        read_record(path)
    assert f"line {line + 1}" in str(refusal.value)


def test_a_need_that_is_not_there_is_refused(tmp_path: Path) -> None:
    application = replace(HEADER.applications[0], tasks=(replace(TASKS[0], needs=("z",)),))
    path = written(tmp_path / "r.jsonl", [], replace(HEADER, applications=(application,)))
    with pytest.raises(BrokenFile, match="a of net needs z"):
        read_record(path)


def test_no_file_no_header_and_no_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no record"):
        read_record(tmp_path / "none")
    (tmp_path / "empty").write_text("")
    with pytest.raises(BrokenFile, match="no header"):
        read_record(tmp_path / "empty")
    with pytest.raises(BadInput, match="cannot write"):
        RecordWriter(tmp_path / "none" / "r.jsonl", HEADER)


def test_a_record_that_is_there_or_being_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    writer = RecordWriter(path, HEADER)
    with pytest.raises(BadInput, match="another process writes it, name another file"):
        RecordWriter(path, HEADER)
    writer.close()
    before = path.read_bytes()
    with pytest.raises(BadInput, match="it holds something already, name another file"):
        RecordWriter(path, HEADER)
    assert path.read_bytes() == before
