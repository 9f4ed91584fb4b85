"""The original as the branched network's teacher.

Its opinion, and its tensors at the meeting points.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nnstretch.errors import BadInput
from nnstretch.stretch.weights import feature_matching as features
from nnstretch.stretch.weights.branched_module import StretchedNetwork
from nnstretch.train.recipe import Recipe


@dataclass(frozen=True, slots=True)
class TeacherComparison:
    """Both networks on the same images."""

    student: Tensor
    """Scores of [images, classes]."""
    teacher: Tensor
    distance: Tensor | None
    """Mean squared difference at the meeting points over the original's variance.

    None where it is not asked for.
    """


class DistillationTeacher:
    """A network that is neither trained nor saved.

    Raises BadInput where it cannot teach `student`.
    """

    def __init__(self, network: nn.Module, student: nn.Module, recipe: Recipe) -> None:
        self.network = network.eval()
        self.watched: features.FeatureTeacher | None = None
        if recipe.loss.features > 0:
            if not isinstance(student, StretchedNetwork) or not features.meeting_names(student):
                raise BadInput(
                    f"loss.features is {recipe.loss.features}, the network has no meeting points,"
                    " set it to 0 or give a --plan with branches"
                )
            self.watched = features.FeatureTeacher(network, student)

    def compared_channels(self, student: nn.Module) -> tuple[Tensor, ...]:
        """Return the channels of every meeting point at which features are compared.

        The original's channel that each channel stands for.
        """
        watched = self.watched is not None and isinstance(student, StretchedNetwork)
        return (
            tuple(point.stands_for.cpu() for point in features.meeting_points(student))  # type: ignore[arg-type]
            if watched
            else ()
        )  # type: ignore[arg-type]

    def to(self, device: torch.device, layout: torch.memory_format) -> None:
        """Move the teacher to a device."""
        self.network.to(device=device, memory_format=layout)  # type: ignore[call-overload]

    def compare(self, student: nn.Module, images: Tensor) -> TeacherComparison:
        """Return the scores of student and teacher and the distance of their features."""
        if self.watched is None or not isinstance(student, StretchedNetwork):
            with torch.no_grad():
                opinion = class_scores(self.network(images))
            return TeacherComparison(class_scores(student(images)), opinion, None)
        opinion, wanted = self.watched(images)
        scores, tensors = features.with_features(student, images)
        return TeacherComparison(
            class_scores(scores),
            class_scores(opinion),
            features.feature_loss(tensors, wanted, features.meeting_points(student)),
        )


def class_scores(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Return class scores; networks with auxiliary heads return a tuple that begins with them."""
    return output[0] if isinstance(output, tuple) else output
