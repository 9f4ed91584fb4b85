"""How shallow and how narrow may the branches of this network be? The preliminary experiment of
NN-Stretch, on your data.

Small variants, two branches in every stage, are trained by a recipe beside the original; the bounds
are the smallest shares of depth and width inside which no variant loses more than the tolerance.
Give them to `nnstretch search`. An interrupted study goes on where it stopped.

  nnstretch study capacity 'torchvision:resnet18?num_classes=10' --data.image_px 32 --epochs 5
  nnstretch study capacity net.py:make --recipe mine.yaml --depths 1,0.5 --seeds 3 --out capacity
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.arguments import finite_number, recipe_overrides, whole_number
from nnstretch.cli.study.capacity_json import as_json
from nnstretch.cli.study.capacity_show import show as show
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from nnstretch.train.recipe import Recipe


def ratios(text: str) -> tuple[float, ...]:
    """Parse `1,0.5,0.3`; the study itself checks the range.

    Raises ArgumentTypeError when the text holds no numbers.
    """
    try:
        return tuple(finite_number(part.strip()) for part in text.split(","))
    except (argparse.ArgumentTypeError, BadInput):
        raise argparse.ArgumentTypeError(
            f"{text!r:.80} are no shares, write them as in 1,0.5,0.3"
        ) from None


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="torchvision:NAME, timm:NAME, FILE.py:FACTORY, FILE.pt2 or FILE.onnx",
    )
    parser.add_argument(
        "--recipe",
        default="digits",
        help="RECIPE.yaml, or the name of a shipped one (default digits)",
    )
    parser.add_argument(
        "--epochs", type=whole_number, help="of every training; short for --trainer.max_epochs"
    )
    add_variants(parser)
    parser.add_argument(
        "--weights",
        metavar="CKPT",
        type=Path,
        help="the original's, to start everything from (default: from scratch)",
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        type=Path,
        default=Path("capacity"),
        help="where finished trainings are kept (capacity)",
    )
    add_recipe_keys(parser)


def add_variants(parser: argparse.ArgumentParser) -> None:
    """Add the variants that are trained and the accuracy that they may lose."""
    from nnstretch.study.capacity.bounds import DEFAULT_DEPTHS, DEFAULT_WIDTHS

    depths = ",".join(f"{share:g}" for share in DEFAULT_DEPTHS)
    widths = ",".join(f"{share:g}" for share in DEFAULT_WIDTHS)
    parser.add_argument(
        "--depths",
        type=ratios,
        default=DEFAULT_DEPTHS,
        help=f"shares of blocks of the second branch (default {depths})",
    )
    parser.add_argument(
        "--widths",
        type=ratios,
        default=DEFAULT_WIDTHS,
        help=f"shares of channels of the second branch (default {widths})",
    )
    parser.add_argument(
        "--seeds",
        type=whole_number,
        default=2,
        metavar="N",
        help="trainings of every network (default 2)",
    )
    parser.add_argument(
        "--tolerance",
        type=finite_number,
        default=0.5,
        metavar="POINTS",
        help=(
            "accuracy that a variant may lose, in points, widened by one standard error over the"
            " seeds (default 0.5)"
        ),
    )


def add_recipe_keys(parser: argparse.ArgumentParser) -> None:
    """Add an option for each key of a recipe but the model."""
    from nnstretch.train.recipe_loader import recipe_settings

    group = parser.add_argument_group("recipe keys")
    for key, default in recipe_settings():
        if key != "model":
            group.add_argument(
                f"--{key}",
                dest=f"set {key}",
                metavar="VALUE",
                help=f"default {default}".replace("%", "%%"),
            )


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data. Raises BadInput when MODEL is a plan."""
    from nnstretch.cli.loaded_model import is_plan
    from nnstretch.cli.progress import progress
    from nnstretch.study.capacity.experiment import CapacityRequest, run_capacity_study

    if is_plan(args.model):
        raise BadInput(f"cannot study {args.model}, it is a plan already, name its network")
    wanted = CapacityRequest(
        args.model,
        recipe_of(args),
        args.out,
        args.depths,
        args.widths,
        args.seeds,
        args.tolerance / 100,
        args.weights,
    )
    try:
        with progress("training variants") as tick:
            return as_json(run_capacity_study(wanted, tick))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"finished trainings are kept in {args.out}, the same command goes on"
        ) from None


def recipe_of(args: argparse.Namespace) -> Recipe:
    """Return the recipe with the command line's settings.

    Raises BadInput when the number of epochs is given twice.
    """
    from nnstretch.train.recipe_loader import load_recipe

    settings = recipe_overrides(args)
    if args.epochs is not None:
        if "trainer.max_epochs" in settings:
            raise BadInput(
                f"--epochs is {args.epochs}, command line, --trainer.max_epochs is given, too,"
                " leave one out"
            )
        settings["trainer.max_epochs"] = args.epochs
    assignments = [f"{key}={value}" for key, value in settings.items()]
    return load_recipe(args.recipe, [f"model={args.model}", *assignments])
