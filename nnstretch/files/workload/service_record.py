"""What a server did, as JSON lines: a header, then a line for each request when it has ended.

Times are microseconds since the server began, one clock for arrivals and tasks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TextIO

from nnstretch.bundle.manifest import QUEUE_DEPTH
from nnstretch.errors import BadInput, BrokenFile
from nnstretch.files.journal import decode_row, is_locked
from nnstretch.files.json_text import parse_json
from nnstretch.files.limits import Length, OneOf, Range
from nnstretch.files.read import MOST_MODEL_BYTES, as_path, read_bytes
from nnstretch.plan import Name

FORMAT = 1
KIND = "nnstretch serve"
ENDS = ("answered", "missed", "dropped", "failed", "cancelled", "refused")
"""`dropped`: given up by the policy; `refused`: too many were open."""
MOST_NAMES = 1_000_000
TimeUs = Annotated[float, Range(0, 1e18)]
Priority = Annotated[int, Range(-10_000_000, 10_000_000)]


@dataclass(frozen=True, slots=True)
class RecordedProcessor:
    """A processor of the pool."""

    name: Name
    kind: Name
    queue_depth: Annotated[int, Range(1, 1_000)] = QUEUE_DEPTH
    """Tasks that it may be given at a time."""


@dataclass(frozen=True, slots=True)
class RecordedKind:
    """A task that every request of an application has, and what it was believed to cost."""

    name: Name
    needs: Annotated[tuple[Name, ...], Length(0, MOST_NAMES)]
    processor: Name | None
    """Where it was kept; None where the policy chose."""
    costs_us: dict[Name, TimeUs]
    """By processor, before anything ran; one that is absent cannot run it."""


@dataclass(frozen=True, slots=True)
class RecordedApplication:
    """An application, and what its requests had in common."""

    name: Name
    priority: Priority
    deadline_us: TimeUs | None
    """From arrival."""
    queue_limit: Annotated[int, Range(1, 1_000_000_000)] | None
    tasks: Annotated[tuple[RecordedKind, ...], Length(1, MOST_NAMES)]


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """Everything that a server depended on."""

    version: Name
    """Of the program that wrote it."""
    workload: Name
    policy: Name
    queueing: bool
    correction: bool
    seed: Annotated[int, Range(0, (1 << 63) - 1)]
    processors: Annotated[tuple[RecordedProcessor, ...], Length(1, MOST_NAMES)]
    applications: Annotated[tuple[RecordedApplication, ...], Length(1, MOST_NAMES)]
    format: Annotated[int, Range(FORMAT, FORMAT)] = FORMAT
    record: Annotated[str, OneOf((KIND,))] = KIND


@dataclass(frozen=True, slots=True)
class RecordedTask:
    """A task that has run."""

    task: Name
    processor: Name
    start_us: TimeUs
    end_us: TimeUs

    def __post_init__(self) -> None:
        if self.end_us < self.start_us:
            raise ValueError(f"task {self.task} ends at {self.end_us:g} us, before it starts")


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request that has ended."""

    request: Annotated[int, Range(0, 1 << 62)]
    application: Name
    arrived_us: TimeUs
    """When it was whole and checked."""
    admitted_us: TimeUs | None
    """When the scheduler heard of it; None where it was refused."""
    ended_us: TimeUs
    end: Annotated[str, OneOf(ENDS)]
    deadline_us: TimeUs | None
    """On the server's clock."""
    priority: Priority
    tasks: Annotated[tuple[RecordedTask, ...], Length(0, MOST_NAMES)]
    """In the order of their ends, without tasks that ended after their request."""

    def __post_init__(self) -> None:
        if self.ended_us < self.arrived_us:
            raise ValueError(f"request {self.request} ends at {self.ended_us:g} us, before it came")

    @property
    def running_us(self) -> float:
        """Return the time in which tasks of it ran, once for those that ran at the same time."""
        total_us, until_us = 0.0, self.arrived_us
        for task in sorted(self.tasks, key=lambda task: task.start_us):
            total_us += max(0.0, task.end_us - max(task.start_us, until_us))
            until_us = max(until_us, task.end_us)
        return total_us


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """A record as it was read."""

    header: RecordHeader
    requests: tuple[RecordedRequest, ...]
    """In the order of their ends."""


REQUEST_FIELDS = tuple(field.name for field in fields(RecordedRequest) if field.name != "tasks")
TASK_FIELDS = tuple(field.name for field in fields(RecordedTask))


def request_row(request: RecordedRequest) -> dict[str, object]:
    """Return a request as a line holds it: what `asdict` returns, in a tenth of its time."""
    tasks = [{name: getattr(task, name) for name in TASK_FIELDS} for task in request.tasks]
    return {name: getattr(request, name) for name in REQUEST_FIELDS} | {"tasks": tasks}


