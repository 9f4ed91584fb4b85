"""A module is a copy of a block because depth scaling made it so, not because of its name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import stretch
from nnstretch.stretch.lowering.depth_scaling import copy_name, original_weight


class Named(nn.Module):
    """Names in which `_copy` is the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.stem_copy, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 8)
        self.head_copy, self.head_copy2 = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem_copy(x)).mean((2, 3))
        return self.head_copy2(torch.relu(self.head_copy(torch.relu(self.head(x)))))


def test_names_that_contain_copy_inherit_their_own_weights() -> None:
    torch.manual_seed(0)
    module = Named().eval()
    x = torch.randn(2, 3, 8, 8)
    plan = Plan("named", (2, 3, 8, 8), (Segment("input", "output", (Branch("cpu"),)),))
    with torch.no_grad():
        torch.testing.assert_close(stretch(module, plan).eval()(x), module(x))


@pytest.mark.parametrize("name", ["a.2.conv.weight", "a.conv_copy.weight", "conv_copy.x", "token"])
@pytest.mark.parametrize("copy", [1, 12])
def test_a_copy_starts_from_the_weight_it_copies(name: str, copy: int) -> None:
    assert original_weight(copy_name(name, copy), {name}) == name


def test_a_weight_of_the_original_starts_from_itself() -> None:
    weights = {"head.weight", "head_copy1.weight"}
    assert original_weight("head_copy1.weight", weights) == "head_copy1.weight"
    assert original_weight("head_copy.weight", weights) == "head_copy.weight"
