"""JSON of verbs decoded with the file's name in every refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nnstretch.errors import BrokenFile, NnstretchError, one_line
from nnstretch.files import read
from nnstretch.files.decode import decode
from nnstretch.files.json_text import parse_json


def read_text(path: Path) -> str:
    """Read a text file. Raises BrokenFile when it cannot be read."""
    try:
        return read.read_text(path, "file", read.MOST_JSON_BYTES)
    except NnstretchError as problem:
        raise BrokenFile(f"cannot read {path}, {problem}") from None


def read_json(path: Path) -> Any:
    """Read a JSON file. NaN is left to the decoder. Raises BrokenFile when it is no JSON."""
    text = read_text(path)
    try:
        return parse_json(text, not_finite=True)
    except json.JSONDecodeError as problem:
        where = f"line {problem.lineno} column {problem.colno}"
        raise BrokenFile(f"cannot read {path}, {where}, {problem.msg}, not JSON") from problem
    except ValueError as problem:
        why = f"{one_line(problem)[:200]}, not JSON of a reasonable depth and size"
        raise BrokenFile(f"cannot read {path}, {why}") from problem


def decode_at(kind: Any, value: Any, file: str, path: str = "") -> Any:
    """Decode what stands at `path` of a file. Raises BrokenFile with file and path of the fault."""
    try:
        return decode(kind, value, path)
    except ValueError as fault:
        where = str(fault).removeprefix(".")
        where = f"top level{where}" if where.startswith((",", "[")) else where
        raise BrokenFile(f"cannot report {file}, {one_line(where)}") from None
