"""Train a network by a recipe.

The original, or a branched one that starts from the original's weights.

  nnstretch train digits --out original
  nnstretch train digits --plan plan.yaml --weights original/weights.safetensors --out branched
  nnstretch train imagenet_resnet50 --data.root IMAGENET --trainer.devices 8 --out big
  nnstretch train imagenet_resnet50 --data.root IMAGENET --trainer.devices 8 --out big --resume

A recipe is a YAML file or the name of a shipped one; every key in it can be overridden by its
dotted name. The folder receives weights.safetensors (the last epoch's), best.safetensors,
training.json and curve.csv (the curve), recipe.yaml (every key of it) and resume.safetensors, from
which --resume goes on behind the last save. docs/guide/train.md tells the rest.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.arguments import recipe_overrides
from nnstretch.cli.loaded_model import check_model_file
from nnstretch.cli.output_path import check_folder, check_replaceable
from nnstretch.cli.train.ignored_options import (
    StoreOnce,
    refuse_ignored,
    refuse_unlike_weights,
)
from nnstretch.cli.train.networks import networks, teacher_text
from nnstretch.errors import BadInput
from nnstretch.files.read import file_sha256

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from nnstretch.train.recipe import Recipe


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    from nnstretch.train.recipe_loader import shipped_recipes

    parser.register("action", None, StoreOnce)
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        help=f"RECIPE.yaml, or the name of a shipped one: {', '.join(shipped_recipes())}",
    )
    parser.add_argument("--plan", help="branched network to train: PLAN.yaml")
    parser.add_argument(
        "--weights",
        metavar="CKPT",
        help="weights to start from: the network's own, or the original's",
    )
    parser.add_argument(
        "--teacher",
        metavar="CKPT",
        help="the original's weights to distil from, where --weights are not these",
    )
    where = "where the result goes (trained)"
    parser.add_argument("--out", metavar="FOLDER", type=Path, default=Path("trained"), help=where)
    begins = parser.add_mutually_exclusive_group()
    begins.add_argument(
        "--overwrite", action="store_true", help="replace a finished training in FOLDER"
    )
    begins.add_argument(
        "--resume", action="store_true", help="continue the interrupted training in FOLDER"
    )
    parser.add_argument(
        "--print_config", action="store_true", help="print the resolved recipe and train nothing"
    )
    add_recipe_keys(parser)


def add_recipe_keys(parser: argparse.ArgumentParser) -> None:
    """Add an argument for each key of a recipe."""
    from nnstretch.train.recipe_loader import recipe_settings, setting_descriptions

    group = parser.add_argument_group("recipe keys")
    means = setting_descriptions()
    for key, default in recipe_settings():
        help_text = (
            "the network, instead of the recipe's or the plan's"
            if key == "model"
            else f"{means[key]} ({default!r})"
        )
        group.add_argument(
            f"--{key}",
            dest=f"set {key}",
            metavar="MODEL" if key == "model" else "VALUE",
            help=help_text.replace("%", "%%"),
        )


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data.

    Raises BadInput when a teacher is given that no loss would ask.
    """
    from nnstretch.train.recipe_loader import load_recipe
    from nnstretch.train.training_folder import result_times

    check_folder(args.out, "--out")
    results = result_times(args.out)
    settings = recipe_overrides(args)
    plan_file = args.plan
    if str(settings.get("model", "")).endswith((".yaml", ".yml")):
        plan_file = settings.pop("model")
    recipe = load_recipe(args.recipe, [f"{key}={value}" for key, value in settings.items()])
    if plan_file is not None:
        recipe = replace(recipe, model=settings.get("model") or planned_model(plan_file))
    if args.print_config:
        return {"recipe": asdict(recipe)}
    if args.teacher is not None and not recipe.loss.has_teacher:
        raise BadInput(
            f"--teacher {args.teacher} would not be asked, {teacher_text(recipe)}, set one of them"
        )
    refuse_ignored(settings, recipe, plan_file, args.weights)
    if "model" not in settings:
        holder = f"recipe {args.recipe}" if plan_file is None else f"plan {plan_file}"
        check_model_file(recipe.model, holder)
    files = {"plan": plan_file, "weights": args.weights, "teacher": args.teacher}
    check_training_folder(args, recipe)
    begun = resumed_recipe(recipe, args.out) if args.resume else recipe
    from nnstretch.train.failures import explain_failures

    with explain_failures(f"training into {args.out}"):
        module, teacher = networks(
            begun, plan_file, args.weights, args.teacher, aloud=not args.resume
        )
    return run_training(
        module,
        teacher,
        recipe,
        args,
        {what: describe_file(file) for what, file in files.items() if file is not None},
        results,
    )


