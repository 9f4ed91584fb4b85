"""Trained network -> int8 .tflite by post-training quantization, judged on held-out images.

Int8 weights have a scale per channel; ranges of int8 activations are measured on images. Input and
output are int8, NHWC. A network that loses too much accuracy is refused and nothing is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import nn

from nnstretch.bundle.image_task import ImageTask, task_text
from nnstretch.capture.exported_program import eval_mode
from nnstretch.errors import BadInput, Mismatch, describe_error
from nnstretch.export.int8_accuracy import LabeledBatches, check_labels, refuse_drop
from nnstretch.export.litert import convert as litert
from nnstretch.export.litert.flatbuffer import with_description
from nnstretch.export.litert.packages import require_packages
from nnstretch.export.litert.runner import LiteRTRunner
from nnstretch.files.atomic import atomic_write
from nnstretch.files.checked import checked
from nnstretch.files.limits import shorten

SUFFIX = ".tflite"
FLOAT_SUFFIX = ".float.tflite"
TOLERANCE = 1e-3
"""Largest difference of the float file from the module, over the largest score (at least 1)."""

PAIRS = "needed are batches, each images and their labels"

Progress = Callable[[str, float, float], None]


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


@dataclass(frozen=True, slots=True)
class QuantizedNetwork:
    """Both files of a network as bytes, and how accurate they are."""

    int8_model: bytes
    float_model: bytes
    check: AccuracyCheck
    float_operators: tuple[str, ...]
    """Kinds of operator without an int8 form."""


@checked
def quantize(
    module: nn.Module,
    path: Path | str,
    *,
    calibration: LabeledBatches,
    held_out: LabeledBatches,
    classes: int,
    name: str = "network",
    max_drop: float = 1.0,
    progress: Progress | None = None,
    image_task: ImageTask | None = None,
) -> QuantizedNetwork:
    """Write the int8 network to FILE.tflite and its float32 form to FILE.float.tflite.

    Ranges are moving averages over `calibration`: its order counts, its labels do not.
    `image_task` is written into the description of both files. Raises
    BadInput where network and images do not fit or a label of `held_out` is no class,
    UnsupportedOp where LiteRT lacks an operator, Mismatch where the float file differs from the
    module or int8 loses more than `max_drop` points of accuracy.
    """
    int8_path, float_path = output_paths(path)
    counts = (count_images(calibration, "calibration"), count_images(held_out, "held_out"))
    check_settings(*counts, max_drop)
    require_packages()
    tell = progress or (lambda what, done, total: None)
    with eval_mode(module):
        plain, small = convert_network(module, calibration, classes, name, tell)
        check = check_accuracy(module, plain, small, held_out, classes, name, tell)
    refuse_drop(check.float_accuracy, check.int8_accuracy, check.images, max_drop, name)
    if image_task is not None:
        text = f"image_task: {task_text(image_task)}"
        plain, small = (with_description(model, text) for model in (plain, small))
    with atomic_write(int8_path) as aside, atomic_write(float_path) as aside_float:
        aside.write_bytes(small)
        aside_float.write_bytes(plain)
    return QuantizedNetwork(small, plain, check, litert.float_operators(small))


def output_paths(path: Path | str) -> tuple[Path, Path]:
    """Return the paths of the int8 and of the float32 file. Raises BadInput for another suffix."""
    name = str(path)
    if not name.endswith(SUFFIX) or name.endswith(FLOAT_SUFFIX) or Path(name).name == SUFFIX:
        raise BadInput(
            f"cannot write {name}, quantize, name a FILE{SUFFIX} (its float32 becomes"
            f" FILE{FLOAT_SUFFIX})"
        )
    return Path(name), Path(name.removesuffix(SUFFIX) + FLOAT_SUFFIX)


def check_settings(calibration: int, images: int | None, max_drop: float) -> None:
    """Check the numbers of a quantization. Raises BadInput when one is out of range."""
    for kind, count in (("calibration", calibration), ("held-out", images)):
        if count is not None and count < 1:
            raise BadInput(f"{kind} images are {count}, quantize, at least 1 is needed")
    if not 0 <= max_drop <= 100:
        raise BadInput(
            f"max_drop is {max_drop:g}, quantize, it is points of accuracy from 0 to 100"
        )


def count_images(batches: LabeledBatches, name: str) -> int:
    """Return how many images there are. Raises BadInput with the argument's name."""
    try:
        iter(batches)
        return len(batches)
    except TypeError:
        raise BadInput(f"{name} is {shorten(batches)}, quantize, {PAIRS}") from None


