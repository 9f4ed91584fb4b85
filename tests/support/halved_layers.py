"""Networks of a layer or two, and the same in two branches."""

from __future__ import annotations

import torch
from support.random_networks import INPUT, Step, network
from torch import nn

from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import StretchedNetwork, stretch

X = torch.randn(INPUT, generator=torch.Generator().manual_seed(0))
IMAGES = [
    torch.randn((32, *INPUT[1:]), generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)
]


class Tokens(nn.Module):
    """[batch, tokens, channels] all the way to the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.embed(x.flatten(1, 2)))
        return self.head(torch.relu(self.mix(x)).mean(1))


def halves(end: str, *widths: int, merge: str = "concat", model: str = "net") -> Plan:
    branches = tuple(Branch(p, width=w) for p, w in zip(("cpu", "dsp"), widths, strict=True))
    return Plan(
        model,
        INPUT,
        (Segment("input", end, branches, merge), Segment(end, "output", (Branch("cpu"),))),
    )


def pair(
    *steps: Step, merge: str = "concat", widths: tuple[int, int] = (16, 8), end: str = "blocks"
) -> tuple[nn.Module, StretchedNetwork]:
    module = network(steps).eval()
    return module, stretch(module, halves(end, *widths, merge=merge))


def in_two_halves(module: nn.Module) -> StretchedNetwork:
    """Return the network with its blocks on two processors, each of half the width."""
    branches = tuple(Branch(p, width="0.5x") for p in ("cpu", "dsp"))
    segments = (Segment("input", "blocks", branches), Segment("blocks", "output", (Branch("cpu"),)))
    return stretch(module, Plan("net", INPUT, segments))
