"""The files of a training's folder: their names, what is written into them, what they replace."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from itertools import takewhile
from pathlib import Path

from nnstretch.errors import NnstretchError
from nnstretch.files.atomic import UNFINISHED, write_text
from nnstretch.files.json_text import parse_json
from nnstretch.files.plan_yaml import read_plan, write_plan
from nnstretch.files.read import read_text
from nnstretch.plan import Plan
from nnstretch.train.recipe import Recipe
from nnstretch.train.recipe_loader import recipe_yaml

WEIGHTS_FILE = "weights.safetensors"
BEST_WEIGHTS_FILE = "best.safetensors"
STATE_FILE = "resume.safetensors"
CURVE_FILE = "curve.csv"
HISTORY_FILE = "training.json"
RECIPE_FILE = "recipe.yaml"
PLAN_FILE = "plan.yaml"
LOGS_FOLDER = "logs"
EVENTS_PATTERN = "events.out.*"
"""TensorBoard's files in the folder of logs."""
RESULT_FILES = (STATE_FILE, BEST_WEIGHTS_FILE, WEIGHTS_FILE, HISTORY_FILE, CURVE_FILE, PLAN_FILE)
"""Files that a new training replaces when it first saves."""
FIRST_STATE_FILE = f"{STATE_FILE}.first"
FIRST_BEST_WEIGHTS_FILE = f"{BEST_WEIGHTS_FILE}.first"
"""What a training first saves, before it takes the place of another training's."""


def result_times(folder: Path) -> dict[str, int]:
    """Return when each result in a folder was last written, ns; by name, those that are there."""
    paths = (folder / name for name in RESULT_FILES)
    return {path.name: path.stat().st_mtime_ns for path in paths if path.is_file()}


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One pass over the training images."""

    epoch: int
    """Counted from 1."""
    train_loss: float
    """Mean over the training images, while the weights move."""
    val_loss: float
    """Plain cross-entropy on the held-out images."""
    val_accuracy: float
    """Share of held-out images, from 0 to 1."""
    val_top5: float
    """Share of held-out images whose class is among the five that score highest."""
    learning_rate: float
    """Of its last step."""
    seconds: float
    """Training and validation, since the epoch began or was resumed."""
    images_per_s: float
    """Training alone, over all processes."""


def best_epoch(epochs: tuple[EpochRecord, ...]) -> EpochRecord:
    """Return the first of the epochs of highest held-out accuracy."""
    return max(epochs, key=lambda epoch: (epoch.val_accuracy, -epoch.epoch))


def curve_csv(epochs: tuple[EpochRecord, ...]) -> str:
    """Return the epochs as CSV."""
    text = io.StringIO()
    columns = [column.name for column in fields(EpochRecord)]
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(epoch) for epoch in epochs)
    return text.getvalue()


def origin_comments(origin: Mapping[str, str]) -> str:
    """Return comments for the head of a recipe that say where its model and weights came from."""
    # JSON, so that a name cannot end the line.
    return "".join(f"# {what}: {json.dumps(where)}\n" for what, where in origin.items())


def read_recipe_comments(recipe: Path) -> str:
    """Return the comments at the head of a recipe. Raises UnknownName or BrokenFile."""
    lines = read_text(recipe, "recipe").splitlines(keepends=True)
    return "".join(takewhile(lambda line: line.startswith("#"), lines))


def read_origin(recipe: Path) -> dict[str, str]:
    """Return what `origin_comments` wrote at the head of a recipe. Raises as its reader does."""
    origin: dict[str, str] = {}
    for line in read_recipe_comments(recipe).splitlines():
        what, colon, where = line.removeprefix("# ").partition(": ")
        # Other comments are a user's.
        with suppress(ValueError):
            text = parse_json(where) if colon else None
            if isinstance(text, str):
                origin[what] = text
    return origin


def holds_plan(path: Path, plan: Plan) -> bool:
    """Return whether a file holds this plan."""
    try:
        return read_plan(path) == plan
    except NnstretchError:
        return False


def event_files(folder: Path) -> frozenset[Path]:
    """Return TensorBoard's files in a training's folder."""
    return frozenset((folder / LOGS_FOLDER).glob(EVENTS_PATTERN))


def delete_files(paths: Iterable[Path]) -> None:
    """Delete files that exist."""
    for path in paths:
        path.unlink(missing_ok=True)


def delete_unfinished(folder: Path) -> None:
    """Delete what killed trainings left half-written."""
    for name in (*RESULT_FILES, RECIPE_FILE):
        delete_files(folder.glob(f".{name}.*{UNFINISHED}"))


def begin_results(
    folder: Path, recipe: Recipe, plan: Plan | None, head: str, outdated_logs: Iterable[Path]
) -> None:
    """Delete the results of another training, and write recipe and plan of a new one."""
    delete_unfinished(folder)
    outdated = [name for name in RESULT_FILES if plan is None or name != PLAN_FILE]
    delete_files(folder / name for name in outdated)
    delete_files(outdated_logs)
    write_description(folder, recipe, plan, head)


def resume_results(folder: Path, recipe: Recipe, plan: Plan | None) -> None:
    """Delete the history of a resumed training, which is no longer finished; keep its weights."""
    head = read_recipe_comments(folder / RECIPE_FILE)
    delete_unfinished(folder)
    outdated = (HISTORY_FILE, FIRST_STATE_FILE, FIRST_BEST_WEIGHTS_FILE)
    delete_files(folder / name for name in outdated)
    write_description(folder, recipe, plan, head)


def write_description(folder: Path, recipe: Recipe, plan: Plan | None, head: str) -> None:
    """Write recipe and plan; a file that holds the plan already may be the user's and stays."""
    if plan is not None and not holds_plan(folder / PLAN_FILE, plan):
        write_plan(folder / PLAN_FILE, plan)
    write_text(folder / RECIPE_FILE, head + recipe_yaml(recipe))
