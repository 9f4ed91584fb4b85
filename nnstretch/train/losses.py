"""Training losses: on labels, and by a teacher's scores and features (distillation).

Scores are checked, as a network's own code may act otherwise in training than in evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nnstretch.errors import BadInput, NnstretchError, describe_error
from nnstretch.stretch.weights import feature_matching as features
from nnstretch.stretch.weights.branched_module import StretchedNetwork
from nnstretch.train.failures import explain_error
from nnstretch.train.recipe import LossSettings, Recipe


def label_loss(student: Tensor, labels: Tensor, loss: LossSettings) -> Tensor:
    """Return the loss on labels: classes `[image]`, or shares `[image, class]`."""
    if loss.kind == "softmax":
        return functional.cross_entropy(student, labels, label_smoothing=loss.label_smoothing)
    classes = student.shape[1]
    targets = labels if labels.ndim == 2 else functional.one_hot(labels, classes).to(student.dtype)
    smooth = targets * (1 - loss.label_smoothing) + loss.label_smoothing / classes
    return functional.binary_cross_entropy_with_logits(student, smooth)


def training_loss(
    student: Tensor, labels: Tensor, teacher: Tensor | None, loss: LossSettings
) -> Tensor:
    """Return the loss on labels, mixed with the teacher's softened scores (Hinton et al. 2015)."""
    on_labels = label_loss(student, labels, loss)
    if teacher is None or not loss.distill:
        return on_labels
    softness = loss.temperature
    soft_student = functional.log_softmax(student / softness, dim=1)
    soft_teacher = functional.log_softmax(teacher / softness, dim=1)
    divergence = functional.kl_div(
        soft_student, soft_teacher, reduction="batchmean", log_target=True
    )
    # Gradients of the softened term shrink with the square of the softness; the factor keeps the
    # mix.
    return (1 - loss.distill) * on_labels + loss.distill * softness**2 * divergence


def class_scores(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Return class scores; networks with auxiliary heads return a tuple that begins with them."""
    return output[0] if isinstance(output, tuple) else output


def network_scores(
    network: nn.Module,
    images: Tensor,
    classes: int,
    data: str,
    compiled: Callable[[Tensor], Any] | None = None,
) -> Tensor:
    """Return a network's scores of images. Raises BadInput for what its own code raises or gives.

    Errors of the machine pass, and so do those of branched networks, whose code is ours.
    """
    mode = f" in {'training' if network.training else 'evaluation'} mode"
    try:
        output = (compiled or network)(images)
    except (NnstretchError, OSError):
        raise
    except Exception as error:
        if isinstance(network, StretchedNetwork) or explain_error(error) is not None:
            raise
        shape = "x".join(map(str, images.shape[1:]))
        raise BadInput(
            f"the network fails{mode}, {len(images)} images of {shape},"
            f" {describe_error(error)}, mend its forward"
        ) from error
    scores = class_scores(output)
    check_scores(scores, len(images), classes, data, mode)
    return scores


def check_scores(scores: object, images: int, classes: int, data: str, where: str = "") -> None:
    """Check the class scores that a network gives for so many images. Raises BadInput."""
    if not isinstance(scores, Tensor):
        raise BadInput(
            f"the network gives a {type(scores).__name__}{where}, data set {data} needs a tensor of"
            " class scores, or a tuple that begins with it"
        )
    shape = tuple(scores.shape)
    if shape != (images, classes):
        advice = "it must give scores of classes"
        if len(shape) == 2 and shape[0] == images:
            advice = f"make it with ?num_classes={classes}"
        count = "one image" if images == 1 else f"{images} images"
        raise BadInput(
            f"the network gives {'x'.join(map(str, shape))} for {count}{where}, data set {data}"
            f" needs {images}x{classes}, {advice}"
        )


@dataclass(frozen=True, slots=True)
class TeacherComparison:
    """Scores of student and teacher on the same images, `[image, class]`."""

    student: Tensor
    teacher: Tensor
    distance: Tensor | None
    """Mean squared difference at the meeting points over the original's variance, if asked for."""


class DistillationTeacher:
    """The original, neither trained nor saved. Raises BadInput where it cannot teach `student`."""

    def __init__(self, network: nn.Module, student: nn.Module, recipe: Recipe) -> None:
        self.network = network.eval()
        self.feature_teacher: features.FeatureTeacher | None = None
        if recipe.loss.features > 0:
            if not isinstance(student, StretchedNetwork) or not features.meeting_names(student):
                raise BadInput(
                    f"loss.features is {recipe.loss.features}, the network has no meeting points,"
                    " set it to 0 or give a --plan with branches"
                )
            self.feature_teacher = features.FeatureTeacher(network, student)

    def compared_channels(self, student: nn.Module) -> tuple[Tensor, ...]:
        """Return the original's channels behind the student's channels at every meeting point."""
        if self.feature_teacher is None or not isinstance(student, StretchedNetwork):
            return ()
        return tuple(point.stands_for.cpu() for point in features.meeting_points(student))

    def to(self, device: torch.device, layout: torch.memory_format) -> None:
        """Move the teacher to a device."""
        self.network.to(device=device, memory_format=layout)  # type: ignore[call-overload]

    def compare(self, student: Callable[[Tensor], Any], images: Tensor) -> TeacherComparison:
        """Return the scores of student and teacher, and the distance of their features."""
        if self.feature_teacher is None or not isinstance(student, StretchedNetwork):
            with torch.no_grad():
                taught = class_scores(self.network(images))
            return TeacherComparison(class_scores(student(images)), taught, None)
        taught, targets = self.feature_teacher(images)
        scores, tensors = features.with_features(student, images)
        distance = features.feature_loss(tensors, targets, features.meeting_points(student))
        return TeacherComparison(class_scores(scores), class_scores(taught), distance)
