"""A trained network, original or branched, as int8 for LiteRT, judged on held-out images before and
after.

  nnstretch quantize digits --plan plan.yaml --weights branched/weights.safetensors --out net.tflite
  nnstretch quantize original/recipe.yaml --weights original/weights.safetensors --out
  original.tflite --max-drop 0.5

Post-training quantisation: int8 weights with a scale per channel, int8 activations whose ranges are
measured on training images, int8 input and output (NHWC). FILE.tflite is int8, FILE.float.tflite
beside it the float32 it was made from. The recipe says which images; the ones to calibrate and to
check with are drawn by its seed. A network that loses more than --max-drop points of accuracy is
refused and nothing is written.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnstretch.cli.common import check_writable, progress_stages
from nnstretch.errors import BadInput, Mismatch

if TYPE_CHECKING:
    import torch
    from rich.console import Console
    from torch import nn

    from nnstretch.export.litert.convert import LiteRTRunner
    from nnstretch.train.data import Dataset, Images
    from nnstretch.train.recipe import Recipe

SUMMARY = "int8 for LiteRT, with its accuracy before and after"
SUFFIX, FLOAT_SUFFIX = ".tflite", ".float.tflite"
CALIBRATION_IMAGES = 200
READ_IMAGES = 32
"""Images in memory at a time."""
TOLERANCE = 1e-3
"""Largest difference of the float file from the module, over the largest magnitude it writes (or
1).
"""

Batches = Iterator[tuple["torch.Tensor", "torch.Tensor"]]
Tell = Callable[[str, float, float], None]


@dataclass(frozen=True, slots=True)
class TrainedNetwork:
    """A network in evaluation mode, what to call it, and the images it was made for."""

    module: nn.Module
    name: str
    recipe: Recipe
    dataset: Dataset

    def read(self, images: Images, indices: list[int], aloud: bool = True) -> Batches:
        """Read images as the network sees them, with their labels; `aloud`, what is skipped is
        named.
        """
        from nnstretch.train.data import prepare_images

        for first in range(0, len(indices), READ_IMAGES):
            batch = prepare_images(
                self.dataset, images, indices[first : first + READ_IMAGES], self.recipe.data, aloud
            )
            if len(batch[1]):
                yield batch


@dataclass(frozen=True, slots=True)
class AccuracyCheck:
    """Three forms of one network on the same held-out images; shares from 0 to 1."""

    torch_accuracy: float
    float_accuracy: float
    int8_accuracy: float
    agreement: float
    """Share of images to which int8 and float32 LiteRT give the same class."""
    max_abs_error: float
    """Largest difference of a score, float32 LiteRT from PyTorch."""
    images: int


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
    parser.add_argument(
        "--calibration",
        type=int,
        default=CALIBRATION_IMAGES,
        metavar="N",
        help=f"training images on which ranges are measured (default {CALIBRATION_IMAGES})",
    )
    parser.add_argument(
        "--images",
        type=int,
        default=None,
        metavar="N",
        help="held-out images to check on (default: all)",
    )
    parser.add_argument(
        "--max-drop",
        type=float,
        default=1.0,
        metavar="POINTS",
        help=(
            "accuracy that int8 may lose against float32, in points; more is refused (default 1.0)"
        ),
    )
    group = parser.add_argument_group("recipe keys")
    for key, default in recipe_settings():
        if key in ("model", "seed") or key.startswith("data."):
            group.add_argument(
                f"--{key}",
                dest=f"set {key}",
                metavar="VALUE",
                help=f"default {default}".replace("%", "%%"),
            )


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data."""
    from nnstretch.export.litert.convert import float_operators, require_packages
    from nnstretch.train.data import open_dataset
    from nnstretch.train.recipe_loader import load_recipe

    out, beside = outputs(args)
    check_settings(args)
    require_packages()
    settings = {
        key.removeprefix("set "): value
        for key, value in vars(args).items()
        if key.startswith("set ") and value is not None
    }
    recipe = load_recipe(args.recipe, [f"{key}={value}" for key, value in settings.items()])
    trained = TrainedNetwork(
        *network(recipe, args.plan, settings.get("model"), args.weights),
        recipe,
        open_dataset(recipe.data),
    )
    with progress_stages() as tell:
        plain, small = convert_network(trained, args.calibration, tell)
        check = check_accuracy(trained, plain, small, args.images, tell)
    refuse_drop(check, args.max_drop, trained.name)
    write_both(out, small, beside, plain)
    return {
        "file": str(out),
        "float_file": str(beside),
        "size_bytes": len(small),
        "float_size_bytes": len(plain),
        **asdict(check),
        "calibration_images": min(args.calibration, len(trained.dataset.train)),
        "float_operators": list(float_operators(small)),
    }


