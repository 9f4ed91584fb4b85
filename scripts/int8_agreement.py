"""How often an int8 bundle and a float bundle of one branched network choose the same class, on digits.

Trains the original and the branched network, exports the branched one twice (LiteRT float32, LiteRT
int8 calibrated on training images), and runs every image through both bundles by `Session`.

    python scripts/int8_agreement.py --out int8 --write docs/results/int8_agreement.md
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnstretch.bench.commands import command_line, command_parser, run_command
from nnstretch.bench.markdown import markdown_table
from nnstretch.cli import parser_of, verb_module
from nnstretch.files.atomic import write_text

if TYPE_CHECKING:
    from nnstretch.run import Session

MODEL = "torchvision:resnet18?num_classes=10"
NEEDED = 0.99
"""Of held-out images, same class from int8 as from float."""


@dataclass(frozen=True)
class Row:
    """One set of images."""

    images: str
    count: int
    float_accuracy: float
    int8_accuracy: float
    agreement: float
    """Share of images to which both give the same class."""
    worst: float
    """Largest difference of a score, over the largest score."""


def verb(name: str, *argv: str) -> tuple[str, dict[str, Any]]:
    """Run a verb; return the command as a user types it, and its JSON."""
    command = f"nnstretch {name} {shlex.join(argv)}"
    print(f"$ {command}", flush=True)
    return command, verb_module(name).main(parser_of(name).parse_args(list(argv)))


def commands(out: Path, args: argparse.Namespace) -> list[str]:
    """Train, search, retrain and export to `float.nns` and `int8.nns`; return the commands."""
    size, images = str(args.image_px), str(args.calibration_images)
    plan, branched = f"{out / 'plan.yaml'}", out / "branched"
    weights = (f"{out / 'original' / 'weights.safetensors'}", f"{branched / 'weights.safetensors'}")
    train = ("train", "digits", "--data.image_px", size)
    place = ("--soc", "mi9", "--processors", "cpu,dsp", "--min-macs", "0.9x")
    export = ("export", plan, "--weights", weights[1], "--soc", "mi9", "--format", "litert")
    int8 = ("--int8", "--calibration", "digits", "--calibration-images", images)
    steps = [
        (
            *train,
            "--model",
            MODEL,
            "--trainer.max_epochs",
            str(args.epochs),
            "--out",
            str(out / "original"),
        ),
        ("search", MODEL, "--input", f"1,3,{size},{size}", *place, "--out", plan),
        (
            *train,
            "--plan",
            plan,
            "--weights",
            weights[0],
            "--trainer.max_epochs",
            str(args.retrain_epochs),
            "--out",
            str(branched),
        ),
        (*export, "--out", str(out / "float.nns")),
        (*export, *int8, "--out", str(out / "int8.nns")),
    ]
    return [verb(*step)[0] for step in steps]


def pictures(image_px: int, held_out: bool) -> Iterator[tuple[np.ndarray, int]]:
    """Yield every image as the network sees it, not augmented, and its class."""
    from nnstretch.train.data import open_dataset, prepare_images
    from nnstretch.train.recipe_loader import load_recipe

    recipe = load_recipe("digits", [f"data.image_px={image_px}"])
    dataset = open_dataset(recipe.data)
    part = dataset.held if held_out else dataset.train
    for index in range(len(part)):
        image, label = prepare_images(dataset, part, [index], recipe.data)
        yield image.numpy(), int(label[0])


def compared(
    name: str, sessions: tuple[Session, Session], images: Iterator[tuple[np.ndarray, int]]
) -> Row:
    labels: list[int] = []
    scores: list[list[np.ndarray]] = [[], []]
    for image, label in images:
        labels.append(label)
        for kept, session in zip(scores, sessions, strict=True):
            kept.append(np.asarray(session.run(image))[0])
    plain, small = (np.stack(kept) for kept in scores)
    return Row(
        images=name,
        count=len(labels),
        float_accuracy=float((plain.argmax(1) == labels).mean()),
        int8_accuracy=float((small.argmax(1) == labels).mean()),
        agreement=float((plain.argmax(1) == small.argmax(1)).mean()),
        worst=float(np.abs(plain - small).max() / np.abs(plain).max()),
    )


HEADS = (
    *("images", "count", "accuracy, float", "accuracy, int8", "same class"),
    "largest difference of a score",
)


def page(steps: list[str], plan: str, rows: list[Row]) -> str:
    head = """# int8 against float

A ResNet-18 trained on scikit-learn's digits, stretched for the CPU and DSP of `mi9`, retrained, and exported as LiteRT in float32
and in int8; every image went through both bundles by `Session`. No image was augmented; the held-out fifth was seen neither in
training nor in calibration. One training, one seed.
"""
    cells = []
    for row in rows:
        shares = (row.float_accuracy, row.int8_accuracy, row.agreement)
        worst = f"{row.worst:.1%} of the largest"
        cells.append((row.images, row.count, *(f"{share:.2%}" for share in shares), worst))
    lines = [head, *markdown_table(HEADS, cells), "", f"Made by `{command_line()}`, which ran"]
    lines += ["", "```sh", *steps, "```", "", "with the plan"]
    return "\n".join([*lines, "", "```yaml", plan.strip(), "```", ""])


def arguments() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("int8"),
        help="folder for everything made on the way (default int8)",
    )
    parser.add_argument("--write", type=Path, default=None, help="a page of the result, Markdown")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of the original (default 5)")
    parser.add_argument(
        "--retrain-epochs", type=int, default=3, help="epochs of the branched network (default 3)"
    )
    parser.add_argument("--image-px", type=int, default=32, help="side of the images (default 32)")
    parser.add_argument(
        "--calibration-images",
        type=int,
        default=64,
        help="training images on which ranges are measured (default 64)",
    )
    return parser


def main() -> int:
    args = arguments().parse_args()
    from nnstretch.run import Session

    args.out.mkdir(parents=True, exist_ok=True)
    steps = commands(args.out, args)
    rows = []
    with (
        Session(args.out / "float.nns", "mi9") as plain,
        Session(args.out / "int8.nns", "mi9") as small,
    ):
        for name, held_out in (("held out", True), ("trained on", False)):
            rows.append(compared(name, (plain, small), pictures(args.image_px, held_out)))
            print(rows[-1])
    if args.write is not None:
        write_text(args.write, page(steps, (args.out / "plan.yaml").read_text(), rows))
    return 0 if rows[0].agreement >= NEEDED else 1


if __name__ == "__main__":
    sys.exit(run_command(main))
