"""Train a network by a recipe.

The original, or a branched one that starts from the original's weights.

  nnstretch train digits --out original
  nnstretch train digits --plan plan.yaml --weights original/weights.safetensors
  --trainer.max_epochs 3 --out branched
  nnstretch train imagenet_resnet50 --data.root IMAGENET --plan plan.yaml --trainer.devices 8 --out
  branched
  nnstretch train imagenet_resnet50 --data.root IMAGENET --plan plan.yaml --trainer.devices 8 --out
  branched --resume

A recipe is a YAML file or the name of a shipped one; every key in it can be overridden by its
dotted name. The folder receives weights.safetensors (the last epoch's), best.safetensors,
training.json and curve.csv (the curve), recipe.yaml (every key of it) and resume.safetensors, from
which --resume goes on behind the last save. docs/guide/train.md tells the rest.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.arguments import recipe_overrides
from nnstretch.cli.output_path import check_replaceable
from nnstretch.errors import BadInput
from nnstretch.files.read import file_sha256

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from nnstretch.stretch.weights.branched_module import StretchedNetwork
    from nnstretch.train.recipe import Recipe

SUMMARY = "train a network, original or branched, by a recipe"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    from nnstretch.train.recipe_loader import recipe_settings, setting_descriptions, shipped_recipes

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
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a finished training in FOLDER"
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue the interrupted training in FOLDER"
    )
    parser.add_argument(
        "--print_config", action="store_true", help="print the resolved recipe and train nothing"
    )
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
    files = {"plan": plan_file, "weights": args.weights, "teacher": args.teacher}
    if not args.resume:
        check_replaceable(args.out, finished_training(args.out), args.overwrite)
        refuse_own_input(args.out, {"weights": args.weights, "teacher": args.teacher})
    begun = resumed_recipe(recipe) if args.resume else recipe
    from nnstretch.train.failures import explain_failures

    with explain_failures(args.out):
        module, teacher = networks(
            begun, plan_file, args.weights, args.teacher, aloud=not args.resume
        )
    return run_training(
        module,
        teacher,
        recipe,
        args,
        {what: describe_file(file) for what, file in files.items() if file is not None},
    )


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


def resumed_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe without what is lost on resuming, because the saved state has all
    weights.
    """
    inherit = "weights" if recipe.branched.inherit == "rescaled" else recipe.branched.inherit
    return replace(recipe, start="own", branched=replace(recipe.branched, inherit=inherit))


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
) -> dict[str, Any]:
    """Train, and return the result as JSON data.

    Raises SystemExit in every process but the first, which alone reports.
    """
    from nnstretch.train import fit
    from nnstretch.train.hardware import process_rank

    result = fit(module, recipe, args.out, teacher=teacher, resume=args.resume, origin=origin)
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


def networks(
    recipe: Recipe,
    plan_file: str | None,
    weights: str | None,
    teacher: str | None = None,
    aloud: bool = False,
) -> tuple[nn.Module, nn.Module | None]:
    """Return the network to train, and its teacher where the recipe distils.

    The original, or any network with --teacher's weights.

    Where asked (`aloud`) says on standard error what a user may not expect of a branched network.

    Raises BadInput when the recipe asks for a teacher and none is given.
    """
    if plan_file is not None:
        return build_branched(recipe, plan_file, weights, teacher, aloud)
    module = started_or_loaded(recipe, weights)
    if not recipe.loss.has_teacher:
        return module, None
    if teacher is None:
        raise BadInput(
            f"{teacher_text(recipe)}, no teacher, give --teacher CKPT, or --plan and --weights of"
            " the original"
        )
    return module, load_weighted(recipe.model, teacher)


def started_or_loaded(recipe: Recipe, weights: str | None) -> nn.Module:
    """Return the recipe's network with the weights of a file, or with those that it starts from."""
    from nnstretch.capture import load_model
    from nnstretch.stretch.weights.weights_file import load_weights
    from nnstretch.train.branched_start import initialize_network, refuse_lost_weights

    if weights is None:
        refuse_lost_weights(recipe)
    module = load_model(recipe.model, recipe.seed)
    if weights is not None:
        load_weights(module, weights)
        return module
    if (
        recipe.start != "own"
        and ".py:" in recipe.model
        and (same := same_kernels(module, load_model(recipe.model, recipe.seed + 1)))
    ):
        tell(
            recipe,
            f"start {recipe.start} draws over {same} kernels that {recipe.model} brings, start own"
            " keeps them",
        )
    return initialize_network(module, recipe)


