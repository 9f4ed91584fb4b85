"""How often an int8 bundle and a float bundle of one branched network choose the same class, on
digits.

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

from nnstretch.cli import parser_of, verb_module
from nnstretch.errors import NnstretchError, one_line

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
    """The command as a user types it, and what it returns."""
    command = f"nnstretch {name} {shlex.join(argv)}"
    print(f"$ {command}", flush=True)
    return command, verb_module(name).main(parser_of(name).parse_args(list(argv)))


def made(out: Path, epochs: int, retrain_epochs: int, image_px: int, images: int) -> list[str]:
    """Trained, searched, retrained and exported as `float.nns` and `int8.nns`; the commands."""
    size = ("--data.image_px", str(image_px))
    original, plan, branched = out / "original", out / "plan.yaml", out / "branched"
    export = (
        "export",
        str(plan),
        "--weights",
        str(branched / "weights.safetensors"),
        "--soc",
        "mi9",
        "--format",
        "litert",
    )
    steps = [
        (
            "train",
            "digits",
            "--model",
            MODEL,
            *size,
            "--trainer.max_epochs",
            str(epochs),
            "--out",
            str(original),
        ),
        (
            "search",
            MODEL,
            "--input",
            f"1,3,{image_px},{image_px}",
            "--soc",
            "mi9",
            "--processors",
            "cpu,dsp",
            "--min-macs",
            "0.9x",
            "--out",
            str(plan),
        ),
        (
            "train",
            "digits",
            "--plan",
            str(plan),
            *size,
            "--weights",
            str(original / "weights.safetensors"),
            "--trainer.max_epochs",
            str(retrain_epochs),
            "--out",
            str(branched),
        ),
        (*export, "--out", str(out / "float.nns")),
        (
            *export,
            "--int8",
            "--calibration",
            "digits",
            "--calibration-images",
            str(images),
            "--out",
            str(out / "int8.nns"),
        ),
    ]
    return [verb(*step)[0] for step in steps]


def pictures(image_px: int, held: bool) -> Iterator[tuple[np.ndarray, int]]:
    """Every image, not augmented, as the network sees it; and its class."""
    from nnstretch.train.data import open_dataset, prepare_images
    from nnstretch.train.recipe_loader import load_recipe

    recipe = load_recipe("digits", [f"data.image_px={image_px}"])
    dataset = open_dataset(recipe.data)
    part = dataset.held if held else dataset.train
    for index in range(len(part)):
        image, label = prepare_images(dataset, part, [index], recipe.data)
        yield image.numpy(), int(label[0])


def compared(
    name: str, sessions: tuple[Session, Session], given: Iterator[tuple[np.ndarray, int]]
) -> Row:
    labels: list[int] = []
    scores: list[list[np.ndarray]] = [[], []]
    for image, label in given:
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


def page(command: str, commands: list[str], plan: str, rows: list[Row]) -> str:
    lines = [
        "# int8 against float",
        "",
        (
            "A ResNet-18 trained on scikit-learn's digits, stretched for the CPU and DSP of `mi9`,"
            " retrained, and exported as LiteRT in float32"
        ),
        (
            "and in int8; every image went through both bundles by `Session`. No image was"
            " augmented; the held-out fifth was seen neither in"
        ),
        "training nor in calibration. One training, one seed.",
        "",
        (
            "| images | count | accuracy, float | accuracy, int8 | same class | largest difference"
            " of a score |"
        ),
        "|---|---|---|---|---|---|",
        *(
            f"| {r.images} | {r.count} | {r.float_accuracy:.2%} | {r.int8_accuracy:.2%} |"
            f" {r.agreement:.2%} | {r.worst:.1%} of the largest |"
            for r in rows
        ),
        "",
        f"Made by `{command}`, which ran",
        "",
        "```sh",
        *commands,
        "```",
        "",
        "with the plan",
        "",
        "```yaml",
        plan.strip(),
        "```",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        from nnstretch.run import Session

        commands = made(
            args.out, args.epochs, args.retrain_epochs, args.image_px, args.calibration_images
        )
        with (
            Session(args.out / "float.nns", "mi9") as plain,
            Session(args.out / "int8.nns", "mi9") as small,
        ):
            sets = (("held out", True), ("trained on", False))
            rows = [
                compared(name, (plain, small), pictures(args.image_px, held)) for name, held in sets
            ]
    except NnstretchError as refusal:
        print(f"nnstretch: {one_line(refusal)}", file=sys.stderr)
        return 1
    for row in rows:
        print(row)
    if args.write is not None:
        from nnstretch.files.atomic import atomic_write

        command = f"python scripts/int8_agreement.py {shlex.join(sys.argv[1:])}"
        with atomic_write(args.write) as aside:
            aside.write_text(
                page(command, commands, (args.out / "plan.yaml").read_text(), rows),
                encoding="utf-8",
            )
    return 0 if rows[0].agreement >= NEEDED else 1


if __name__ == "__main__":
    sys.exit(main())
