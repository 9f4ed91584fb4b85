"""Training losses: on labels, and by a teacher's scores and features (distillation)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nnstretch.errors import BadInput
from nnstretch.stretch.weights import feature_matching as features
from nnstretch.stretch.weights.branched_module import StretchedNetwork
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
