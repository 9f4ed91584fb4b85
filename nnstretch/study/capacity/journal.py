"""Journal of finished trainings, from which an interrupted capacity study goes on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from nnstretch.errors import BadInput, BrokenFile
from nnstretch.files.journal import append_rows, decode_row, resume_journal
from nnstretch.files.limits import Range

JOURNAL_FORMAT = 1
JOURNAL_FILE = "capacity.jsonl"
HASHES = {"network_sha256": "the network is another", "images_sha256": "the images are others"}
"""Settings that journals of before do not say: these go on without. In words, where they differ."""
DERIVED = ("macs", "params", *HASHES)
"""Settings that follow from others, which say more where both differ."""


@dataclass(frozen=True, slots=True)
class FinishedTraining:
    """One network trained once."""

    plan: str
    """The structure and its size in one line."""
    seed: int
    accuracy: Annotated[float, Range(0, 1)]
    """Share of held-out images after the last epoch, from 0 to 1."""
    epochs: Annotated[int, Range(1)]
    seconds: Annotated[float, Range(0)]
    """Of all its epochs."""


@dataclass(frozen=True)
class CapacityJournal:
    """One JSON line for the settings, then one for every finished training."""

    path: Path
    trainings: dict[tuple[str, int], FinishedTraining]
    """By plan and seed."""

    def add(self, run: FinishedTraining) -> None:
        """Add a finished training."""
        append_rows(self.path, [asdict(run)])
        self.trainings[run.plan, run.seed] = run


def make_folder(folder: Path) -> Path:
    """Return the folder of a study, made where need be. Raises BadInput."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot study into {folder}, {error.strerror}, name another folder"
        ) from None
    return folder


def open_journal(folder: Path, head: dict[str, Any]) -> CapacityJournal:
    """Open the journal of a folder that nobody else writes, or begin one with `head` as its first
    line.

    Raises BadInput that names a differing setting, BrokenFile for a file that is no journal.
    """
    path = folder / JOURNAL_FILE
    head = {"format": JOURNAL_FORMAT} | head
    rows = resume_journal(path)
    if not rows:
        append_rows(path, [head])
        return CapacityJournal(path, {})
    check_same_settings(rows[0], head, path)
    runs = [decode_row(FinishedTraining, row, path, at) for at, row in enumerate(rows[1:], 2)]
    return CapacityJournal(path, {(run.plan, run.seed): run for run in runs})


def check_same_settings(before: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Refuse a journal of other settings, whose accuracies do not compare.

    Raises BrokenFile when the file is no journal; BadInput when a setting differs.
    """
    if "format" not in before:
        raise BrokenFile(f"not a capacity study, {path} line 1, it has no format")
    for key in sorted([*now, *before], key=DERIVED.__contains__):
        if before.get(key) != now.get(key) and (key in before or key not in HASHES):
            old = before.get(key, "not there")
            new = now.get(key, "not there")
            differs = f"{key} is {new}, the study kept in {path} has {old}"
            if key in HASHES:
                differs = f"{HASHES[key]} than in the study kept in {path}"
            raise BadInput(f"{differs}, give the same or another --out")
