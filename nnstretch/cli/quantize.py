"""A trained network, original or branched, as int8 for LiteRT, judged on held-out images before and
after.

  nnstretch quantize digits --plan plan.yaml --weights branched/weights.safetensors --out net.tflite
  nnstretch quantize mine.yaml --weights original/weights.safetensors --out net.tflite --max-drop 2

Post-training quantization: int8 weights with a scale per channel, int8 activations whose ranges are
measured on training images, int8 input and output (NHWC). FILE.tflite is int8, FILE.float.tflite
beside it the float32 it was made from. The recipe says which images; the ones to calibrate and to
check with are drawn by its seed. A network that loses more than --max-drop points of accuracy is
refused and nothing is written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.arguments import finite_number, recipe_overrides, whole_number
from nnstretch.cli.loaded_model import check_model_file
from nnstretch.cli.output_path import check_writable
from nnstretch.cli.progress import progress_stages
from nnstretch.errors import NnstretchError, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from nnstretch.export.quantize import QuantizedNetwork
    from nnstretch.train.recipe import Recipe

CALIBRATION_IMAGES = 200


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    from nnstretch.train.recipe_loader import recipe_settings

    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        help="RECIPE.yaml that training left beside the weights, or the name of a shipped one",
    )
    parser.add_argument(
        "--plan", help="branched network: PLAN.yaml (default: the recipe's network)"
    )
    parser.add_argument(
        "--weights", metavar="CKPT", required=True, help="its trained weights, safetensors"
    )
    parser.add_argument(
        "--out",
        metavar="FILE.tflite",
        required=True,
        help="the int8 file; FILE.float.tflite is written beside it",
    )
    add_image_arguments(parser)
    group = parser.add_argument_group("recipe keys")
    for key, default in recipe_settings():
        if key in ("model", "seed") or key.startswith("data."):
            described = f"default {default}".replace("%", "%%")
            group.add_argument(f"--{key}", dest=f"set {key}", metavar="VALUE", help=described)


def add_image_arguments(parser: argparse.ArgumentParser) -> None:
    """Add how many images to use, and how much accuracy may be lost on them."""
    parser.add_argument(
        "--calibration",
        type=whole_number,
        default=CALIBRATION_IMAGES,
        metavar="N",
        help=f"training images on which ranges are measured (default {CALIBRATION_IMAGES})",
    )
    parser.add_argument(
        "--images",
        type=whole_number,
        metavar="N",
        help="held-out images to check on (default: all)",
    )
    parser.add_argument(
        "--max-drop",
        type=finite_number,
        default=1.0,
        metavar="POINTS",
        help=(
            "accuracy that int8 may lose against float32, in points; more is refused (default 1.0)"
        ),
    )


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data."""
    from nnstretch.export.litert.packages import require_packages
    from nnstretch.export.quantize import check_settings, output_paths, quantize
    from nnstretch.stretch.weights.weights_file import scored_classes
    from nnstretch.train.data import open_dataset
    from nnstretch.train.data.batches import image_task_of
    from nnstretch.train.data.calibration import held_out_images, training_images
    from nnstretch.train.preflight import check_same_classes
    from nnstretch.train.recipe_loader import load_recipe

    paths = output_paths(args.out)
    for path in paths:
        check_writable(path, args.plan, args.weights)
    check_settings(args.calibration, args.images, args.max_drop)
    require_packages()
    settings = recipe_overrides(args)
    recipe = load_recipe(args.recipe, [f"{key}={value}" for key, value in settings.items()])
    tell_other_images(recipe, args.weights)
    if args.plan is None and "model" not in settings:
        check_model_file(recipe.model, f"recipe {args.recipe}")
    module = load_trained(recipe, args.plan, settings.get("model"), args.weights)
    dataset = open_dataset(recipe.data)
    check_same_classes(args.weights, scored_classes(args.weights), dataset)
    calibration = training_images(dataset, recipe.data, args.calibration, recipe.seed)
    with progress_stages() as tell:
        result = quantize(
            module,
            args.out,
            calibration=calibration,
            held_out=held_out_images(dataset, recipe.data, args.images, recipe.seed),
            classes=len(dataset.classes),
            name=args.plan or recipe.model,
            max_drop=args.max_drop,
            progress=tell,
            image_task=image_task_of(dataset, recipe.data),
        )
    return result_json(result, paths, len(calibration))


