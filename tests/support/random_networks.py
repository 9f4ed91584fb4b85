"""Small networks for tests.

Blocks of every kind, put together from a recipe that hypothesis draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import nn

torch.set_num_threads(1)
INPUT = (2, 3, 16, 16)
CLASSES = 5


def conv(
    cin: int, cout: int, k: int = 3, stride: int = 1, groups: int = 1, act: bool = True
) -> nn.Sequential:
    layers = [
        nn.Conv2d(cin, cout, k, stride, k // 2, groups=groups, bias=False),
        nn.BatchNorm2d(cout),
    ]
    return nn.Sequential(*layers, *([nn.ReLU(inplace=True)] if act else []))


class Residual(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(cin, cout, stride=stride), conv(cout, cout, act=False))
        self.short = (
            nn.Identity() if cin == cout and stride == 1 else conv(cin, cout, 1, stride, act=False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


class Inverted(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 4 * width
        self.body = nn.Sequential(
            conv(width, wide, 1), conv(wide, wide, groups=wide), conv(wide, width, 1, act=False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class Squeeze(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.relu(self.down(nn.functional.adaptive_avg_pool2d(x, 1)))
        return x * torch.sigmoid(self.up(gate))


class Dense(nn.Module):
    """Every layer reads everything before it."""

    def __init__(self, width: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(conv(width + i * growth, growth) for i in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


class Shuffle(nn.Module):
    """Half of the channels pass, half are worked on, and then they are shuffled (ShuffleNet v2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            conv(width // 2, width // 2, 1),
            conv(width // 2, width // 2, groups=width // 2, act=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, 1)
        x = torch.cat([left, self.branch(right)], 1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Inception(nn.Module):
    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.one, self.three = conv(cin, cout // 2, 1), conv(cin, cout // 4)
        self.pool = nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(cin, cout // 4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.one(x), self.three(x), self.pool(x)], 1)


class ChannelsLast(nn.Module):
    """Layer norm and a two-layer mix over channels that are moved last (ConvNeXt)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )
        self.gamma = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(nn.functional.gelu(self.up(self.norm(x.permute(0, 2, 3, 1))))) * self.gamma
        return x + y.permute(0, 3, 1, 2)


class Split(nn.Module):
    """Unequal slices go different ways: one is added, one laid beside (DPN)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = conv(width, width + 8)
        self.width = width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.mix(x)
        return torch.cat([x + y[:, : self.width], y[:, self.width :]], 1)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        t = x.flatten(2).transpose(1, 2)
        q, k, v = (
            self.qkv(t)
            .reshape(n, h * w, 3, self.heads, c // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        t = t + self.out(
            nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, h * w, c)
        )
        return t.transpose(1, 2).reshape(n, c, h, w)


class Standardised(nn.Conv2d):
    """A convolution whose weights are normalised before every use (NFNet)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = nn.functional.batch_norm(
            self.weight.reshape(1, self.out_channels, -1), None, None, training=True, eps=1e-4
        )
        return nn.functional.conv2d(x, weight.reshape_as(self.weight), self.bias, padding=1)


@dataclass(frozen=True, slots=True)
class Step:
    kind: str
    width: int
    """Channels behind it, where the kind may choose."""
    times: int = 1


KINDS = [
    "conv",
    "residual",
    "inverted",
    "depthwise",
    "grouped",
    "squeeze",
    "dense",
    "shuffle",
    "inception",
    "layernorm",
    "split",
    "attention",
    "standard",
    "pool",
]


def block(step: Step, width: int, first: bool) -> tuple[nn.Module, int]:
    """One block and the width behind it; the first of a residual stage may halve the pixels."""
    make = {
        "conv": lambda: (conv(width, step.width), step.width),
        "residual": lambda: (
            Residual(width, step.width, 2 if first and step.times > 1 else 1),
            step.width,
        ),
        "inverted": lambda: (Inverted(width), width),
        "depthwise": lambda: (
            nn.Sequential(conv(width, width, groups=width), conv(width, step.width, 1)),
            step.width,
        ),
        "grouped": lambda: (conv(width, width, groups=width // 8), width),
        "squeeze": lambda: (Squeeze(width), width),
        "dense": lambda: (Dense(width, 8, 2), width + 16),
        "shuffle": lambda: (Shuffle(width), width),
        "inception": lambda: (Inception(width, step.width), step.width),
        "layernorm": lambda: (ChannelsLast(width), width),
        "split": lambda: (Split(width), width + 8),
        "attention": lambda: (Attention(width), width),
        "standard": lambda: (Standardised(width, step.width, 3), step.width),
        "pool": lambda: (nn.MaxPool2d(3, 1, 1), width),
    }
    return make[step.kind]()


class Network(nn.Module):
    """Stem, the recipe's blocks, and a head that flattens pixels or averages them."""

    def __init__(self, steps: Sequence[Step], flat: bool = False) -> None:
        super().__init__()
        self.stem, width = conv(3, 16), 16
        blocks: list[nn.Module] = []
        for step in steps:
            for n in range(step.times):
                made, width = block(step, width, n == 0)
                blocks.append(made)
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(2 if flat else 1)
        self.head = nn.Linear(width * (4 if flat else 1), CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.blocks(self.stem(x))).flatten(1))


steps = st.builds(Step, st.sampled_from(KINDS), st.sampled_from((16, 24, 32)), st.integers(1, 3))
recipes = st.tuples(st.lists(steps, min_size=1, max_size=3).map(tuple), st.booleans())


def network(steps: Sequence[Step], flat: bool = False, seed: int = 0) -> nn.Module:
    """A network whose every parameter and statistic is random, so that no zero hides an error."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = Network(steps, flat)
        randomise(module)
    return module


def randomise(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.1)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)


def relative(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Largest difference over the largest output."""
    return float((expected - got).abs().max() / expected.abs().max())
