"""Which state a sweep is of, so that no journal holds results of two."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnstretch.cli.simulate.workload_files import named_files
from nnstretch.errors import BadInput
from nnstretch.files.read import MOST_MODEL_BYTES, file_sha256
from nnstretch.files.workload.workload import WorkloadFile


def file_digests(workload: WorkloadFile, folder: Path) -> dict[str, str]:
    """Return the sha256 of every file that a workload names, by its name there.

    Raises UnknownName for one that cannot be opened, BrokenFile for one too large.
    """
    return {
        name: file_sha256(path, "file", MOST_MODEL_BYTES)
        for name, path in named_files(workload, folder)
    }


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