def tell_other_images(recipe: Recipe, weights: str) -> None:
    """Say on standard error where the training beside the weights drew its images otherwise."""
    from nnstretch.train.preflight import is_training_folder
    from nnstretch.train.recipe_loader import load_recipe
    from nnstretch.train.training_folder import RECIPE_FILE

    trained_by = Path(weights).parent / RECIPE_FILE
    if not is_training_folder(trained_by.parent):
        return
    try:
        before = load_recipe(trained_by).data
    except NnstretchError:  # of a later version: it is no input of this verb
        return
    if (old_px := before.validation_px) != (new_px := recipe.data.validation_px):
        said = f"note: images of {new_px} px, in {trained_by} they were judged at {old_px} px"
        print(f"nnstretch: {one_line(said)}", file=sys.stderr)
    for key in ("name", "root", "held_out", "split_seed"):
        old, new = getattr(before, key), getattr(recipe.data, key)
        same = Path(old).resolve() == Path(new).resolve() if key == "root" else old == new
        if not same:
            said = (
                f"note: data.{key} is {new!r} and was {old!r} in {trained_by}, held-out images may"
                f" be among those that {weights} was trained on"
            )
            print(f"nnstretch: {one_line(said)}", file=sys.stderr)
            return


def result_json(result: QuantizedNetwork, paths: Sequence[Path], images: int) -> dict[str, Any]:
    """Return both files and their accuracy as JSON data."""
    return {
        "file": str(paths[0]),
        "float_file": str(paths[1]),
        "size_bytes": len(result.int8_model),
        "float_size_bytes": len(result.float_model),
        **asdict(result.check),
        "calibration_images": images,
        "float_operators": list(result.float_operators),
    }


def load_trained(
    recipe: Recipe, plan_file: str | None, model: str | None, weights: str
) -> nn.Module:
    """Build the recipe's network, or a plan's, with its trained weights."""
    from nnstretch.capture import load_model
    from nnstretch.stretch.weights.weights_file import load_weights, seed_of_weights

    seed = seed_of_weights(weights)
    if plan_file is None:
        module = load_model(recipe.model, seed)
    else:
        from nnstretch.stretch import read_plan, stretch

        plan = read_plan(Path(plan_file))
        if model is None:
            check_model_file(plan.model, f"plan {plan_file}")
        module = stretch(load_model(model or plan.model, seed), plan, inherit=False)
    load_weights(module, weights)
    return module


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    from rich.table import Table

    table = Table("form", "accuracy", "MB", "file")
    table.add_row("PyTorch float32", f"{result['torch_accuracy']:.2%}", "", "")
    for form in ("float", "int8"):
        key = "float_" if form == "float" else ""
        accuracy = f"{result[f'{form}_accuracy']:.2%}"
        megabytes = f"{result[f'{key}size_bytes'] / 1e6:.2f}"
        label = "LiteRT float32" if form == "float" else "LiteRT int8"
        table.add_row(label, accuracy, megabytes, result[f"{key}file"])
    console.print(table)
    console.print(
        f"int8 and float32 choose the same class for {result['agreement']:.2%} of"
        f" {result['images']} held-out images; float32 differs from PyTorch by"
        f" {result['max_abs_error']:.1e} at most"
    )
    if result["float_operators"]:
        console.print(
            "[yellow]these operators have no int8 form and stay float32:"
            f" {', '.join(result['float_operators'])}[/yellow]"
        )
