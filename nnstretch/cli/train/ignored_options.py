"""Options of `train` that would be passed over: given twice, or without effect beside others."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.errors import BadInput
from nnstretch.files.read import file_sha256

if TYPE_CHECKING:
    from nnstretch.train.recipe import Recipe


class StoreOnce(argparse._StoreAction):
    """Value of an option that may be given once on a command line."""

    _namespace: argparse.Namespace | None = None

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store a value. Raises ArgumentError for a second one."""
        if self._namespace is namespace:
            raise argparse.ArgumentError(self, "it is given twice, give it once")
        self._namespace = namespace
        super().__call__(parser, namespace, values, option_string)


def refuse_ignored(
    settings: Mapping[str, Any], recipe: Recipe, plan_file: str | None, weights: str | None
) -> None:
    """Refuse recipe keys of the command line that others leave without effect. Raises BadInput.

    A recipe's file names every key, so that it may hold them.
    """
    if weights is not None and recipe.start != "own" and "start" in settings:
        raise BadInput(
            f"--start {recipe.start} would not be used, --weights {weights} are what training"
            " starts from, leave one of them out"
        )
    if "optimizer.momentum" in settings and recipe.optimizer.name != "sgd":
        raise BadInput(
            f"--optimizer.momentum {recipe.optimizer.momentum} would not be used,"
            f" optimizer.name is {recipe.optimizer.name}, only sgd has it, leave it out"
        )
    for key in ("branched.inherit", "branched.calibration_images"):
        if plan_file is None and key in settings:
            raise BadInput(
                f"--{key} {settings[key]} would not be used, the network has no branches, leave it"
                " out or give a --plan"
            )


def refuse_unlike_weights(out: Path, weights: str | None, recipe: Recipe) -> None:
    """Refuse to resume with weights that the training did not begin with. Raises BadInput.

    The saved state has all weights. A teacher's are compared with it where it is read.
    """
    from nnstretch.train.training_folder import RECIPE_FILE, read_origin

    if weights is None or not (out / RECIPE_FILE).is_file():
        return
    before = read_origin(out / RECIPE_FILE).get("weights")
    if before is None and recipe.loss.has_teacher:
        return
    if before is None or before.rpartition("sha256 ")[2] != file_sha256(Path(weights), "weights"):
        began = "without --weights" if before is None else f"with {before}"
        raise BadInput(
            f"cannot resume {out}, --weights {weights} would not be used, it began {began}, leave"
            " them out"
        )
