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
from nnstretch.capture.example_inputs import example_input
from nnstretch.capture.module_layers import attribute_path, paths_by_name
from nnstretch.errors import BadInput
from nnstretch.stretch.weights.branched_module import BranchedSegment, StretchedNetwork

MIN_VARIANCE_SHARE = 0.01
"""Floor of a channel's variance, as a share of the mean over channels: a dead one has no scale."""


@dataclass(frozen=True, slots=True, eq=False)
class MeetingPoint:
    """A cut at which branches met."""

    name: str
    """The cut, as the plan names it."""
    axis: int
    """Dimension of the merged tensor that holds channels; the first is the batch."""
    stands_for: torch.Tensor
    """[merged channels], int64: the original channel that each one replaces."""


def segments_with_ends(network: StretchedNetwork) -> Iterator[tuple[str, BranchedSegment]]:
    """Yield every segment with the cut at its end, branched or not."""
    for planned, segment in zip(network.plan.segments, network.segments, strict=True):
        assert isinstance(segment, BranchedSegment)
        yield planned.end, segment


def meeting_points(network: StretchedNetwork) -> tuple[MeetingPoint, ...]:
    """Return where branches met, in order of depth; tensors on the device where the network is."""
    points: list[MeetingPoint] = []
    for name, segment in segments_with_ends(network):
        if len(segment.branches) > 1:
            points.append(MeetingPoint(name, segment.axis, segment.stands_for))
    return tuple(points)


def meeting_names(network: StretchedNetwork) -> tuple[str, ...]:
    """Return cuts at which branches met, in order of depth."""
    return tuple(point.name for point in meeting_points(network))


def with_features(
    network: StretchedNetwork, images: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return scores and the merged tensor at every meeting point, of a pass in the current mode."""
    features: list[torch.Tensor] = []
    x = images
    for _, segment in segments_with_ends(network):
        x = segment(x)
        if len(segment.branches) > 1:
            features.append(x)
    return x, tuple(features)


@dataclass(frozen=True, slots=True, eq=False)
class TensorSlot:
    """A parameter or buffer of a module."""

    module: nn.Module
    name: str

    @classmethod
    def at(cls, module: nn.Module, path: str) -> TensorSlot:
        """Return the tensor at a dotted path of a module."""
        parent, _, name = path.rpartition(".")
        return cls(module.get_submodule(parent), name)

    @property
    def tensor(self) -> torch.Tensor | None:
        """Return the tensor of now."""
        if self.name in self.module._parameters:
            return self.module._parameters[self.name]
        return self.module._buffers[self.name]

    def bind(self, tensor: torch.Tensor | None) -> None:
        """Set the parameter or buffer to this very tensor."""
        if self.name in self.module._parameters:
            self.module._parameters[self.name] = tensor  # type: ignore[assignment]
        else:
            self.module._buffers[self.name] = tensor


class FeatureTeacher:
    """The original, which also returns its tensors where the branches of a network meet.

    Shares the parameters and buffers of `original`, so it follows when that is moved, loaded or
    trained. Neither is changed, and nothing of it appears in a state_dict.
    """

    def __init__(self, original: nn.Module, network: StretchedNetwork) -> None:
        """Pair a network with its original. Raises BadInput where that is another network."""
        self.original = original
        self.plan = network.plan
        segments = network.lowered.segments
        self.branched = tuple(len(segment.branches) > 1 for segment in segments)
        # Layers draw starting values, which are replaced at once.
        with torch.random.fork_rng(devices=[]):
            self.sections = tuple(build(segment.original).eval() for segment in segments)
        self.shared: list[tuple[TensorSlot, TensorSlot]] = []
        """Every tensor of a section, with the tensor of the original that it shares."""
        self.constants: list[tuple[TensorSlot, torch.Tensor]] = []
        """Tensors that are in the captured graph only."""
        tensors = dict(original.named_parameters(remove_duplicate=False))
        tensors |= dict(original.named_buffers(remove_duplicate=False))  # type: ignore[arg-type]
        paths = paths_by_name(tensors)
        captured: dict[str, torch.Tensor] | None = None
        for segment, section in zip(segments, self.sections, strict=True):
            for weight in segment.original.weights:
                attribute = attribute_path(weight.name)
                slot = TensorSlot.at(section, attribute)
                path = paths.get(weight.name) or paths.get(attribute)
                if path is not None:
                    self.check_shape(path, tensors[path], weight.spec.shape)
                    self.shared.append((slot, TensorSlot.at(original, path)))
                    continue
                captured = captured or self.captured_weights()
                if weight.name not in captured:
                    raise BadInput(
                        f"{weight.name} is not in the original, plan of {self.plan.model}, give the"
                        " network that was stretched"
                    )
                self.constants.append((slot, captured[weight.name].clone()))

    def captured_weights(self) -> dict[str, torch.Tensor]:
        """Capture the original and return its weights and constants."""
        example = example_input(self.original, self.plan)
        return dict(trace(self.original, example, self.plan.model).weights)

    def check_shape(self, path: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
        """Check a tensor's shape. Raises BadInput when it differs."""
        if tuple(tensor.shape) != shape:
            got = "x".join(map(str, tensor.shape)) or "scalar"
            want = "x".join(map(str, shape)) or "scalar"
            raise BadInput(
                f"{path} of the original is {got}, plan of {self.plan.model}, the network was"
                f" stretched from one with {want}"
            )

    def bind(self, device: torch.device) -> None:
        """Point every section at the original's tensors of now: moving it replaces its buffers."""
        for slot, source in self.shared:
            slot.bind(source.tensor)
        self.constants = [(slot, tensor.to(device)) for slot, tensor in self.constants]
        for slot, tensor in self.constants:
            slot.bind(tensor)

    @torch.no_grad()
    def __call__(self, images: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Return scores and the original's tensor at every meeting point, in evaluation mode."""
        self.bind(images.device)
        features: list[torch.Tensor] = []
        x = images
        for branched, section in zip(self.branched, self.sections, strict=True):
            x = section(x)
            if branched:
                features.append(x)
        return x, tuple(features)


def feature_loss(
    student: Sequence[torch.Tensor], teacher: Sequence[torch.Tensor], points: Sequence[MeetingPoint]
) -> torch.Tensor:
    """Return the mean of `feature_error` over meeting points, 0 without any."""
    errors: list[torch.Tensor] = []
    for s, t, point in zip(student, teacher, points, strict=True):
        errors.append(feature_error(s, t, point.stands_for, point.axis))
    return torch.stack(errors).mean() if errors else torch.zeros(())


def feature_error(
    student: torch.Tensor, teacher: torch.Tensor, stands_for: torch.Tensor, axis: int
) -> torch.Tensor:
    """Return the squared difference over the variance of the original's channel, over channels.

    0 is the original's features, 1 is as bad as their mean. `student` is [batch, ..., channels at
    `axis`, ...], `teacher` likewise with the original's width. Computed in float32.
    """
    s = flatten_per_channel(student, axis)
    t = flatten_per_channel(teacher, axis)
    variance = t.var(0, unbiased=False)
    floor = MIN_VARIANCE_SHARE * variance.mean()
    # One value per channel has no variance at all; then its square is the only scale there is.
    floor = torch.where(floor > 0, floor, t.square().mean()).clamp_min(1e-12)
    squared = (s - t[:, stands_for]).square().mean(0)
    return (squared / torch.maximum(variance, floor)[stands_for]).mean()


def flatten_per_channel(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Return [samples and positions, channels] in float32."""
    return x.float().movedim(axis, -1).flatten(0, -2)
