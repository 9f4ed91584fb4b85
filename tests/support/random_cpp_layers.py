"""Layers of every kind that the C++ runtime computes, of random shapes and attributes."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

EACH = 3
"""Layers of each kind in a graph."""

Step = Callable[[torch.Tensor], torch.Tensor]
Maker = Callable[[random.Random, torch.Tensor], Step]


def some(rng: random.Random, most: int) -> tuple[int, int]:
    """Draw two numbers from 1 up."""
    return rng.randint(1, most), rng.randint(1, most)


def groups(rng: random.Random, channels: int) -> int:
    """Draw a divisor of a number of channels."""
    return rng.choice([n for n in range(1, channels + 1) if channels % n == 0])


def convolution(rng: random.Random, x: torch.Tensor) -> Step:
    """Draw a convolution, with a batch norm and an activation behind it or not."""
    channels = x.shape[1]
    parts = groups(rng, channels)
    padding = rng.choice([0, 1, (2, 0), (0, 3), "same"])
    layer = nn.Conv2d(
        channels,
        parts * rng.randint(1, 9),
        some(rng, 5),
        stride=1 if padding == "same" else some(rng, 3),
        padding=padding,
        dilation=some(rng, 2),
        groups=parts,
        bias=rng.random() < 0.5,
        padding_mode=rng.choice(["zeros", "zeros", "zeros", "replicate"]),
    )
    norm = nn.BatchNorm2d(layer.out_channels)
    nn.init.uniform_(norm.running_mean, -0.5, 0.5)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    behind = [norm, nn.ReLU(), nn.SiLU(), nn.PReLU(), nn.Hardswish(), nn.GELU()]
    return nn.Sequential(layer, *rng.sample(behind, rng.randint(0, 2)))


def transposed(rng: random.Random, x: torch.Tensor) -> Step:
    """Draw a transposed convolution."""
    channels, stride = x.shape[1], some(rng, 3)
    parts = groups(rng, channels)
    return nn.ConvTranspose2d(
        channels,
        parts * rng.randint(1, 4),
        some(rng, 4),
        stride=stride,
        padding=rng.choice([0, 1, (0, 1)]),
        output_padding=(rng.randrange(stride[0]), rng.randrange(stride[1])),
        groups=parts,
        bias=rng.random() < 0.5,
        dilation=some(rng, 2),
    )


def one_axis(rng: random.Random, x: torch.Tensor) -> Step:
    """Draw a layer over one axis."""
    channels = x.shape[1]
    layer = rng.choice(
        [
            nn.Conv1d(channels, groups(rng, channels) * 2, rng.randint(1, 4), rng.randint(1, 3)),
            nn.Conv1d(channels, channels, 3, padding=rng.randint(0, 3), groups=channels),
            nn.ConvTranspose1d(channels, 3, rng.randint(1, 4), rng.randint(1, 3)),
            nn.MaxPool1d(rng.randint(1, 4), rng.randint(1, 3)),
            nn.AdaptiveAvgPool1d(rng.randint(1, 7)),
        ]
    )
    axis = rng.randint(2, 3)
    return lambda y: layer(y.select(axis, 1))


def pool(rng: random.Random, x: torch.Tensor) -> Step:
    """Draw a pool."""
    size, ceil = some(rng, 4), rng.random() < 0.5
    padding = (rng.randint(0, size[0] // 2), rng.randint(0, size[1] // 2))
    counted = rng.random() < 0.5
    return rng.choice(
        [
            nn.MaxPool2d(size, some(rng, 3), padding, some(rng, 2), ceil_mode=ceil),
            nn.AvgPool2d(size, some(rng, 3), padding, ceil, counted),
            nn.AdaptiveAvgPool2d(some(rng, 6)),
            nn.AdaptiveMaxPool2d(some(rng, 6)),
        ]
    )


def norm(rng: random.Random, x: torch.Tensor) -> Step:
    """Draw a norm."""
    channels, shape, axis = x.shape[1], x.shape[rng.randint(1, 3) :], rng.randint(1, 3)
    return rng.choice(
        [
            nn.BatchNorm2d(channels),
            nn.GroupNorm(groups(rng, channels), channels),
            nn.LayerNorm(shape, elementwise_affine=rng.random() < 0.5),
            nn.InstanceNorm2d(channels, affine=rng.random() < 0.5),
            lambda y: F.normalize(y, dim=axis),
        ]
    )


def product(rng: random.Random, x: torch.Tensor) -> Step:
    """Draw a product of matrices, one of which may be broadcast."""
    rows, columns = x.shape[2:]
    leading = rng.choice([(), (1,), (x.shape[1],), (x.shape[0], 1)])
    right = nn.Parameter(torch.randn(*leading, columns, rng.randint(1, 9)))
    left = nn.Parameter(torch.randn(*leading, rng.randint(1, 9), rows))
    linear = nn.Linear(columns, rng.randint(1, 20), bias=rng.random() < 0.5)
    return rng.choice(
        [
            lambda y: y @ right,
            lambda y: left @ y,
            lambda y: y @ y.transpose(2, 3),
            lambda y: torch.einsum("bchw,bdhw->bcd", y, y),
            lambda y: torch.bmm(y[:, 0], y[:, 1].transpose(1, 2)),
            linear,
        ]
    )


def broadcast(rng: random.Random, x: torch.Tensor) -> Step:
    """Draw arithmetic with an operand that is broadcast over some axes."""
    shape = [size if rng.random() < 0.5 else 1 for size in x.shape]
    operand = torch.rand(shape[rng.randint(0, 3) :]) + 0.5
    axis = rng.randint(1, 3)
    return rng.choice(
        [
            lambda y: y + operand,
            lambda y: operand - y,
            lambda y: y * operand,
            lambda y: y / operand,
            lambda y: torch.maximum(y, operand),
            lambda y: torch.minimum(operand, y),
            lambda y: y * y.mean(axis, keepdim=True),
            lambda y: (y - y.amax(axis, keepdim=True)).exp(),
            lambda y: torch.add(y, operand, alpha=0.3) * 2 - 1,
        ]
    )


ACTIVATIONS = (
    *(F.relu, F.relu6, F.silu, F.hardswish, F.hardsigmoid, F.gelu, F.elu, F.softplus, F.mish),
    *(torch.sigmoid, torch.tanh, torch.exp, torch.abs, torch.square, F.leaky_relu, F.selu),
)


def activation(rng: random.Random, x: torch.Tensor) -> Step:
    """Draw an activation, after a sum or not."""
    function = rng.choice(ACTIVATIONS)
    return rng.choice([function, lambda y: function(y + y.flip(3)), lambda y: y + function(y)])


def reduction(rng: random.Random, x: torch.Tensor) -> Step:
    """Draw a reduction over some axes."""
    axes, keep = tuple(rng.sample([1, 2, 3], rng.randint(1, 3))), rng.random() < 0.5
    axis = rng.randint(1, 3)
    return rng.choice(
        [
            lambda y: y.mean(axes, keepdim=keep),
            lambda y: y.sum(axes, keepdim=keep),
            lambda y: y.amax(axes, keepdim=keep),
            lambda y: y.amin(axes, keepdim=keep),
            lambda y: y.var(axes, keepdim=keep, correction=0),
            lambda y: y.softmax(axis),
            lambda y: y.log_softmax(axis),
        ]
    )


def movement(rng: random.Random, x: torch.Tensor) -> Step:
    """Draw something that moves numbers only."""
    axis, axes = rng.randint(1, 3), rng.sample(range(4), 4)
    borders, mode = [rng.randint(0, 2) for _ in range(4)], rng.choice(["constant", "replicate"])
    parts = groups(rng, x.shape[1])
    return rng.choice(
        [
            lambda y: y.permute(axes) * 1.5,
            lambda y: F.pad(y, borders, mode=mode),
            lambda y: F.pad(y, borders, mode="reflect"),
            lambda y: torch.stack((y, y * 2), axis),
            lambda y: y.transpose(1, axis).reshape(y.shape[0], -1) - 1,
            lambda y: F.channel_shuffle(y, parts) + 0.5,
            lambda y: y.repeat(1, 2, 1, 2).relu(),
            lambda y: y.expand(2, *y.shape).flatten(0, 1).tanh(),
        ]
    )


def selection(rng: random.Random, x: torch.Tensor) -> Step:
    """Draw something that takes a part of an axis."""
    axis = rng.randint(1, 3)
    size = x.shape[axis]
    begin = rng.randrange(size)
    part = slice(begin, rng.randint(begin + 1, size), rng.randint(1, 2))
    index = (*(slice(None),) * axis, part)
    sizes = [begin + 1, size - begin - 1] if begin + 1 < size else [size]
    return rng.choice(
        [
            lambda y: y[index] + 1,
            lambda y: torch.cat((y, y[index], y), axis),
            lambda y: torch.cat([each * 2 for each in y.split(sizes, axis)][::-1], axis),
            lambda y: torch.roll(y, begin, axis),
            lambda y: y.select(axis, begin).relu(),
        ]
    )


def resizing(rng: random.Random, x: torch.Tensor) -> Step:
    """Draw a change of size."""
    size, corners = some(rng, 17), rng.random() < 0.5
    factor = rng.choice([0.5, 1.5, 2.0, 3.0, 1.3])
    return rng.choice(
        [
            lambda y: F.interpolate(y, size),
            lambda y: F.interpolate(y, size, mode="nearest-exact"),
            lambda y: F.interpolate(y, size, mode="bilinear", align_corners=corners),
            lambda y: F.interpolate(y, scale_factor=factor, mode="bilinear"),
            lambda y: F.interpolate(y, scale_factor=factor),
            lambda y: F.pixel_shuffle(torch.cat([y] * 4, 1), 2),
        ]
    )


KINDS: dict[str, Maker] = {
    "convolution": convolution,
    "transposed": transposed,
    "one_axis": one_axis,
    "pool": pool,
    "norm": norm,
    "product": product,
    "broadcast": broadcast,
    "activation": activation,
    "reduction": reduction,
    "movement": movement,
    "selection": selection,
    "resizing": resizing,
}


class Alone(nn.Module):
    """A drawn layer, which may be a function."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layer."""
        return self.step(x)


