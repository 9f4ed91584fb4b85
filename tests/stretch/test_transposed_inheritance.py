"""Transposed convolutions read their weight's first dimension and write its second."""

from __future__ import annotations

import pytest
import torch
from support.random_networks import relative
from torch import nn

from nnstretch.capture import trace
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import NetworkAnalysis, lower, stretch

SHAPE = (2, 3, 8, 8)
X = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
WHOLE = (Branch("cpu"),)


class Upsampled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.up, self.head = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.up(self.stem(x))))


class Scaled(nn.Module):
    """A weight that no operator reads as a layer's, with channels in dimension 1."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 4, 1)
        self.pool, self.gain = nn.MaxPool2d(2), nn.Parameter(torch.rand(1, 16, 1, 1) + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.stem(x)) * self.gain)


def seeded(make: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().eval()


def widths_plan(widths: tuple[int, ...], end: str, *following: str) -> Plan:
    """Branches of these widths up to `end`, then whole segments."""
    branches = tuple(
        Branch(processor, width=width)
        for processor, width in zip(("cpu", "dsp"), widths, strict=False)
    )
    segments = [Segment("input", end, branches)]
    for cut in (*following, "output"):
        segments.append(Segment(segments[-1].end, cut, WHOLE))
    return Plan("net", SHAPE, tuple(segments))


@pytest.mark.parametrize(
    ("make", "end", "following"),
    [(Upsampled, "stem", ()), (Upsampled, "stem", ("relu",)), (Scaled, "pool", ())],
)
def test_channels_that_two_branches_kept_are_read_at_half_weight(
    make: type[nn.Module], end: str, following: tuple[str, ...]
) -> None:
    module = seeded(make)
    both = stretch(module, widths_plan((16, 16), end, *following)).eval()
    with torch.no_grad():
        assert relative(module(X), both(X)) <= 1e-5


def test_two_branches_that_share_what_a_transposed_convolution_writes() -> None:
    module = seeded(Upsampled)
    halves = (Branch("cpu", width=4), Branch("dsp", width=4))
    ends = (("input", "stem", WHOLE), ("stem", "relu", halves), ("relu", "output", WHOLE))
    both = stretch(module, Plan("net", SHAPE, tuple(Segment(*end) for end in ends))).eval()
    with torch.no_grad():
        assert relative(module(X), both(X)) <= 1e-5


def test_the_loudest_channels_that_it_writes_are_kept() -> None:
    module = seeded(Upsampled)
    loud = [1, 2, 5, 6]
    with torch.no_grad():
        module.up.weight[:, loud] *= 9
    narrow = stretch(module, widths_plan((4,), "relu"))
    assert narrow.segments[0].stands_for.tolist() == loud


class Hourglass(nn.Module):
    """A block inside which a transposed convolution alone writes 8 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 2, 2)
        self.up, self.mix = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(8, 16, 1)
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(x + self.mix(torch.relu(self.up(self.down(x)))))


def test_channels_between_two_layers_are_halved_with_the_branch() -> None:
    """What a transposed convolution alone writes is an inner group like any other."""
    analysis = NetworkAnalysis(trace(seeded(Hourglass), X, "net").graph)
    lowered = lower(analysis, widths_plan((8,), "add"))
    shapes = {w.name: w.spec.shape for w in lowered.branches[0].graph.weights}
    assert shapes["up.weight"][:2] == (8, 4)
    assert shapes["mix.weight"][:2] == (8, 4)
