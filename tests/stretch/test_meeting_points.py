"""Where a search lets branches meet: in maps of any number of dimensions, not behind their pool."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from nnstretch.capture.torch_export import capture
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import stretch
from nnstretch.stretch.lowering.meeting_points import has_pixels
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis

LAYERS = {
    1: (nn.Conv1d, nn.BatchNorm1d, nn.ConvTranspose1d),
    2: (nn.Conv2d, nn.BatchNorm2d, nn.ConvTranspose2d),
    3: (nn.Conv3d, nn.BatchNorm3d, nn.ConvTranspose3d),
}


class Net(nn.Module):
    """Convolutions, one of them transposed, over one, two or three axes, a pool and a head."""

    def __init__(self, axes: int) -> None:
        super().__init__()
        conv, norm, transposed = LAYERS[axes]
        self.stem = nn.Sequential(conv(3, 16, 3, 2, 1), norm(16), nn.ReLU())
        self.up = nn.Sequential(transposed(16, 16, 2, 2), norm(16), nn.ReLU())
        self.body = nn.Sequential(conv(16, 32, 3, padding=1), norm(32), nn.ReLU())
        self.axes, self.head = tuple(range(2, 2 + axes)), conv(32, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.body(self.up(self.stem(x))).mean(self.axes, keepdim=True)
        return self.head(pooled).flatten(1)


@pytest.mark.parametrize("axes", LAYERS)
def test_branches_meet_in_maps_of_any_number_of_axes(axes: int) -> None:
    x = torch.randn(1, 3, *([8] * axes))
    graph = capture(Net(axes), x, "net")
    ends = [cut.name for cut in NetworkAnalysis(graph).block_ends]
    assert ends == ["stem", "up", "body", "output"], "no norm apart from its layer, no pool"
    half = tuple(Branch(processor, width="0.5x") for processor in ("cpu", "dsp"))
    segments = (
        Segment("input", "stem", (Branch("cpu"),)),
        Segment("stem", "body", half, "concat"),
        Segment("body", "output", (Branch("cpu"),)),
    )
    branched = stretch(Net(axes), Plan("net", tuple(x.shape), segments)).eval()
    meeting = branched.segments[1](branched.segments[0](x))
    assert meeting.shape == (1, 32, *([8] * axes))


@pytest.mark.parametrize(
    ("shape", "axis", "several"),
    [
        ((1, 8, 4, 4), 1, True),
        ((1, 4, 4, 8), 3, True),
        ((1, 8, 1, 1), 1, False),
        ((1, 1, 1, 8), 3, False),
        ((1, 8, 2, 1, 1), 1, True),
        ((1, 8, 1, 1, 1), 1, False),
        ((1, 8, 5), 1, True),
        ((1, 8, 1), 1, False),
        ((1, 5, 8), 2, True),
        ((5, 1, 8), 2, True),
        ((1, 1, 8), 2, False),
        ((4, 8), 1, False),
    ],
)
def test_work_is_left_where_there_are_several_places(
    shape: tuple[int, ...], axis: int, several: bool
) -> None:
    assert has_pixels(shape, axis) == several
