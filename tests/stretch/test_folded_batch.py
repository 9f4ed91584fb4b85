"""Reshapes that fold batch and channels, and writes into slices, hold at any width and batch."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from nnstretch.capture import build, trace
from nnstretch.graph import Graph
from nnstretch.stretch.lowering.resize_graph import resize_graph
from nnstretch.structure.channel_groups import analyze_channels
from nnstretch.structure.cuts import is_size


def attended(x: Tensor) -> Tensor:
    b, c, _, _ = x.shape
    return x * torch.softmax(x.reshape(b * c, -1), 1).reshape(x.shape)


def attended_by_size(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return x * torch.softmax(x.reshape(b * c, h * w), 1).reshape(x.shape)


def sharpened(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return x - F.avg_pool2d(x.view(b * c, 1, h, w), 3, 1, 1).view(x.shape)


def blurred(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return F.conv2d(x.reshape(b * c, 1, h, w), torch.full((1, 1, 3, 3), 1 / 9), padding=1).view(
        b, c, h, w
    )


def normed(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return F.instance_norm(x.reshape(1, b * c, h, w)).reshape(x.shape)


def in_patches(x: Tensor) -> Tensor:
    """Rows of two pixels, as MobileViT takes maps apart."""
    b, c, h, w = x.shape
    patches = x.reshape(b * c * h, 1, w // 2, 2).transpose(1, 2)
    return torch.softmax(patches, 3).reshape(x.shape)


def in_part(x: Tensor) -> Tensor:
    """A quarter of the channels doubled in place, as FasterNet convolves a part of them."""
    y = x.clone()
    y[:, : x.shape[1] // 4, :, :] = y[:, : x.shape[1] // 4, :, :] * 2
    return y


FOLDS: dict[str, Callable[[Tensor], Tensor]] = {
    "attended": attended,
    "attended by size": attended_by_size,
    "sharpened": sharpened,
    "blurred": blurred,
    "normed": normed,
    "in patches": in_patches,
    "in part": in_part,
}


class Folding(nn.Module):
    """A map, folded, between two convolutions."""

    def __init__(self, fold: Callable[[Tensor], Tensor], width: int) -> None:
        super().__init__()
        self.fold, self.a, self.b = fold, nn.Conv2d(3, width, 3), nn.Conv2d(width, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.fold(self.a(x)))


def halved(kind: str, batch: int) -> tuple[Graph, fx.GraphModule]:
    """Half the channels between the convolutions, if free, of a graph captured at a batch."""
    captured = trace(Folding(FOLDS[kind], 16).eval(), images(batch), "net")
    channels = analyze_channels(captured.graph)
    roots = channels.roots(channels.written("a.weight")) - channels.pinned.keys()
    graph = resize_graph(captured.graph, channels, dict.fromkeys(roots, Fraction(1, 2)))
    constants = {name: w for name, w in captured.weights.items() if name.startswith("constants.")}
    return graph, build(graph, constants).eval()


def images(batch: int) -> Tensor:
    return torch.linspace(-1, 1, batch * 3 * 8 * 8).view(batch, 3, 8, 8)


@pytest.mark.parametrize("kind", FOLDS)
def test_half_the_channels_compute_what_a_network_of_that_width_does(kind: str) -> None:
    torch.manual_seed(0)
    _, branch = halved(kind, 1)
    narrow = Folding(FOLDS[kind], 8).eval()
    narrow.load_state_dict(branch.state_dict(), strict=False)
    with torch.no_grad():
        for batch in (1, 3):
            assert torch.allclose(branch(images(batch)), narrow(images(batch)), atol=1e-6)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", FOLDS)
def test_every_shape_is_the_one_that_the_graph_says(kind: str, batch: int) -> None:
    graph, branch = halved(kind, batch)
    shapes: list[tuple[int, ...]] = []

    class Watch(fx.Interpreter):
        def run_node(self, n: fx.Node) -> object:
            value = super().run_node(n)
            if n.op.startswith("call") and isinstance(value, Tensor):
                shapes.append(tuple(value.shape))
            return value

    Watch(branch).run(images(batch))
    assert shapes == [node.output.shape for node in graph.nodes if not is_size(node)]
