"""What was trained, line by line, so that an interrupted capacity study goes on where it
stopped.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nnstretch.errors import BadInput, BrokenFile
from nnstretch.files.atomic import parse_json_line, read_complete_lines

JOURNAL_FORMAT = 1
JOURNAL_FILE = "capacity.jsonl"


@dataclass(frozen=True, slots=True)
class FinishedTraining:
    """One network trained once."""

    plan: str
    """The structure and its size in one line."""
    seed: int
    accuracy: float
    """Share of held-out images after the last epoch, from 0 to 1."""
    epochs: int
    seconds: float
    """Of all its epochs."""

    def __post_init__(self) -> None:
        whole = type(self.seed) is int and type(self.epochs) is int and self.epochs >= 1
        if not (
            isinstance(self.plan, str)
            and whole
            and 0 <= self.accuracy <= 1
            and 0 <= self.seconds < math.inf
        ):
            raise ValueError(f"numbers out of range, seed {self.seed}, accuracy {self.accuracy}")


@dataclass(frozen=True)
class CapacityJournal:
    """One JSON line for the settings, then one for every finished run.

    Each is on disk before the next begins.
    """

    path: Path
    trainings: dict[tuple[str, int], FinishedTraining]
    """By plan and seed."""

    def add(self, run: FinishedTraining) -> None:
        """Add a finished training."""
        append_json_line(self.path, asdict(run))
        self.trainings[run.plan, run.seed] = run


def open_journal(folder: Path, head: dict[str, Any]) -> CapacityJournal:
    """Open the journal of a folder; a new one, with `head` as its first line, where there is none.

    Raises BadInput that names the setting in which the kept study differs, BrokenFile for a file
    that is no journal.
    """
    path = folder / JOURNAL_FILE
    head = {"format": JOURNAL_FORMAT} | head
    lines = read_complete_lines(path)
    if not lines:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"cannot study into {folder}, {error.strerror}, name another folder"
            ) from None
        append_json_line(path, head)
        return CapacityJournal(path, {})
    check_same_settings(parse_json_line(lines[0], path, 1), head, path)
    runs = [
        parse_training(parse_json_line(line, path, at), path, at)
        for at, line in enumerate(lines[1:], 2)
    ]
    return CapacityJournal(path, {(run.plan, run.seed): run for run in runs})


def check_same_settings(before: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Refuse a journal of other settings: accuracies of different networks or recipes do not
    compare.

    Raises BrokenFile when the file is no journal; BadInput when a setting differs.
    """
    if "format" not in before:
        raise BrokenFile(f"not a capacity study, {path} line 1, it has no format")
    for key in [*now, *before]:
        if before.get(key) != now.get(key):
            was, wanted = before.get(key, "not there"), now.get(key, "not there")
            raise BadInput(
                f"{key} is {wanted}, the study kept in {path} has {was}, give the same or another"
                " --out"
            )


def append_json_line(path: Path, line: dict[str, Any]) -> None:
    """Append a line of JSON. Raises BadInput when the file cannot be written."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise BadInput(
            f"cannot write {path}, {error.strerror}, what was trained before is kept"
        ) from None


def parse_training(data: dict[str, Any], path: Path, at: int) -> FinishedTraining:
    """Decode a line of the journal. Raises BrokenFile when it is no training."""
    try:
        return FinishedTraining(**data)
    except (TypeError, ValueError) as error:
        raise BrokenFile(f"not a training run, {path} line {at}, {str(error)[:100]}") from None
