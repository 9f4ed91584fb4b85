"""Small random networks that take views of tensors and write into them in place."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
from torch import nn

Step = tuple[Callable[..., torch.Tensor], tuple[int, ...]]
"""What it does, and which of the tensors so far it reads."""
SHAPE = (2, 4, 6)


def draw_slice(rng: Random, x: torch.Tensor) -> Callable[..., torch.Tensor]:
    axis = rng.randrange(x.dim())
    start = rng.randrange(x.shape[axis])
    stop = rng.randint(start + 1, x.shape[axis])
    step = rng.choice([1, 1, 2])
    place = (*[slice(None)] * axis, slice(start, stop, step))
    return lambda t: t[place]


def draw_piece(rng: Random, x: torch.Tensor) -> Callable[..., torch.Tensor]:
    axis = rng.choice([a for a in range(x.dim()) if x.shape[a] > 1] or [0])
    size = rng.randint(1, x.shape[axis])
    number = rng.randrange(-(-x.shape[axis] // size))
    take = rng.choice([torch.split, torch.split, lambda t, _, dim: t.unbind(dim)])
    return lambda t: take(t, size, dim=axis)[number]


def draw_view(rng: Random, x: torch.Tensor) -> Callable[..., torch.Tensor]:
    """One of the ways to look at a tensor; a few of them copy."""
    axis, second = rng.randrange(x.dim()), rng.randrange(x.dim())
    order = rng.sample(range(x.dim()), x.dim())
    number = rng.randrange(x.shape[axis])
    ways: list[Callable[..., torch.Tensor]] = [
        draw_slice(rng, x),
        draw_slice(rng, x),
        draw_piece(rng, x),
        lambda t: t.select(axis, number),
        lambda t: t.narrow(axis, number, 1),
        lambda t: t.transpose(axis, second),
        lambda t: t.permute(order),
        lambda t: t.unsqueeze(axis),
        lambda t: t.squeeze(),
        lambda t: t.flatten(axis),
        lambda t: t.reshape(-1),
        lambda t: t[...],
        lambda t: t.detach(),
        lambda t: t.contiguous(),
        lambda t: t.half(),
        lambda t: t.to(torch.float32),
        lambda t: t.to(torch.float64).to(torch.float32),
        lambda t: t.view(torch.int32).view(torch.float32),
        lambda t: t.expand(2, *t.shape)[1],
        lambda t: t.diagonal() if t.dim() > 1 else t,
        lambda t: nn.functional.dropout(t, 0.5, False),
    ]
    return rng.choice(ways)


def draw_write(rng: Random) -> Callable[..., torch.Tensor]:
    number = rng.randint(2, 5)
    ways: list[Callable[..., torch.Tensor]] = [
        lambda t, _: t.mul_(number),
        lambda t, _: t.add_(number),
        lambda t, _: t.relu_(),
        lambda t, _: t.zero_(),
        lambda t, _: t.gt_(0),
        lambda t, _: t.unsqueeze_(0),
        lambda t, _: t.transpose_(0, -1),
        lambda t, beside: t.mul_(beside.double().mean().reshape(1)),
        lambda t, _: t.clamp_(-1, 1).sub_(number),
        lambda t, beside: t.add_(beside.sum()),
        lambda t, beside: t.copy_(beside.mean() * torch.ones_like(t)),
        lambda t, beside: t.fill_(number),
    ]
    return rng.choice(ways)


def draw_step(rng: Random, tensors: list[torch.Tensor]) -> Step:
    at, beside, kind = rng.randrange(len(tensors)), rng.randrange(len(tensors)), rng.random()
    if kind < 0.5:
        return draw_view(rng, tensors[at]), (at,)
    if kind < 0.9:
        return draw_write(rng), (at, beside)
    return lambda t: t * 2, (at,)


class ViewProgram(nn.Module):
    """A tensor, views of it and of each beside, writes into them, and all of them returned."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = Random(seed)
        self.layer = nn.Linear(SHAPE[-1], SHAPE[-1])
        self.register_buffer("table", torch.randn(SHAPE))
        self.start = rng.choice(["layer", "layer", "input", "zeros", "table"])
        self.steps: list[Step] = []
        tensors = [torch.zeros(SHAPE), torch.zeros(SHAPE)]
        for _ in range(rng.randint(3, 9)):
            step, places = draw_step(rng, tensors)
            try:
                result = step(*(tensors[i] for i in places))
            except RuntimeError:  # no view of this tensor, or no write into it
                continue
            self.steps.append((step, places))
            tensors.append(result)
        self.returned = rng.sample(range(len(tensors)), rng.randint(1, len(tensors)))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        starts = {
            "layer": lambda: self.layer(x),
            "input": lambda: x,
            "zeros": lambda: torch.zeros(SHAPE),
            "table": lambda: self.table.clone(),
        }
        tensors = [self.layer(x), starts[self.start]()]
        for step, places in self.steps:
            tensors.append(step(*(tensors[i] for i in places)))
        return tuple(tensors[i] + x.sum() for i in self.returned)
