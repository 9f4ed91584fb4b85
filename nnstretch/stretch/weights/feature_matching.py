"""What a branched network and its original compute at the same cuts, and how far apart it is.

Every channel behind a meeting point stands for one channel of the original
(stretch/weights/inheritance.py), so features can be compared channel by channel whatever the widths
are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from nnstretch.capture import build, trace
from nnstretch.capture.rebuild_module import attribute_path
from nnstretch.errors import BadInput
from nnstretch.stretch.weights.branched_module import BranchedSegment, StretchedNetwork

MIN_VARIANCE_SHARE = 0.01
"""Channels that vary less than this share of the mean over channels count as if they varied that
much: a dead channel has no scale.
"""


@dataclass(frozen=True, slots=True, eq=False)
class MeetingPoint:
    """A place where branches met."""

    name: str
    """The cut, as the plan names it."""
    axis: int
    """Dimension of the merged tensor that holds channels; the first is the batch."""
    stands_for: torch.Tensor
    """[merged channels], int64: the original's channel that each one stands for."""


def segments_with_ends(network: StretchedNetwork) -> Iterator[tuple[str, BranchedSegment]]:
    """Yield every segment with the cut at its end, branched or not."""
    for planned, segment in zip(network.plan.segments, network.segments, strict=True):
        assert isinstance(segment, BranchedSegment)
        yield planned.end, segment


def meeting_points(network: StretchedNetwork) -> tuple[MeetingPoint, ...]:
    """Return where branches met, in order of depth; tensors on the device where the network is."""
    return tuple(
        MeetingPoint(name, m.axis, m.stands_for)
        for name, m in segments_with_ends(network)
        if len(m.branches) > 1
    )


def meeting_names(network: StretchedNetwork) -> tuple[str, ...]:
    """Return cuts at which branches met, in order of depth."""
    return tuple(point.name for point in meeting_points(network))


