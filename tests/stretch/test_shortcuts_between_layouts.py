"""Shortcuts of segments that end in another layout: channels lie along another axis inside.

In these networks half of the channels say nothing, so a branch of the others computes the original.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from stretch.test_followed_channels import FIRST, X, conv, plan, silence
from support.random_networks import relative
from torch import Tensor, nn

from nnstretch.plan import Branch, Segment
from nnstretch.stretch import stretch

WHOLE = (Branch("cpu"),)


class Shortcuts(nn.Module):
    """Residual sums of maps, rows of pixels or tokens, then a change of the layout."""

    def __init__(self, layer: Callable[[], nn.Module], leave: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers, self.leave = nn.ModuleList([layer(), layer()]), leave

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.leave(x)


class Net(nn.Module):
    """A stem, its layout changed, shortcuts, and a head that reads tokens of 16 channels."""

    def __init__(self, enter: Callable[[Tensor], Tensor], body: Shortcuts) -> None:
        super().__init__()
        self.enter, self.stem, self.body = enter, conv(3, 16, 3, FIRST), body
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(self.enter(self.stem(x).relu()))
        return self.head(x.mean((2, 3)) if x.dim() == 4 else x.mean(1))


def window() -> nn.Module:
    return conv(16, 16, 3, FIRST)


def dense() -> nn.Module:
    return silence(nn.Linear(16, 16), FIRST)


def to_tokens(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)


def to_map(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(x.shape[0], 16, 8, 8)


def to_rows(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def from_rows(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


NETS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "maps to maps": ("relu", lambda: Net(nn.Identity(), Shortcuts(window, nn.Identity()))),
    "maps to tokens": ("relu", lambda: Net(nn.Identity(), Shortcuts(window, to_tokens))),
    "tokens to maps": ("transpose", lambda: Net(to_tokens, Shortcuts(dense, to_map))),
    "rows to maps": ("permute", lambda: Net(to_rows, Shortcuts(dense, from_rows))),
    "rows to tokens": (
        "permute",
        lambda: Net(to_rows, Shortcuts(dense, lambda x: x.flatten(1, 2))),
    ),
}
"""The cut where shortcuts begin, and the network."""


def stretched(kind: str, branches: tuple[Branch, ...]) -> tuple[nn.Module, nn.Module]:
    """A network, and the same with its shortcuts in branches, whose adapters select alone."""
    torch.manual_seed(0)
    start, make = NETS[kind]
    module = make().eval()
    first, last = Segment("input", start, WHOLE), Segment("body", "output", WHOLE)
    branched = stretch(module, plan(first, Segment(start, "body", branches), last))
    for name, weight in branched.named_parameters():
        if name.endswith("adapt_add.bias"):
            nn.init.zeros_(weight)
    return module, branched.eval()


@pytest.mark.parametrize("kind", NETS)
def test_a_branch_of_the_channels_that_speak_is_the_original(kind: str) -> None:
    module, narrow = stretched(kind, (Branch("cpu", width=8),))
    assert any("adapt_add" in name for name in narrow.state_dict())
    with torch.no_grad():
        assert relative(module(X), narrow(X)) <= 1e-5


@pytest.mark.parametrize("kind", NETS)
def test_branches_that_share_the_channels_are_the_original(kind: str) -> None:
    module, both = stretched(kind, (Branch("cpu", width=8), Branch("dsp", width=8)))
    with torch.no_grad():
        assert relative(module(X), both(X)) <= 1e-5


@pytest.mark.parametrize("kind", NETS)
def test_a_whole_branch_is_the_original_to_the_last_bit(kind: str) -> None:
    module, whole = stretched(kind, WHOLE)
    with torch.no_grad():
        assert torch.equal(module(X), whole(X))