class RecordWriter:
    """Writes a record line by line; what was flushed is whole, whatever happens later."""

    def __init__(self, path: Path, header: RecordHeader) -> None:
        """Begin a file. Raises BadInput where it cannot be written, or holds something."""
        self._path = as_path(path, "record")
        self._file = self._open()
        self._write(asdict(header))

    def _open(self) -> TextIO:
        try:
            file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise BadInput(f"cannot write {self._path}, record, {error.strerror}") from None
        why = "" if is_locked(file.fileno()) else "another process writes it"
        if not why and self._path.is_file() and self._path.stat().st_size:
            why = "it holds something already"
        if why:
            file.close()
            raise BadInput(f"cannot write {self._path}, record, {why}, name another file")
        return file

    def add(self, request: RecordedRequest) -> None:
        """Add a request. Raises BadInput where the disk does not take it."""
        self._write(request_row(request))

    def flush(self) -> None:
        """Hand what was added to the system. Raises BadInput where the disk does not take it."""
        try:
            self._file.flush()
        except OSError as error:
            raise self._refusal(error) from None

    def close(self) -> None:
        """Write everything to the disk and close the file. Raises BadInput."""
        if self._file.closed:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._refusal(error) from None
        finally:
            with suppress(OSError):  # what could not be flushed fails once more
                self._file.close()

    def _write(self, row: dict[str, object]) -> None:
        try:
            self._file.write(json.dumps(row, allow_nan=False) + "\n")
        except OSError as error:
            raise self._refusal(error) from None

    def _refusal(self, error: OSError) -> BadInput:
        return BadInput(
            f"cannot write {self._path}, {error.strerror}, what was written before is kept"
        )


def read_record(path: str | Path) -> ServiceRecord:
    """Read a record; a last line that a kill cut off is dropped.

    Raises UnknownName for no file, BrokenFile for one that is no record or contradicts itself.
    """
    path = as_path(path, "record")
    data = read_bytes(path, "record", MOST_MODEL_BYTES)
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    if not lines:
        raise BrokenFile(f"no header, {path}, it is no record of a server")
    header: RecordHeader = decode_line(RecordHeader, lines[0], path, 1)
    check_header(header, path)
    return ServiceRecord(header, tuple(requests_of(lines[1:], header, path)))


def decode_line(kind: type, line: bytes, path: Path, number: int) -> Any:
    """Decode a line. Raises BrokenFile."""
    try:
        row = parse_json(line)
    except ValueError as error:
        raise BrokenFile(f"not JSON, {path} line {number}, {str(error)[:100]}") from None
    return decode_row(kind, row, path, number)


def check_header(header: RecordHeader, path: Path) -> None:
    """Check that names are not there twice and needs are. Raises BrokenFile."""
    check_once([processor.name for processor in header.processors], "processor", path)
    check_once([application.name for application in header.applications], "application", path)
    for application in header.applications:
        names = [task.name for task in application.tasks]
        check_once(names, f"task of {application.name}", path)
        known = set(names)
        for task in application.tasks:
            for need in task.needs:
                if need not in known:
                    raise BrokenFile(
                        f"{task.name} of {application.name} needs {need}, {path} line 1, there is"
                        " no such task"
                    )


def check_once(names: list[str], what: str, path: Path) -> None:
    """Check that each name is there once. Raises BrokenFile naming one that is not."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BrokenFile(f"{what} {name} is there twice, {path} line 1, each is there once")
        seen.add(name)


def requests_of(lines: list[bytes], header: RecordHeader, path: Path) -> Iterator[RecordedRequest]:
    """Yield the requests of a file. Raises BrokenFile for one that the header does not know."""
    processors = {processor.name for processor in header.processors}
    needs: dict[str, dict[str, tuple[str, ...]]] = {}
    for application in header.applications:
        needs[application.name] = {task.name: task.needs for task in application.tasks}
    numbers: set[int] = set()
    for number, line in enumerate(lines, 2):
        request: RecordedRequest = decode_line(RecordedRequest, line, path, number)
        where = f"{path} line {number}"
        if request.request in numbers:
            raise BrokenFile(f"request {request.request} is there twice, {where}, each ends once")
        numbers.add(request.request)
        if request.application not in needs:
            raise BrokenFile(f"application {request.application}, {where}, the header has no such")
        check_tasks(request, needs[request.application], processors, where)
        yield request


def check_tasks(
    request: RecordedRequest,
    needs: Mapping[str, tuple[str, ...]],
    processors: Collection[str],
    where: str,
) -> None:
    """Check the tasks of a request against those of its application. Raises BrokenFile."""
    ran = {task.task for task in request.tasks}
    if len(ran) < len(request.tasks):
        raise BrokenFile(f"a task of request {request.request} twice, {where}, each runs once")
    for task in request.tasks:
        if task.task not in needs:
            raise BrokenFile(f"task {task.task}, {where}, {request.application} has no such")
        if task.processor not in processors:
            raise BrokenFile(f"processor {task.processor}, {where}, the header has no such")
        if missing := [need for need in needs[task.task] if need not in ran]:
            raise BrokenFile(f"task {task.task}, {where}, it needs {missing[0]}, which did not run")
        if task.start_us < request.arrived_us:
            raise BrokenFile(f"task {task.task}, {where}, it starts before its request arrived")
