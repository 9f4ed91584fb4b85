"""A layer inherits the columns of the channels that it really reads.

In these networks half of the channels say nothing, so a branch of half the width that keeps the
others, and reads each through its own column, computes the original's numbers at once.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.random_networks import relative
from torch import nn
from torch.nn import functional as F

from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import stretch

SHAPE = (2, 3, 8, 8)
X = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
FIRST, SECOND, SPREAD = [0, 1, 2, 5, 8, 9, 11, 14], [1, 2, 3, 6, 7, 10, 12, 15], [1, 2, 5, 6]
"""Channels that say something: of 16, of 16 others, of 8."""


def conv(cin: int, cout: int, k: int = 1, live: list[int] | None = None) -> nn.Conv2d:
    """A convolution whose outputs are 0 but for the live ones."""
    return silence(nn.Conv2d(cin, cout, k, padding=k // 2), live)


def silence(layer: nn.Module, live: list[int] | None) -> nn.Module:
    if live is not None:
        rows = torch.ones(len(layer.weight), dtype=torch.bool)
        rows[live] = False
        with torch.no_grad():
            layer.weight[rows] = 0
            layer.bias[rows] = 0
    return layer


class Net(nn.Module):
    """Stem, a body, and a head that ends in a vector."""

    def __init__(self, body: nn.Module, width: int, live: list[int] = FIRST) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 16, 3, live), nn.ReLU())
        self.body, self.head = body, nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.stem(x)).mean((2, 3)))


class Fire(nn.Module):
    """Of SqueezeNet: two equal parts side by side."""

    def __init__(self, cin: int) -> None:
        super().__init__()
        self.squeeze = conv(cin, 8, live=SPREAD)
        self.one, self.three = conv(8, 16, live=FIRST), conv(8, 16, 3, SECOND)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.squeeze(x))
        return torch.relu(torch.cat([self.one(x), self.three(x)], 1))


class Dense(nn.Module):
    """Of DenseNet: each layer reads everything before it, in parts of 16, 8 and 8."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(16 + 8 * i) for i in range(2))
        self.layers = nn.ModuleList(
            conv(16 + 8 * i, 8, 3, live) for i, live in enumerate((SPREAD, [0, 3, 4, 7]))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = torch.cat([x, layer(torch.relu(norm(x)))], 1)
        return x


class Gated(nn.Module):
    """Halves of one convolution, multiplied channel by channel."""

    def __init__(self) -> None:
        super().__init__()
        self.both = conv(16, 32, live=[*SECOND, *(16 + c for c in SECOND)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, gate = self.both(x).chunk(2, 1)
        return y * gate


class Swapped(nn.Module):
    """Halves of one convolution, which other layers read apart."""

    def __init__(self) -> None:
        super().__init__()
        self.both = conv(16, 32, live=[*FIRST, *(16 + c for c in SECOND)])
        self.left, self.right = conv(16, 8, live=SPREAD), conv(16, 8, live=[0, 2, 4, 7])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.both(x).chunk(2, 1)
        return torch.cat([self.right(right), self.left(left)], 1)


class Grouped(nn.Module):
    """Groups of 4 that come and go whole, with twice as many behind them."""

    def __init__(self) -> None:
        super().__init__()
        live = [c for group in (1, 2) for c in range(4 * group, 4 * group + 4)]
        self.wide = conv(16, 16, live=live)
        self.groups = nn.Conv2d(16, 32, 3, padding=1, groups=4)
        silence(self.groups, [c for group in (1, 2) for c in range(8 * group, 8 * group + 8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.groups(torch.relu(self.wide(x)))


class Normed(nn.Module):
    """Group norm over twins: each group of 4 has two channels twice, its mean without them too."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm, self.last = (
            conv(16, 16),
            nn.GroupNorm(4, 16),
            conv(16, 16, live=FIRST),
        )
        with torch.no_grad():
            # Of one norm to the last bit, so that the first of each group are kept.
            weight = torch.zeros(16, 16)
            for row in weight:
                row[torch.randperm(16)[:4]] = 0.5
            weight = weight.reshape(4, 2, 2, 16, 1, 1)
            weight[:, 1] = weight[:, 0]
            self.wide.weight.copy_(weight.reshape(16, 16, 1, 1))
            self.wide.bias.copy_(self.wide.bias.reshape(4, 2, 2)[:, :1].expand(4, 2, 2).reshape(16))
            self.last.weight.reshape(16, 4, 2, 2)[:, :, 1] = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.wide(x))))


class Attention(nn.Module):
    """Query, key and value in one layer, (3, heads, 8); each head's live positions are the same."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        rows = [8 * part + position for part in range(6) for position in SPREAD]
        self.qkv = silence(nn.Linear(16, 48), rows)
        self.out = silence(nn.Linear(16, 16), FIRST)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        qkv = self.qkv(tokens).reshape(n, h * w, 3, 2, 8).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, scale=0.25)
        else:
            y = ((q * 0.25) @ k.transpose(-2, -1)).softmax(-1) @ v
        tokens = tokens + self.out(y.transpose(1, 2).reshape(n, h * w, c))
        return tokens.transpose(1, 2).reshape(n, c, h, w)


NETS: dict[str, Callable[[], nn.Module]] = {
    "fire": lambda: Net(nn.Sequential(Fire(16), Fire(32)), 32),
    "dense": lambda: Net(Dense(), 32),
    "gated": lambda: Net(Gated(), 16),
    "swapped": lambda: Net(Swapped(), 16),
    "grouped": lambda: Net(Grouped(), 32),
    "normed": lambda: Net(Normed(), 16),
    "attention": lambda: Net(Attention(fused=False), 16),
    "fused attention": lambda: Net(Attention(fused=True), 16),
}


def seeded(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[kind]().eval()


def plan(*segments: Segment) -> Plan:
    return Plan("net", SHAPE, segments)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETS)
def test_half_a_network_whose_other_half_says_nothing_is_the_original(kind: str) -> None:
    module = seeded(kind)
    half = Branch("cpu", width=module.head.in_features // 2)
    whole = Branch("cpu")
    narrow = stretch(
        module, plan(Segment("input", "body", (half,)), Segment("body", "output", (whole,)))
    ).eval()
    count = sum(p.numel() for p in narrow.parameters())
    assert count < 0.75 * sum(p.numel() for p in module.parameters())
    with torch.no_grad():
        assert relative(module(X), narrow(X)) <= 1e-5


class Beside(nn.Module):
    """Two parts of unequal width, and nothing between them and the input."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.three = conv(3, 16), conv(3, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.one(x), self.three(x)], 1)


@pytest.mark.parametrize("widths", [(12, 12), (24, 24)])
def test_branches_share_both_parts_of_a_concatenation(widths: tuple[int, int]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Beside(), nn.MaxPool2d(2), nn.Conv2d(24, 4, 3)).eval()
    branches = tuple(
        Branch(processor, width=width)
        for processor, width in zip(("cpu", "dsp"), widths, strict=True)
    )
    both = stretch(
        module, plan(Segment("input", "1", branches), Segment("1", "output", (Branch("cpu"),)))
    ).eval()
    with torch.no_grad():
        assert relative(module(X), both(X)) <= 1e-5
