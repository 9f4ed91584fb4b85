"""Behind a meeting point channels come in another order: layers, shortcuts and norms follow it."""

from __future__ import annotations

import pytest
import torch
from support.random_networks import relative
from torch import nn

from nnstretch.capture import trace
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import NetworkAnalysis, lower, stretch
from nnstretch.stretch.weights.inheritance import inherit_segments

SHAPE = (2, 3, 8, 8)
X = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
WHOLE = (Branch("cpu"),)


class Residual(nn.Module):
    """A sum of its own input and what it computes of it, `count` times."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return x


class Net(nn.Module):
    def __init__(self, body: nn.Module, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU())
        self.body, self.head = body, nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.stem(x)).mean((2, 3)))


def halves(width: int = 8, width_out: int | None = None) -> tuple[Branch, ...]:
    return tuple(Branch(p, width=width, width_out=width_out) for p in ("cpu", "dsp"))


def plan(*segments: Segment) -> Plan:
    return Plan("net", SHAPE, segments)


@pytest.mark.parametrize("count", [1, 3])
def test_what_shortcuts_add_is_added_to_the_same_channels(count: int) -> None:
    torch.manual_seed(0)
    module = Net(Residual(count)).eval()
    both = stretch(
        module, plan(Segment("input", "stem", halves()), Segment("stem", "output", WHOLE))
    ).eval()
    with torch.no_grad():
        assert relative(module(X), both(X)) <= 1e-5


def test_a_norm_over_groups_that_comes_first_keeps_the_numbers_of_what_it_reads() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 16, 3))
    nn.init.normal_(body[0].weight)
    module = Net(body).eval()
    captured = trace(module, X, "net")
    whole = plan(Segment("input", "stem", halves()), Segment("stem", "output", WHOLE))
    segments = list(
        inherit_segments(lower(NetworkAnalysis(captured.graph), whole), captured.weights)
    )
    stems = [values["stem.0.weight"] for values in segments[0][0]]
    rows = [module.stem[0].weight.eq(row).all(3).all(2).all(1) for row in torch.cat(stems)]
    incoming = torch.stack(rows).int().argmax(1)
    assert incoming.tolist() != sorted(incoming.tolist())
    (values,) = segments[1][0]
    assert torch.equal(values["body.0.weight"], body[0].weight[incoming])
    assert torch.equal(values["body.2.weight"], body[2].weight[:, incoming])


def test_slices_may_be_wider_than_the_original_together() -> None:
    module = Net(nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU())).eval()
    wide = Segment("input", "stem", halves(8, 16), "project")
    both = stretch(
        module,
        plan(
            wide, Segment("stem", "body", halves(8, 8), "project"), Segment("body", "output", WHOLE)
        ),
    )
    assert both(X).shape == module(X).shape


def test_a_slice_keeps_its_loudest_channels() -> None:
    torch.manual_seed(0)
    module = Net(nn.MaxPool2d(2), 64).eval()
    loudness = torch.rand(64).add(0.5)
    with torch.no_grad():
        norms = module.stem[0].weight.flatten(1).norm(dim=1)
        module.stem[0].weight.mul_((loudness / norms)[:, None, None, None])
    captured = trace(module, X, "net")
    whole = plan(
        Segment("input", "stem", halves(24, 32), "project"), Segment("stem", "output", WHOLE)
    )
    segments = list(
        inherit_segments(lower(NetworkAnalysis(captured.graph), whole), captured.weights)
    )
    for number, values in enumerate(segments[0][0]):
        low = 32 * number
        loudest = loudness[low : low + 32].argsort(descending=True)[:24].sort().values + low
        assert torch.equal(values["stem.0.bias"], module.stem[0].bias[loudest])
