"""Inner ratios and activations of a branch: blocks of every kind have them, gates keep theirs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from nnstretch.capture import trace
from nnstretch.graph import Graph
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import lower

CONVOLUTIONS = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}


class Gated(nn.Module):
    """A convolution whose maps a gate scales, as squeeze-and-excitation does."""

    def __init__(self, channels: int, linear: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        layer = nn.Linear if linear else lambda read, write: nn.Conv2d(read, write, 1)
        self.squeeze, self.excite = layer(channels, 4), layer(4, channels)
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = F.relu(self.conv(x))
        pooled = maps.mean((2, 3), keepdim=not self.linear)
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(pooled))))
        return x + maps * (gate[:, :, None, None] if self.linear else gate)


class Tokens(nn.Module):
    """A transformer's block: attention with qkv in one layer, and an MLP of factor 4."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.norm_mlp = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.expand, self.reduce = (
            nn.Linear(channels, 4 * channels),
            nn.Linear(4 * channels, channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, channels = x.shape
        heads = self.qkv(self.norm(x)).reshape(batch, tokens, 3, 4, channels // 4)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2)
        x = x + self.proj(mixed.reshape(batch, tokens, channels))
        return x + self.reduce(F.gelu(self.expand(self.norm_mlp(x))))


class Expanding(nn.Module):
    """A residual block of two convolutions of any rank, twice as wide inside."""

    def __init__(self, channels: int, rank: int) -> None:
        super().__init__()
        conv = CONVOLUTIONS[rank]
        self.expand = conv(channels, 2 * channels, 1)
        self.reduce = conv(2 * channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.reduce(F.relu(self.expand(x)))


def whole_branch(layers: list[nn.Module], shape: tuple[int, ...], **branch: object) -> Graph:
    """Return the graph of a branch over a whole network of some layers."""
    model = nn.Sequential(*layers).eval()
    plan = Plan("net", shape, (Segment("input", "output", (Branch("cpu", **branch),)),))
    return lower(trace(model, torch.zeros(shape), "net").graph, plan).segments[0].branches[0].graph


def weight_shapes(graph: Graph) -> list[tuple[int, ...]]:
    """Return the shape of every weight of more than one dimension, in order."""
    return [p.spec.shape for p in graph.weights if len(p.spec.shape) > 1]


@pytest.mark.parametrize("linear", [False, True])
def test_gates_keep_their_activation_whatever_their_layers(linear: bool) -> None:
    graph = whole_branch([Gated(16, linear), Gated(16, linear)], (1, 16, 8, 8), activation="silu")
    kinds = [node.kind for node in graph.nodes if node.kind in ("relu", "silu")]
    assert kinds == ["silu", "relu", "silu", "relu"]


@pytest.mark.parametrize("linear", [False, True])
def test_inner_ratio_leaves_gates_alone(linear: bool) -> None:
    layers = [nn.Conv2d(3, 16, 3), Gated(16, linear), Expanding(16, 4)]
    before = weight_shapes(whole_branch(layers, (1, 3, 10, 10)))
    after = weight_shapes(whole_branch(layers, (1, 3, 10, 10), inner_ratio=1))
    assert after[:4] == before[:4]
    assert [shape[0] for shape in after[4:]] == [16, 16]


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_inner_ratio_is_that_of_convolutions_of_any_rank(rank: int) -> None:
    shape = (1, 3, *[6] * (rank - 2))
    layers = [CONVOLUTIONS[rank](3, 16, 1), Expanding(16, rank), Expanding(16, rank)]
    shapes = weight_shapes(whole_branch(layers, shape, inner_ratio=1))
    assert [s[:2] for s in shapes] == [(16, 3), (16, 16), (16, 16), (16, 16), (16, 16)]


def test_inner_ratio_is_that_of_the_mlps_of_tokens_and_not_of_heads() -> None:
    graph = whole_branch([Tokens(16), Tokens(16)], (1, 5, 16), inner_ratio=2)
    assert weight_shapes(graph) == 2 * [(48, 16), (16, 16), (32, 16), (16, 32)]
