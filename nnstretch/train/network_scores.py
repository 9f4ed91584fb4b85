"""Scores of a network in training, checked: its own code may act otherwise than in evaluation."""

from __future__ import annotations

from torch import Tensor, nn

from nnstretch.errors import BadInput, NnstretchError, describe_error
from nnstretch.stretch.weights.branched_module import StretchedNetwork
from nnstretch.train.failures import explain_error
from nnstretch.train.losses import class_scores


def network_scores(network: nn.Module, images: Tensor, classes: int, data: str) -> Tensor:
    """Return a network's scores of images. Raises BadInput for what its own code raises or gives.

    Errors of the machine pass, and so do those of branched networks, whose code is ours.
    """
    # What torch.compile has wrapped.
    inner = getattr(network, "_orig_mod", network)
    mode = f" in {'training' if inner.training else 'evaluation'} mode"
    try:
        output = network(images)
    except (NnstretchError, OSError):
        raise
    except Exception as error:
        if isinstance(inner, StretchedNetwork) or explain_error(error) is not None:
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
