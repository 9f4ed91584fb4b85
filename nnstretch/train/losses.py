"""What training minimises, as functions of scores."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from nnstretch.train.recipe import LossSettings


def label_loss(student: Tensor, labels: Tensor, loss: LossSettings) -> Tensor:
    """Return the loss on labels alone.

    Class numbers of [images], or shares of [images, classes].
    """
    if loss.kind == "softmax":
        return functional.cross_entropy(student, labels, label_smoothing=loss.label_smoothing)
    classes = student.shape[1]
    wanted = labels if labels.ndim == 2 else functional.one_hot(labels, classes).to(student.dtype)
    smooth = wanted * (1 - loss.label_smoothing) + loss.label_smoothing / classes
    return functional.binary_cross_entropy_with_logits(student, smooth)


def training_loss(
    student: Tensor, labels: Tensor, teacher: Tensor | None, loss: LossSettings
) -> Tensor:
    """Return the labels' loss, mixed with the divergence from the teacher's softened opinion where
    there is one (Hinton et al. 2015).
    """
    truth = label_loss(student, labels, loss)
    if teacher is None or not loss.distill:
        return truth
    softness = loss.temperature
    soft_student = functional.log_softmax(student / softness, dim=1)
    soft_teacher = functional.log_softmax(teacher / softness, dim=1)
    opinion = functional.kl_div(soft_student, soft_teacher, reduction="batchmean", log_target=True)
    # Gradients of the softened term shrink with the square of the softness; the factor keeps the
    # mix.
    return (1 - loss.distill) * truth + loss.distill * softness**2 * opinion