def outputs(args: argparse.Namespace) -> tuple[Path, Path]:
    """Return the paths of the int8 file and of the float file beside it.

    Raises BadInput when the name does not end in .tflite.
    """
    if (
        not args.out.endswith(SUFFIX)
        or args.out.endswith(FLOAT_SUFFIX)
        or Path(args.out).name == SUFFIX
    ):
        raise BadInput(
            f"--out is {args.out}, command line, name a FILE{SUFFIX} (its float32 becomes"
            f" FILE{FLOAT_SUFFIX})"
        )
    names = (args.out, args.out.removesuffix(SUFFIX) + FLOAT_SUFFIX)
    out, beside = (check_writable(name, args.plan, args.weights) for name in names)
    assert out is not None
    assert beside is not None
    return out, beside


def check_settings(args: argparse.Namespace) -> None:
    """Check the numbers of the command line. Raises BadInput when one is out of range."""
    for option, count in (("--calibration", args.calibration), ("--images", args.images)):
        if count is not None and count < 1:
            raise BadInput(f"{option} is {count}, command line, at least 1 image is needed")
    if not 0 <= args.max_drop <= 100:
        raise BadInput(
            f"--max-drop is {args.max_drop:g}, command line, it is points of accuracy from 0 to 100"
        )


def network(
    recipe: Recipe, plan_file: str | None, model: str | None, weights: str
) -> tuple[nn.Module, str]:
    """Return the trained network in evaluation mode, and what to call it."""
    from nnstretch.capture import load_model
    from nnstretch.train import load_weights

    if plan_file is None:
        module, name = load_model(recipe.model), recipe.model
    else:
        from nnstretch.stretch import read_plan, stretch

        plan = read_plan(Path(plan_file))
        module, name = stretch(load_model(model or plan.model), plan, inherit=False), plan_file
    load_weights(module, weights)
    return module.eval(), name


def select_images(available: int, wanted: int | None, seed: int) -> list[int]:
    """Return which images: all of them in order, or a draw that depends on the seed alone, in
    ascending order.
    """
    if wanted is None or wanted >= available:
        return list(range(available))
    return sorted(np.random.default_rng(seed).choice(available, wanted, replace=False).tolist())


def convert_network(trained: TrainedNetwork, calibration: int, tell: Tell) -> tuple[bytes, bytes]:
    """Convert the network to float32 and int8."""
    from nnstretch.export.litert.convert import to_int8, to_litert

    tell("converting", 0, 1)
    images, seed = trained.dataset.train, trained.recipe.seed
    indices = shuffle_batches(select_images(len(images), calibration, seed), seed)
    example = next(trained.read(images, indices, aloud=False))[0][:1]
    check_fit(trained, example)
    plain = to_litert(trained.module, (example,), trained.name)
    inputs = ((image,) for batch, _ in trained.read(images, indices) for image in batch.split(1))
    return plain, to_int8(
        plain, inputs, trained.name, lambda done: tell("calibrating", done, len(indices))
    )


def shuffle_batches(indices: list[int], seed: int) -> list[int]:
    """Return batches in random order: ranges are moving averages, so the last images count most.

    They must not all be of one class.
    """
    return np.random.default_rng(seed).permutation(indices).tolist()  # type: ignore[no-any-return]


def check_fit(trained: TrainedNetwork, example: torch.Tensor) -> None:
    """Send one image through the network before minutes are spent on it. Raises BadInput."""
    import torch

    wanted = (1, len(trained.dataset.classes))
    try:
        with torch.inference_mode():
            shape = tuple(trained.module(example).shape)
    except (RuntimeError, ValueError, AttributeError) as error:
        raise BadInput(
            f"{trained.name} refuses an image of {tuple(example.shape)}, recipe,"
            f" {str(error).splitlines()[0][:160]}"
        ) from error
    if shape != wanted:
        raise BadInput(
            f"{trained.name} gives {shape} for one image, data set {trained.recipe.data.name}, it"
            f" must give {wanted}"
        )


