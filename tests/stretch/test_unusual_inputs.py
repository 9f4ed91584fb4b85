"""Networks that read images as bytes, or with their channels last: what branches may begin there."""

from __future__ import annotations

import pytest
import torch
from support.search_instances import chip
from torch import nn

from nnstretch.capture.torch_export import capture
from nnstretch.errors import BadPlan
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import lower, stretch
from nnstretch.stretch.search.search import search


class Bytes(nn.Module):
    """Convolutions of an image whose pixels are whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale and convolve."""
        return self.head(self.layers(x.float() / 255).mean((2, 3)))


class ChannelsLast(Bytes):
    """The same of an image with its channels last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Turn and convolve."""
        return super().forward(x.permute(0, 3, 1, 2))


BYTES = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
WHOLE = (Branch("cpu"),)


def fork(width: int) -> tuple[Branch, ...]:
    return Branch("cpu", width=width), Branch("dsp", width=width)


def test_proven_plans_of_a_network_of_bytes_can_be_built() -> None:
    module = Bytes().eval()
    result = search(capture(module, BYTES), chip(), ("cpu", "dsp"), top=4)
    assert result.optimal
    for scored in result.plans:
        assert stretch(module, scored.trial.plan).eval()(BYTES).shape == (1, 10)
    assert any(len(segment.branches) > 1 for segment in result.plans[0].trial.plan.segments)


@pytest.mark.parametrize("merge", ["project", "concat"])
def test_no_layer_of_weights_reads_bytes(merge: str) -> None:
    first = Segment("input", "div", fork(2), merge=merge)  # type: ignore[arg-type]
    plan = Plan("net", (1, 3, 32, 32), (first, Segment("div", "output", WHOLE)), "", "uint8")
    with pytest.raises(
        BadPlan, match=r"^adapter adapt_\w+ is impossible, it would read x, which h"
    ):
        lower(capture(Bytes().eval(), BYTES), plan)


@pytest.mark.parametrize("merge", ["project", "concat"])
@pytest.mark.parametrize("width", [2, 8])
def test_channels_that_come_last_are_those_that_an_adapter_changes(width: int, merge: str) -> None:
    module, x = ChannelsLast().eval(), torch.randn(1, 16, 16, 3)
    first = Segment("input", "permute", fork(width), merge=merge)  # type: ignore[arg-type]
    plan = Plan("net", (1, 16, 16, 3), (first, Segment("permute", "output", WHOLE)))
    lowered = lower(capture(module, x), plan)
    assert lowered.segments[0].branches[0].graph.inputs[0].spec.shape == (1, 16, 16, 3)
    assert stretch(module, plan).eval()(x).shape == (1, 10)