def check_training_folder(args: argparse.Namespace, recipe: Recipe) -> None:
    """Check that a training may begin, or go on, in the folder of its results. Raises BadInput."""
    if args.resume:
        refuse_unlike_weights(args.out, args.weights, recipe)
        return
    check_replaceable(args.out, finished_training(args.out), args.overwrite)
    refuse_own_input(args.out, {"weights": args.weights, "teacher": args.teacher})


def finished_training(out: Path) -> str | None:
    """Return in words what a folder holds that a training has finished."""
    from nnstretch.train.preflight import is_training_folder
    from nnstretch.train.training_folder import HISTORY_FILE

    is_finished = (out / HISTORY_FILE).is_file() and is_training_folder(out)
    return f"a finished training ({HISTORY_FILE})" if is_finished else None


def refuse_own_input(out: Path, files: Mapping[str, str | None]) -> None:
    """Refuse a training that would take the place of what it begins from. Raises BadInput."""
    from nnstretch.train.training_folder import RESULT_FILES

    replaced = [path for name in RESULT_FILES if (path := out / name).is_file()]
    for option, file in files.items():
        if (
            file is not None
            and Path(file).is_file()
            and any(path.samefile(file) for path in replaced)
        ):
            raise BadInput(
                f"cannot train into {out}, --{option} {file} lies there and would be replaced, name"
                " another --out"
            )


def resumed_recipe(recipe: Recipe, out: Path) -> Recipe:
    """Return the recipe of the training in a folder without what is lost on resuming.

    The saved state has all weights, but not which original channel each branch channel stands for:
    that follows from the weights that the original began with, by `start` if from no file.
    """
    from nnstretch.train.training_folder import RECIPE_FILE, read_origin

    file = out / RECIPE_FILE
    start = "own" if file.is_file() and "weights" in read_origin(file) else recipe.start
    inherit = "weights" if recipe.branched.inherit == "rescaled" else recipe.branched.inherit
    return replace(recipe, start=start, branched=replace(recipe.branched, inherit=inherit))


def planned_model(plan_file: str) -> str:
    """Return the model that a plan file names."""
    from nnstretch.stretch import read_plan

    return read_plan(Path(plan_file)).model


def describe_file(file: str) -> str:
    """Return a file that was read, by its name and its content."""
    return f"{file}, sha256 {file_sha256(Path(file), 'file')}"


def run_training(
    module: nn.Module,
    teacher: nn.Module | None,
    recipe: Recipe,
    args: argparse.Namespace,
    origin: dict[str, str],
    results: dict[str, int],
) -> dict[str, Any]:
    """Train, and return the result as JSON data; `results` are those that were there before.

    Raises SystemExit in every process but the first, which alone reports.
    """
    from nnstretch.stretch.weights.weights_file import scored_classes
    from nnstretch.train import fit
    from nnstretch.train.hardware import process_rank

    taught_by = None if teacher is None else args.teacher or args.weights
    result = fit(
        module,
        recipe,
        args.out,
        teacher=teacher,
        teacher_classes=scored_classes(taught_by) if taught_by else (),
        resume=args.resume,
        origin=origin,
        results=results,
    )
    if process_rank(recipe.trainer):
        raise SystemExit(0)  # of several processes the first one speaks
    return {
        "checkpoint": str(result.checkpoint),
        "epochs": result.epochs,
        "val_accuracy": result.val_accuracy,
        "best": str(result.best),
        "best_accuracy": result.best_accuracy,
        "images_per_s": result.images_per_s,
        "history": [asdict(epoch) for epoch in result.history],
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    if "recipe" in result:
        from nnstretch.files.strict_yaml import dump_yaml

        # Not a line for people, whose line breaks would be escaped, but a file.
        console.file.write(dump_yaml(result["recipe"], one_line_lists=False))
        return
    from rich.table import Table

    table = Table(
        "epoch",
        "train loss",
        "held-out loss",
        "held-out accuracy",
        "learning rate",
        "images/s",
        "seconds",
    )
    for e in result["history"]:
        numbers = (
            f"{e['train_loss']:.4f}",
            f"{e['val_loss']:.4f}",
            f"{e['val_accuracy']:.2%}",
            f"{e['learning_rate']:.4g}",
        )
        table.add_row(str(e["epoch"]), *numbers, f"{e['images_per_s']:.0f}", f"{e['seconds']:.1f}")
    console.print(table)
    console.print(f"weights in {result['checkpoint']}", soft_wrap=True)