def with_features(
    network: StretchedNetwork, images: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return scores, and the merged tensor at every meeting point, of one pass in the network's own
    mode.
    """
    features: list[torch.Tensor] = []
    x = images
    for _, segment in segments_with_ends(network):
        x = segment(x)
        if len(segment.branches) > 1:
            features.append(x)
    return x, tuple(features)


class FeatureTeacher:
    """The original, evaluated once with a look at what it computes where the branches of a network
    meet.

    Shares the parameters and buffers of `original`, so it follows when that is moved, loaded or
    trained. Neither is changed, and nothing of it appears in a state_dict.
    """

    def __init__(self, original: nn.Module, network: StretchedNetwork) -> None:
        """Pair a network with its original. Raises BadInput where it was not stretched from such an
        original.
        """
        self.original = original
        self.model = network.plan.model
        self.branched = tuple(len(segment.branches) > 1 for segment in network.lowered.segments)
        with torch.random.fork_rng(devices=[]):  # layers draw starting values that nobody will see
            self.sections = tuple(
                build(segment.original).eval() for segment in network.lowered.segments
            )
        graphs = tuple(segment.original for segment in network.lowered.segments)
        tensors = dict(original.named_parameters(remove_duplicate=False)) | dict(
            original.named_buffers(remove_duplicate=False)
        )
        self.shared: list[tuple[nn.Module, str, nn.Module, str]] = []
        """(module of a section, leaf, module of the original, leaf) of every tensor."""
        self.constants: list[tuple[nn.Module, str, torch.Tensor]] = []
        """Tensors that are in the captured graph only."""
        traced = None
        for graph, section in zip(graphs, self.sections, strict=True):
            for weight in graph.weights:
                holder, leaf = owning_module(section, attribute_path(weight.name))
                path = next(
                    (
                        name
                        for name in (weight.name, attribute_path(weight.name))
                        if name in tensors
                    ),
                    None,
                )
                if path is not None:
                    self.check(path, tensors[path], weight.spec.shape)
                    self.shared.append((holder, leaf, *owning_module(original, path)))
                    continue
                traced = (
                    traced
                    or trace(original, torch.zeros(network.plan.input_shape), self.model).weights
                )
                if weight.name not in traced:
                    raise BadInput(
                        f"{weight.name} is not in the original, plan of {self.model}, give the"
                        " network that was stretched"
                    )
                self.constants.append((holder, leaf, traced[weight.name].clone()))

    def check(self, path: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
        """Check a tensor's shape. Raises Mismatch when it differs."""
        if tuple(tensor.shape) != shape:
            got, want = ("x".join(map(str, s)) or "scalar" for s in (tensor.shape, shape))
            raise BadInput(
                f"{path} of the original is {got}, plan of {self.model}, the network was stretched"
                f" from one with {want}"
            )

    def bind(self, device: torch.device) -> None:
        """Point every section at the original's tensors of now.

        Moving a module replaces its buffers.
        """
        for holder, leaf, source, name in self.shared:
            set_tensor(
                holder,
                leaf,
                source._parameters[name] if name in source._parameters else source._buffers[name],
            )
        if any(tensor.device != device for _, _, tensor in self.constants):
            self.constants = [
                (holder, leaf, tensor.to(device)) for holder, leaf, tensor in self.constants
            ]
        for holder, leaf, tensor in self.constants:
            set_tensor(holder, leaf, tensor)

    @torch.no_grad()
    def __call__(self, images: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Return scores, and the original's tensor at every meeting point, as in evaluation mode
        and without gradients.
        """
        self.bind(images.device)
        features: list[torch.Tensor] = []
        x = images
        for branched, section in zip(self.branched, self.sections, strict=True):
            x = section(x)
            if branched:
                features.append(x)
        return x, tuple(features)


def owning_module(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Return the module that holds a tensor, and the tensor's name in it."""
    holder, _, leaf = path.rpartition(".")
    return module.get_submodule(holder), leaf


def set_tensor(holder: nn.Module, leaf: str, tensor: torch.Tensor | None) -> None:
    """Set a parameter or buffer to this very tensor."""
    if leaf in holder._parameters:
        holder._parameters[leaf] = tensor  # type: ignore[assignment]
    else:
        holder._buffers[leaf] = tensor


def feature_loss(
    student: Sequence[torch.Tensor], teacher: Sequence[torch.Tensor], points: Sequence[MeetingPoint]
) -> torch.Tensor:
    """Return the mean over meeting points of `feature_error`.

    0 is the original's features, 1 is as bad as their mean. 0 without meeting points.
    """
    errors = [
        feature_error(s, t, p.stands_for, p.axis)
        for s, t, p in zip(student, teacher, points, strict=True)
    ]
    return torch.stack(errors).mean() if errors else torch.zeros(())


def feature_error(
    student: torch.Tensor, teacher: torch.Tensor, stands_for: torch.Tensor, axis: int
) -> torch.Tensor:
    """Return mean over channels of the squared difference over the variance of the original's
    channel in this batch.

    `student` is [batch, ..., channels at `axis`, ...], `teacher` likewise with the original's
    width. Computed in float32.
    """
    s, t = (flatten_per_channel(x, axis) for x in (student, teacher))
    variance = t.var(0, unbiased=False)
    floor = MIN_VARIANCE_SHARE * variance.mean()
    # One value per channel has no variance at all; then its square is the only scale there is.
    floor = torch.where(floor > 0, floor, t.square().mean()).clamp_min(1e-12)
    squared = (s - t[:, stands_for]).square().mean(0)
    return (squared / torch.maximum(variance, floor)[stands_for]).mean()


def flatten_per_channel(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Return [samples and positions, channels] in float32."""
    return x.float().movedim(axis, -1).flatten(0, -2)


__all__ = [
    "FeatureTeacher",
    "MeetingPoint",
    "feature_error",
    "feature_loss",
    "meeting_names",
    "meeting_points",
    "with_features",
]