class SideBySide(nn.Module):
    """Drawn layers on one input, each an output."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Alone(step) for step in steps)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute all layers."""
        return tuple(layer(x) for layer in self.layers)


def computes(step: Step, x: torch.Tensor) -> bool:
    """Return whether PyTorch computes a layer, which some sizes do not allow."""
    try:
        with torch.no_grad():
            return Alone(step).eval()(x).numel() > 0
    except (RuntimeError, ValueError, IndexError):
        return False


class InTurn(nn.Module):
    """Two layers, one after the other."""

    def __init__(self, first: Step, second: Step) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute both."""
        return self.second(self.first(x))


def drawn_step(rng: random.Random, maker: Maker, x: torch.Tensor) -> Step:
    """Draw a layer, with another behind it or not; PyTorch may refuse its sizes."""
    step = maker(rng, x)
    if rng.random() < 0.3 and computes(step, x):
        with torch.no_grad():
            middle = Alone(step).eval()(x)
        if middle.dim() == 4:
            return InTurn(step, rng.choice(list(KINDS.values()))(rng, middle))
    return step


def drawn_steps(rng: random.Random, x: torch.Tensor) -> list[Step]:
    """Draw layers of every kind that PyTorch computes."""
    steps: list[Step] = []
    for maker in KINDS.values():
        wanted = len(steps) + EACH
        while len(steps) < wanted:
            step = drawn_step(rng, maker, x)
            if computes(step, x):
                steps.append(step)
    return steps