def check_accuracy(
    trained: TrainedNetwork, plain: bytes, small: bytes, wanted: int | None, tell: Tell
) -> AccuracyCheck:
    """Judge PyTorch, float32 and int8 on held-out images, one at a time as they will run.

    Raises Mismatch where the float file computes something else.
    """
    from nnstretch.export.litert.convert import LiteRTRunner
    from nnstretch.train.data.datamodule import no_readable_image_error

    runners = LiteRTRunner(plain, trained.name), LiteRTRunner(small, trained.name)
    indices = select_images(len(trained.dataset.held), wanted, trained.recipe.seed)
    classes: list[np.ndarray] = []
    worst = largest = 0.0
    tell("checking", 0, len(indices))
    for images, labels in trained.read(trained.dataset.held, indices):
        exact, plainly, roughly = scores(trained.module, runners, images)
        worst, largest = (
            max(worst, largest_difference(exact, plainly)),
            max(largest, float(np.abs(exact).max())),
        )
        classes.append(
            np.stack([labels.numpy(), exact.argmax(1), plainly.argmax(1), roughly.argmax(1)])
        )
        tell("checking", sum(part.shape[1] for part in classes), len(indices))
    if not classes:
        raise no_readable_image_error(trained.recipe.data)
    if not worst <= (allowed := TOLERANCE * max(1.0, largest)):
        raise Mismatch(
            f"float32 LiteRT of {trained.name} differs from PyTorch by {worst:.3g}, {len(indices)}"
            f" images, allowed are {allowed:.3g}"
        )
    return summarize_accuracy(np.concatenate(classes, axis=1), worst)


def scores(
    module: nn.Module, runners: Sequence[LiteRTRunner], images: torch.Tensor
) -> Iterator[np.ndarray]:
    """Yield the scores [images, classes] of PyTorch, then of each runner."""
    import torch

    with torch.inference_mode():
        yield module(images).numpy()
    for runner in runners:
        yield np.concatenate([runner.run(image.numpy()) for image in images.split(1)])


def largest_difference(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return largest absolute difference; infinite where a number is none."""
    error = float(np.abs(expected - actual).max())
    return error if math.isfinite(error) else math.inf


def summarize_accuracy(classes: np.ndarray, max_abs_error: float) -> AccuracyCheck:
    """Compare labels with the classes that PyTorch, float32 and int8 choose."""
    labels, exact, plain, small = classes
    return AccuracyCheck(
        torch_accuracy=float((exact == labels).mean()),
        float_accuracy=float((plain == labels).mean()),
        int8_accuracy=float((small == labels).mean()),
        agreement=float((small == plain).mean()),
        max_abs_error=max_abs_error,
        images=len(labels),
    )


def refuse_drop(check: AccuracyCheck, max_drop: float, name: str) -> None:
    """Check the loss of accuracy. Raises Mismatch when it is beyond the limit."""
    drop = 100 * (check.float_accuracy - check.int8_accuracy)
    if drop > max_drop + 1e-9:
        raise Mismatch(
            f"int8 of {name} loses {drop:.2f} points of accuracy, {check.images} held-out images"
            f" ({check.float_accuracy:.2%} to {check.int8_accuracy:.2%}), --max-drop allows"
            f" {max_drop:g}; nothing was written"
        )


def write_both(out: Path, small: bytes, beside: Path, plain: bytes) -> None:
    """Write both files; both are complete before either takes its name."""
    from nnstretch.files.atomic import atomic_write

    with atomic_write(out) as aside, atomic_write(beside) as aside_float:
        aside.write_bytes(small)
        aside_float.write_bytes(plain)


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    from rich.table import Table

    table = Table("form", "accuracy", "MB", "file")
    table.add_row("PyTorch float32", f"{result['torch_accuracy']:.2%}", "", "")
    table.add_row(
        "LiteRT float32",
        f"{result['float_accuracy']:.2%}",
        f"{result['float_size_bytes'] / 1e6:.2f}",
        result["float_file"],
    )
    table.add_row(
        "LiteRT int8",
        f"{result['int8_accuracy']:.2%}",
        f"{result['size_bytes'] / 1e6:.2f}",
        result["file"],
    )
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