def same_kernels(first: nn.Module, second: nn.Module) -> int:
    """Count the kernels that two networks of other seeds share; constants do not count."""
    pairs = zip(first.parameters(), second.parameters(), strict=False)
    return sum(
        a.ndim > 1 and a.shape == b.shape and bool((a == b).all()) and float(a.detach().std()) > 0
        for a, b in pairs
    )


def tell(recipe: Recipe, what: str) -> None:
    """Print from the first of several processes only."""
    from nnstretch.train.hardware import process_rank

    if process_rank(recipe.trainer) == 0:
        print(f"nnstretch: {what}", file=sys.stderr)


def teacher_text(recipe: Recipe) -> str:
    """Return which settings ask for a teacher."""
    return f"loss.distill is {recipe.loss.distill} and loss.features {recipe.loss.features}"


def load_weighted(model: str, weights: str) -> nn.Module:
    """Build a model and load its weights."""
    from nnstretch.capture import load_model
    from nnstretch.stretch.weights.weights_file import load_weights

    module = load_model(model)
    load_weights(module, weights)
    return module


def build_branched(
    recipe: Recipe, plan_file: str, weights: str | None, teacher: str | None, aloud: bool
) -> tuple[nn.Module, nn.Module | None]:
    """Build the branched network; --weights may be the original's, which are inherited, or its own.

    --teacher is always the original's.

    An original that comes trained needs neither.

    Raises BadInput when weights are given that would not be used.
    """
    from nnstretch.capture import load_model
    from nnstretch.stretch import read_plan
    from nnstretch.train.branched_start import (
        branched_network,
        has_pretrained_classifier,
        has_pretrained_weights,
    )

    plan = read_plan(Path(plan_file))
    original = load_model(recipe.model)
    inherits = weights is not None and fits(original, weights)
    own_weights = weights if not inherits else None
    if (
        inherits
        and recipe.branched.inherit == "none"
        and (teacher is not None or not recipe.loss.has_teacher)
    ):
        raise BadInput(
            f"--weights {weights} would not be used, branched.inherit is none, set it to weights or"
            " rescaled, or leave them out"
        )
    if own_weights is not None and teacher is not None:
        original = load_weighted(
            recipe.model, teacher
        )  # which of its channels are compared follows from its weights
    elif inherits or (weights is None and recipe.branched.inherit != "none"):
        original = started_or_loaded(recipe, weights)
    teaches = (
        has_pretrained_classifier(recipe.model)
        if recipe.loss.distill
        else has_pretrained_weights(recipe.model)
    )
    if recipe.loss.has_teacher and teacher is None and not inherits and not teaches:
        raise BadInput(
            f"{teacher_text(recipe)}, no teacher, give --weights of the original {recipe.model}, or"
            " --teacher"
        )
    module = branched_network(original, plan, recipe, own_weights)
    if aloud:
        tell_unexpected(recipe, original, module, weights)
    if not recipe.loss.has_teacher:
        return module, None
    return module, original if teacher is None else load_weighted(recipe.model, teacher)


def tell_unexpected(
    recipe: Recipe, original: nn.Module, module: StretchedNetwork, weights: str | None
) -> None:
    """Print what a user would not expect of this training."""
    from nnstretch.train.branched_start import uncaptured_random_modules

    if weights is None and recipe.branched.inherit != "none":
        tell(recipe, f"no --weights, branches inherit the weights that {recipe.model} starts with")
    if lost := uncaptured_random_modules(original, module):
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        tell(
            recipe,
            f"{lost[0]}{more} of {recipe.model} act in training only and are not in the branched"
            " network",
        )


def fits(module: nn.Module, weights: str) -> bool:
    """Return whether every weight of a file has its place in the module."""
    from nnstretch.stretch.weights.weights_file import first_mismatch, read_tensors

    return first_mismatch(module, read_tensors(Path(weights))[0]) is None


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    if "recipe" in result:
        from nnstretch.files.strict_yaml import dump_yaml

        console.out(dump_yaml(result["recipe"], one_line_lists=False), end="", highlight=False)
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
