"""Journals: JSON lines, only ever appended to, so that an interrupted run goes on where it stopped.

A last line that a kill cut off, or that another process is writing, is not read; any other must be
whole. Only who goes on with a journal cuts it off.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nnstretch.errors import BadInput, BrokenFile
from nnstretch.files.checked import checked
from nnstretch.files.decode import decode
from nnstretch.files.json_text import parse_json
from nnstretch.files.read import MOST_MODEL_BYTES, as_path, read_bytes

PATIENCE_S = 6.0
"""How long workers of a killed process may stay, which hold what it had locked."""


@checked
def read_journal(path: str | Path) -> list[dict[str, Any]]:
    """Read the whole lines of a journal as rows, none where there is no file, and change nothing.

    Raises BadInput, UnknownName or BrokenFile when it cannot be read or a line is no JSON object.
    """
    path = as_path(path, "journal")
    data = _journal_bytes(path)
    return _rows(data[: data.rfind(b"\n") + 1], path)


def resume_journal(path: Path) -> list[dict[str, Any]]:
    """Read a journal to append to it, and cut a torn last line off.

    Only for its `only_writer`: what another process is writing looks torn as well. Raises BadInput
    when it cannot be cut, BrokenFile for a file that begins with no row, and as `read_journal`.
    """
    data = _journal_bytes(path)
    end = data.rfind(b"\n") + 1
    if data and not end and not data.startswith(b"{"):
        raise BrokenFile(f"no journal, {path}, it begins with no row, name another --out")
    if end < len(data):
        try:
            with path.open("r+b") as file:
                file.truncate(end)
        except OSError as error:
            raise BadInput(f"cannot cut {path}, {error.strerror}, name another --out") from None
    return _rows(data[:end], path)


def _journal_bytes(path: Path) -> bytes:
    try:
        return read_bytes(path, "journal", MOST_MODEL_BYTES) if path.exists() else b""
    except OSError as error:
        raise BadInput(f"cannot read {path}, {error.strerror}, name another --out") from None


def _rows(data: bytes, path: Path) -> list[dict[str, Any]]:
    return [_parse_line(line, path, number) for number, line in enumerate(data.splitlines(), 1)]


def _parse_line(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise BrokenFile(f"not JSON, {path} line {number}, {str(error)[:100]}") from None
    if not isinstance(row, dict):
        raise BrokenFile(f"a {type(row).__name__}, {path} line {number}, needed is an object")
    return row


def decode_row(kind: Any, row: Mapping[str, Any], path: Path, number: int) -> Any:
    """Decode row `number` of a journal, counted from 1. Raises BrokenFile."""
    try:
        return decode(kind, row, "row")
    except ValueError as error:
        raise BrokenFile(f"{path} line {number}, {error}") from None


def append_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows; they are on disk when this returns. Raises BadInput when they cannot be."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise BadInput(
            f"cannot write {path}, {error.strerror}, what was written before is kept"
        ) from None


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Let no other process write the results of a folder that is there. Raises BadInput where one
    does, or for a folder that cannot be opened. The system forgets it when a process is killed.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise BadInput(f"cannot open {folder}, {error.strerror}, name another --out") from None
    try:
        if not is_locked_in_time(handle):
            raise BadInput(
                f"{folder} is written by another process, --out, wait for its end or name another"
                " folder"
            )
        yield
    finally:
        os.close(handle)


def is_locked_in_time(handle: int) -> bool:
    """Lock an open folder; return whether that was possible before patience ended.

    True as well on a file system that knows no locks.
    """
    give_up_s = time.monotonic() + PATIENCE_S
    while not is_locked(handle):
        if time.monotonic() >= give_up_s:
            return False
        time.sleep(0.1)
    return True


def is_locked(handle: int) -> bool:
    """Lock an open file or folder; return whether that was possible at once.

    True as well on a file system that knows no locks.
    """
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
