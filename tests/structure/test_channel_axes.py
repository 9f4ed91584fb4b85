"""1-D maps and tokens have three dimensions both; the layers around them say where channels lie."""

from __future__ import annotations

import pytest
import torch
from support.random_networks import relative
from torch import Tensor, nn
from torch.nn import functional as F

from nnstretch.capture import trace
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import stretch
from nnstretch.structure.channel_groups import analyze_channels

WHOLE = (Branch("cpu"),)


class Gated(nn.Module):
    """Gated convolutions over time; `written` spells the gate out."""

    def __init__(self, written: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(c, 32, 5, padding=2) for c in (8, 16, 16))
        self.written, self.head = written, nn.Conv1d(16, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.written:
                value, gate = layer(x).chunk(2, 1)
                x = value * gate.sigmoid()
            else:
                x = F.glu(layer(x), 1)
        return self.head(x).amax(2)


class Mono(nn.Module):
    """One channel of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 16, 9, 4, 4), nn.Conv1d(16, 24, 3, 2, 1)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x).relu()).relu().mean(-1))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.cumsum(self.first(x), 1)).amax(1)


class Clip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv3d(3, 8, 3), nn.Conv3d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu().cumsum(2)).amax((2, 3, 4))


@pytest.mark.parametrize(
    ("module", "shape", "axis"),
    [
        (Gated(written=False), (1, 8, 40), 1),
        (Mono(), (1, 1, 80), 1),
        (Tokens(), (1, 9, 6), 2),
        (Clip(), (1, 3, 5, 6, 7), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_channels_lie_where_the_nearest_layer_reads_or_writes_them(
    module: nn.Module, shape: tuple[int, ...], axis: int
) -> None:
    graph = trace(module, torch.zeros(shape), "net").graph
    channels = analyze_channels(graph)
    maps = [name for name, spec in graph.specs().items() if len(spec.shape) == len(shape)]
    values = {node.name for node in graph.nodes} | {graph.inputs[0].name}
    assert {channels.axis(name) for name in maps if name in values} == {axis}


def halves(network: nn.Module, start: str, end: str, x: Tensor, merge: str = "concat") -> nn.Module:
    """The network with half of its channels on each of two processors between two cuts."""
    half = tuple(Branch(processor, width="0.5x") for processor in ("cpu", "dsp"))
    segments = [Segment(start, end, half, merge), Segment(end, "output", WHOLE)]
    if start != "input":
        segments.insert(0, Segment("input", start, WHOLE))
    torch.manual_seed(0)
    return stretch(network, Plan("net", tuple(x.shape), tuple(segments)))


@pytest.mark.parametrize("merge", ["concat", "project"])
def test_branches_of_gated_layers_meet_along_channels(merge: str) -> None:
    x, outputs = torch.randn(2, 8, 40), []
    for written in (False, True):
        torch.manual_seed(1)
        network = Gated(written).eval()
        gate = "mul" if written else "glu"
        branched = halves(network, gate, f"{gate}_2", x[:1], merge).eval()
        meeting = branched.segments[1](branched.segments[0](x))
        assert meeting.shape == (2, 16, 40), "16 channels, and as long as before"
        outputs.append(branched(x))
    assert relative(outputs[0], outputs[1]) < 1e-6


def test_an_adapter_of_one_channel_mixes_no_samples() -> None:
    network, x = Mono(), torch.randn(1, 1, 80)
    branched = halves(network, "input", "relu_1", x, "project")
    assert branched(x).shape == (1, 5)
    assert max(max(weight.shape) for weight in branched.parameters()) < x.shape[2]
