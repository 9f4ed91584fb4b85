"""Which sweep a journal is of, and which configuration each of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nnstretch.cli.simulate.workload_files import named_files
from nnstretch.errors import BadInput, BrokenFile
from nnstretch.files.journal import resume_journal
from nnstretch.files.read import MOST_MODEL_BYTES, file_sha256
from nnstretch.files.workload.sweep_yaml import Configuration
from nnstretch.files.workload.workload import WorkloadFile

PAGES = ("sweep.md", "report.html")
"""Written beside the pictures where a sweep ends."""


def file_digests(workload: WorkloadFile, folder: Path) -> dict[str, str]:
    """Return the sha256 of every file that a workload names, by its name there.

    Raises UnknownName for one that cannot be opened, BrokenFile for one too large.
    """
    return {
        name: file_sha256(path, "file", MOST_MODEL_BYTES)
        for name, path in named_files(workload, folder)
    }


def resume_sweep(
    journal: Path, head: Mapping[str, Any], configurations: Sequence[Configuration]
) -> list[dict[str, Any]]:
    """Read the journal of a sweep to append to it: no row where the sweep begins.

    Raises BadInput or BrokenFile for a journal of something else.
    """
    rows = resume_journal(journal)
    if not rows:
        check_no_results(journal.parent)
        return rows
    check_same_sweep(rows[0], head, journal.parent)
    check_rows(rows[1:], configurations, journal)
    return rows


def check_same_sweep(before: Mapping[str, Any], head: Mapping[str, Any], out: Path) -> None:
    """Check that a journal is of the sweep that begins. Raises BadInput naming what differs."""
    if before == head:
        return
    if before.get("sweep") == head["sweep"] and isinstance(before.get("files"), dict):
        files, had = head["files"], before["files"]
        for name in sorted(files.keys() | had.keys()):
            if files.get(name) != had.get(name):
                raise BadInput(
                    f"{name} has changed since {out} was begun, --out, name another folder"
                )
    raise BadInput(f"another sweep is in {out}, --out, name another folder")


def check_no_results(out: Path) -> None:
    """Check that no page lies where a sweep begins: it is not the sweep's own. Raises BadInput."""
    for name in PAGES:
        if (out / name).exists():
            raise BadInput(f"{name} is in {out} without a journal, --out, name another folder")


def configuration_row(configuration: Configuration) -> dict[str, Any]:
    """Return what a journal's row says of its configuration."""
    row = asdict(configuration)
    del row["absent"]
    return row


def check_rows(
    rows: Sequence[Mapping[str, Any]], configurations: Sequence[Configuration], journal: Path
) -> None:
    """Check that the rows behind a journal's first are those of the configurations, in order.

    Raises BrokenFile naming the line that is not.
    """
    for number, row in enumerate(rows, 2):
        if number - 2 == len(configurations):
            raise BrokenFile(f"a row too many, {journal} line {number}, cut it off")
        known = configuration_row(configurations[number - 2])
        if {name: row.get(name) for name in known} != known:
            where = ", ".join(f"{name} {value}" for name, value in known.items())
            raise BrokenFile(f"another row, {journal} line {number}, needed is {where}")
