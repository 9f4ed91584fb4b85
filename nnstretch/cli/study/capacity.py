"""How shallow and how narrow may the branches of this network be? The preliminary experiment of
NN-Stretch, on your data.

Small variants, two branches in every stage, are trained by a recipe beside the original; the bounds
are the smallest shares of depth and width inside which no variant loses more than the tolerance.
Give them to `nnstretch search`. An interrupted study goes on where it stopped.

  nnstretch study capacity torchvision:resnet18?num_classes=10 --data.image_px 32 --epochs 5
  nnstretch study capacity net.py:make --recipe mine.yaml --depths 1,0.5 --widths 0.75,0.5,0.25
  --seeds 3 --out capacity
"""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from nnstretch.study.capacity.experiment import CapacityResult, CapacityRow
    from nnstretch.train.recipe import Recipe

SUMMARY = "lower bounds on depth and width, from training small variants"


def ratios(text: str) -> tuple[float, ...]:
    """Parse `1,0.5,0.3`; the study itself checks the range.

    Raises ArgumentTypeError when the text holds no numbers.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} are no shares, write them as in 1,0.5,0.3"
        ) from None


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    from nnstretch.study.capacity.bounds import DEFAULT_DEPTHS, DEFAULT_WIDTHS
    from nnstretch.train.recipe_loader import recipe_settings

    def listed(numbers: tuple[float, ...]) -> str:
        return ",".join(f"{n:g}" for n in numbers)

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
        "--epochs", type=int, default=None, help="of every training; short for --trainer.max_epochs"
    )
    parser.add_argument(
        "--depths",
        type=ratios,
        default=DEFAULT_DEPTHS,
        help=f"shares of blocks of the second branch (default {listed(DEFAULT_DEPTHS)})",
    )
    parser.add_argument(
        "--widths",
        type=ratios,
        default=DEFAULT_WIDTHS,
        help=f"shares of channels of the second branch (default {listed(DEFAULT_WIDTHS)})",
    )
    parser.add_argument(
        "--seeds", type=int, default=2, metavar="N", help="trainings of every network (default 2)"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.5,
        metavar="POINTS",
        help=(
            "accuracy that a variant may lose, in points, widened by one standard error over the"
            " seeds (default 0.5)"
        ),
    )
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
        print(
            f"nnstretch: finished trainings are kept in {args.out}, the same command goes on",
            file=sys.stderr,
        )
        raise


def recipe_of(args: argparse.Namespace) -> Recipe:
    """Return the recipe with the command line's settings.

    Raises BadInput when the number of epochs is given twice.
    """
    from nnstretch.train.recipe_loader import load_recipe

    settings = {
        key.removeprefix("set "): value
        for key, value in vars(args).items()
        if key.startswith("set ") and value is not None
    }
    if args.epochs is not None:
        if "trainer.max_epochs" in settings:
            raise BadInput(
                f"--epochs is {args.epochs}, command line, --trainer.max_epochs is given, too,"
                " leave one out"
            )
        settings["trainer.max_epochs"] = args.epochs
    return load_recipe(
        args.recipe, [f"model={args.model}", *(f"{key}={value}" for key, value in settings.items())]
    )


def as_json(study: CapacityResult) -> dict[str, Any]:
    """Return the study of capacity as JSON data."""
    from nnstretch.train.data import open_dataset

    wanted, bounds = study.request, study.bounds
    dataset = open_dataset(wanted.recipe.data)
    return {
        "model": wanted.model,
        "recipe": asdict(wanted.recipe),
        "start": str(wanted.weights or "scratch"),
        "seeds": wanted.seeds,
        "original": network_json(study.original),
        "variants": [variant_json(study, row) for row in study.rows],
        "min_depth": bounds.depth,
        "min_width": bounds.width,
        "tolerance": wanted.tolerance * 100,
        "margin": study.margin * 100,
        "inside": bounds.supporting_variants,
        "search": (
            f"nnstretch search {shlex.quote(wanted.model)} --soc SOC --min-depth {bounds.depth:g}"
            f" --min-width {bounds.width:g}"
        ),
        "images": len(dataset.held),
        "chance": 1 / len(dataset.classes),
        "reused": study.reused,
        "journal": str(study.journal),
    }


def network_json(row: CapacityRow) -> dict[str, Any]:
    """Return accuracy and size of a trained network as JSON data."""
    return {
        "accuracy": row.accuracy,
        "spread": row.spread,
        "macs": row.candidate.stretched.macs,
        "params": row.candidate.stretched.params,
        "epochs": row.epochs,
        "seconds": row.seconds,
        "accuracies": list(row.accuracies),
    }


def variant_json(study: CapacityResult, row: CapacityRow) -> dict[str, Any]:
    """Return a variant with its verdict as JSON data."""
    shape = row.candidate.shape
    assert shape is not None, "every variant has one; only the original does not"
    return {
        "depth": shape.depth,
        "width": shape.width,
        **network_json(row),
        "holds": study.is_accurate(row),
        "family": shape.family,
        "branches": [
            {"depth": share.depth, "width": share.width} for share in (shape.main, shape.second)
        ],
        "plan": row.candidate.key,
        "sequential": list(row.candidate.refusals),
    }


def verdict(result: dict[str, Any]) -> str:
    """Return one line: what the bounds are, and what supports them."""
    depth, width, margin = (
        result["min_depth"],
        result["min_width"],
        f"{result['margin']:.2f} points",
    )
    if not result["inside"]:
        return (
            "no share of depth or width holds: with any of them some variant loses more than"
            f" {margin}, so both bounds are 1.0"
        )
    claim = (
        f"all {result['inside']} variants with at least these shares are within {margin} of the"
        " original"
    )
    return (
        f"depth at least {depth:g}, width at least {width:g}: {claim};"
        f" {explain_bound(result, 'depth', 'width')}, {explain_bound(result, 'width', 'depth')}"
    )


def explain_bound(result: dict[str, Any], name: str, another: str) -> str:
    """Return why a bound is not lower."""
    smaller = [
        row
        for row in result["variants"]
        if row[name] < result[f"min_{name}"] and row[another] >= result[f"min_{another}"]
    ]
    return (
        f"a smaller {name} does not hold"
        if smaller
        else f"no smaller {name} was tried at this {another}"
    )


def show(result: dict[str, Any], console: Any) -> None:
    """Print the result for people."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    first = result["original"]
    table = Table(
        "(depth, width) of branches",
        "accuracy",
        "±",
        "points",
        "MACs",
        "params",
        "s",
        "holds",
        box=SIMPLE_HEAD,
    )
    table.add_row(
        "original",
        f"{first['accuracy']:.2%}",
        spread(first),
        "",
        "1.000x",
        "1.000x",
        f"{first['seconds']:.0f}",
        "",
    )
    for row in result["variants"]:
        table.add_row(
            " + ".join(f"({b['depth']:g}, {b['width']:g})" for b in row["branches"]),
            f"{row['accuracy']:.2%}",
            spread(row),
            f"{(row['accuracy'] - first['accuracy']) * 100:+.2f}",
            f"{row['macs'] / first['macs']:.3f}x",
            f"{row['params'] / first['params']:.3f}x",
            f"{row['seconds']:.0f}",
            "yes" if row["holds"] else "no",
        )
    console.print(
        f"[bold]{escape(result['model'])}[/bold] from {result['start']}, {first['epochs']} epochs,"
        f" seeds: {result['seeds']}"
    )
    console.print(table)
    if first["accuracy"] < 2 * result["chance"]:
        console.print(
            "[yellow]the original itself has hardly learnt anything, so the bounds mean nothing:"
            " more epochs[/yellow]"
        )
    widened = result["margin"] - result["tolerance"]
    console.print(
        f"margin {result['margin']:.2f} points: tolerance {result['tolerance']:g} + {widened:.2f},"
        f" one standard error over the seeds; one of {result['images']} held-out images is"
        f" {100 / result['images']:.2f}"
    )
    for line in sorted({line for row in result["variants"] for line in row["sequential"]}):
        console.print(f"[yellow]not branched:[/yellow] {escape(line)}")
    console.print(verdict(result))
    console.print(result["search"], markup=False, soft_wrap=True)


def spread(row: dict[str, Any]) -> str:
    """Return the spread over seeds in points, "-" with one seed."""
    return f"{row['spread'] * 100:.2f}" if len(row["accuracies"]) > 1 else "-"