def labeled_images(
    batches: LabeledBatches, name: str
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield images and labels of each batch. Raises BadInput with the argument's name."""
    for batch in batches:
        tensors = batch if isinstance(batch, tuple | list) else ()
        if [isinstance(tensor, torch.Tensor) for tensor in tensors] != [True, True]:
            raise BadInput(f"{name} has {shorten(batch)}, quantize, {PAIRS}")
        images, labels = tensors
        if images.dim() == 0 or labels.shape != images.shape[:1]:
            shapes = f"images of {tuple(images.shape)} and labels of {tuple(labels.shape)}"
            raise BadInput(f"{name} has {shapes}, quantize, {PAIRS}")
        yield images.detach(), labels


def convert_network(
    module: nn.Module, calibration: LabeledBatches, classes: int, name: str, tell: Progress
) -> tuple[bytes, bytes]:
    """Convert the network to float32 and to int8."""
    tell("converting", 0, 1)
    batches = (images for images, _ in labeled_images(calibration, "calibration"))
    first = next(batches)
    example = first[:1]
    check_fit(module, example, classes, name)
    plain = litert.to_litert(module, (example,), name)
    alike = (of_size(batch, example) for batch in chain([first], batches))
    singles = chain.from_iterable(batch.split(1) for batch in alike)
    # LiteRT crashes where ranges are not finite.
    inputs = ((with_finite_scores(module, image, name),) for image in singles)
    total = len(calibration)
    small = litert.to_int8(plain, inputs, name, lambda done: tell("calibrating", done, total))
    return plain, small


def of_size(images: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """Return images as they are. Raises BadInput where they are of another size than the first."""
    if images.shape[1:] != example.shape[1:]:
        raise BadInput(
            f"calibration has images of {tuple(images.shape)}, quantize, the first is of"
            f" {tuple(example.shape)}"
        )
    return images


def with_finite_scores(module: nn.Module, image: torch.Tensor, name: str) -> torch.Tensor:
    """Return an image as it is. Raises BadInput where the network's scores are not finite."""
    with torch.inference_mode():
        refuse_not_finite(module(image).numpy(), "calibration", name)
    return image


def refuse_not_finite(scores: np.ndarray, images: str, name: str) -> None:
    """Refuse scores of float32 PyTorch that no int8 can hold. Raises BadInput."""
    if not np.isfinite(scores).all():
        raise BadInput(
            f"{name} gives scores that are not finite, {images} images, int8 needs their range,"
            " mend its weights or statistics"
        )


def check_fit(module: nn.Module, example: torch.Tensor, classes: int, name: str) -> None:
    """Send one image through the network before minutes are spent on it. Raises BadInput."""
    try:
        with torch.inference_mode():
            scores = module(example)
    # Broad on purpose: what a user's network raises of an image is of any kind, and may be empty.
    except Exception as error:
        raise BadInput(
            f"{name} refuses an image of {tuple(example.shape)}, recipe, quantize feeds it one"
            f" float32 input: {describe_error(error)}"
        ) from error
    if not isinstance(scores, torch.Tensor):
        raise BadInput(
            f"{name} gives a {type(scores).__name__} for one image, recipe, quantize judges one"
            " tensor of scores: choose it, as in --model NET.py:FACTORY#0"
        )
    shape = tuple(scores.shape)
    if shape != (1, classes):
        raise BadInput(
            f"{name} gives {shape} for one image, {classes} classes, it must give {(1, classes)}"
        )


def check_accuracy(
    module: nn.Module,
    plain: bytes,
    small: bytes,
    held_out: LabeledBatches,
    class_count: int,
    name: str,
    tell: Progress,
) -> AccuracyCheck:
    """Judge PyTorch, float32 and int8 on held-out images, one at a time as they will run.

    Raises BadInput for a label that is no class, Mismatch where the float file computes something
    else.
    """
    runners = LiteRTRunner(plain, name), LiteRTRunner(small, name)
    classes: list[np.ndarray] = []
    worst = 0.0
    largest = 0.0
    tell("checking", 0, len(held_out))
    for images, labels in labeled_images(held_out, "held_out"):
        check_labels(labels, class_count)
        exact, from_float, from_int8 = scores(module, runners, images, name)
        worst = max(worst, largest_difference(exact, from_float))
        largest = max(largest, float(np.abs(exact).max()))
        columns = [labels.numpy(), *(score.argmax(1) for score in (exact, from_float, from_int8))]
        classes.append(np.stack(columns))
        tell("checking", sum(part.shape[1] for part in classes), len(held_out))
    allowed = TOLERANCE * max(1.0, largest)
    if not worst <= allowed:
        raise Mismatch(
            f"float32 LiteRT of {name} differs from PyTorch by {worst:.3g}, {len(held_out)}"
            f" images, allowed are {allowed:.3g}"
        )
    return summarize_accuracy(np.concatenate(classes, axis=1), worst)


def scores(
    module: nn.Module, runners: Sequence[LiteRTRunner], images: torch.Tensor, name: str
) -> Iterator[np.ndarray]:
    """Yield the scores [images, classes] of PyTorch, then of each runner.

    Raises BadInput where PyTorch's are not finite.
    """
    with torch.inference_mode():
        exact = module(images).numpy()
    refuse_not_finite(exact, "held-out", name)
    yield exact
    for runner in runners:
        yield np.concatenate([runner.run(image.numpy()) for image in images.split(1)])


def largest_difference(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return the largest absolute difference; infinite where one is not a number."""
    error = float(np.abs(expected - actual).max())
    return error if math.isfinite(error) else math.inf


def summarize_accuracy(classes: np.ndarray, max_abs_error: float) -> AccuracyCheck:
    """Compare labels with the classes that PyTorch, float32 and int8 choose.

    `classes` has these four rows and a column for each image.
    """
    labels, exact, plain, small = classes
    return AccuracyCheck(
        torch_accuracy=float((exact == labels).mean()),
        float_accuracy=float((plain == labels).mean()),
        int8_accuracy=float((small == labels).mean()),
        agreement=float((small == plain).mean()),
        max_abs_error=max_abs_error,
        images=len(labels),
    )
