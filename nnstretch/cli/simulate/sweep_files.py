"""Which files a sweep reads beside its own, so that no journal holds results of two states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nnstretch.cli.simulate.workload_files import beside
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
        if path.is_file()
    }


def named_files(workload: WorkloadFile, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield models, lists of arrivals, measured costs and the files of a chip, with their names.

    What is no file, such as a network of torchvision, is among them. Raises UnknownName for a chip
    that is not there.
    """
    for settings in workload.applications:
        if settings.model is not None:
            path = beside(settings.model, folder)
            file = str(path).partition(":")[0]
            yield settings.model, path if path.exists() else Path(file)
        if settings.arrivals is not None and settings.arrivals.csv is not None:
            yield settings.arrivals.csv, beside(settings.arrivals.csv, folder)
    costs = workload.costs or ()
    for name in (costs,) if isinstance(costs, str) else costs:
        yield name, beside(name, folder)
    if workload.soc is not None:
        from nnstretch.predict.load_soc import find_soc

        chip = find_soc(workload.soc)
        for path in sorted(chip.rglob("*")):
            yield f"{workload.soc}/{path.relative_to(chip)}", path


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
