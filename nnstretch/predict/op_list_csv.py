"""Rows of an operator list (`ops_mi9.csv`), read strictly."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from nnstretch.errors import BrokenFile, UnknownName, one_line
from nnstretch.files.decode import decode
from nnstretch.files.limits import OneOf, Only, Range
from nnstretch.files.read import read_text
from nnstretch.soc import Soc

KINDS = {
    "conv": "conv",
    "dwconv": "dwconv",
    "fc": "linear",
    "maxpool": "pool",
    "gap": "gap",
    "add": "add",
    "concat": "concat",
}
"""Kind of the kernel by kind of the row."""
MOST = 1 << 53
"""Counts beyond this are no counts: they would not even be exact."""
WholeCount = Annotated[int, Range(0, MOST)]
PositiveCount = Annotated[int, Range(1, MOST)]


@dataclass(frozen=True, slots=True)
class OpListRow:
    """One row: an operator, with the columns of the file."""

    config: Annotated[str, Only(bool, "a name: every row names its configuration")]
    part: str
    branch: Annotated[int, Range(-1, MOST)]
    device: str
    name: str
    kind: Annotated[str, OneOf(tuple(sorted(KINDS)))]
    k: WholeCount
    s: WholeCount
    groups: PositiveCount
    cin: PositiveCount
    cout: PositiveCount
    hw_in: PositiveCount
    """Side of the square map."""
    hw_out: PositiveCount
    macs: WholeCount
    params: WholeCount
    line: int = 0
    """Where it stands in the file."""


COLUMNS = tuple(field.name for field in fields(OpListRow) if field.name != "line")
WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})")
TEXT_COLUMNS = ("config", "part", "device", "name", "kind")


def read_rows(path: Path, soc: Soc) -> Iterator[OpListRow]:
    """Yield the rows of a file.

    Raises UnknownName when it or a device is unknown; BrokenFile where a row is wrong.
    """
    lines = read_text(path, "operator list").splitlines()
    reader = csv.reader(lines, strict=True)
    try:
        yield from rows_of(reader, path, soc)
    except csv.Error as error:
        raise BrokenFile(f"{one_line(error)}, {path} line {reader.line_num}") from None


def rows_of(reader: Any, path: Path, soc: Soc) -> Iterator[OpListRow]:
    """Yield what a reader of CSV finds. Raises as `read_rows`, and what the reader raises."""
    header: list[str] = next(reader, [])
    if repeated := [name for name in header if header.count(name) > 1]:
        raise BrokenFile(f"column {repeated[0][:40]!r} is there twice, {path} line 1")
    if missing := [name for name in COLUMNS if name not in header]:
        raise BrokenFile(
            f"column {missing[0]!r} is missing, {path} line 1, needed are {', '.join(COLUMNS)}"
        )
    for number, cells in enumerate(reader, 2):
        where = f"{path} line {number}"
        if reader.line_num != number:
            raise BrokenFile(f"a cell that goes on in the next line, {where}")
        if cells and len(cells) != len(header):
            raise BrokenFile(f"{len(cells)} cells, {where}, the header has {len(header)}")
        if cells:
            row = dict(zip(header, cells, strict=True))
            yield decode_row(row, reader.line_num, where, soc)


def decode_row(cells: dict[str, str], line: int, where: str, soc: Soc) -> OpListRow:
    """Decode a row by its header. Raises BrokenFile, or UnknownName for its device."""
    values = {name: parse_cell(name, cells[name]) for name in COLUMNS}
    try:
        row: OpListRow = decode(OpListRow, values | {"line": line}, "row")
    except ValueError as error:
        raise BrokenFile(f"{where}, {error}") from None
    devices = sorted(soc.processor_names)
    if row.device not in devices:
        raise UnknownName(
            f"unknown device {row.device!r}, {where}, {soc.name} has {', '.join(devices)}"
        )
    return row


def parse_cell(column: str, text: str) -> int | str:
    """Return a whole number of a column of numbers as `int`, any other cell unchanged."""
    plain = column not in TEXT_COLUMNS and WHOLE.fullmatch(text)
    return int(text) if plain else text
