"""Slices begin where PyTorch begins them, also those that start before the front of their axis."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nnstretch.capture import capture
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import stretch
from nnstretch.structure.arguments import slice_start
from nnstretch.structure.slices.views import slice_boxes


@given(st.integers(1, 9), st.none() | st.integers(-20, 20))
def test_a_start_is_that_of_python(size: int, start: int | None) -> None:
    assert slice_start(start, size) == slice(start, None).indices(size)[0]


@pytest.mark.parametrize("start", [-20, -16, 0])
def test_a_branch_keeps_what_a_slice_reads(start: int) -> None:
    class Sliced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 3, padding=1)
            self.body = nn.Conv2d(8, 16, 3, padding=1)
            self.head = nn.Linear(16, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.body(torch.relu(self.stem(x))[:, start:8]))
            return self.head(x.mean((2, 3)))

    halves = (Branch("cpu", width="0.5x"), Branch("dsp", width="0.5x"))
    segments = (Segment("input", "relu_1", halves), Segment("relu_1", "output", (Branch("cpu"),)))
    network = stretch(Sliced().eval(), Plan("sliced", (1, 3, 8, 8), segments)).eval()
    assert network(torch.randn(1, 3, 8, 8)).shape == (1, 10)


@pytest.mark.parametrize("bounds", [(-10, -1), (-6, 4), (-3, 6), (2, None)])
def test_a_part_of_a_slice_reads_what_it_shows(bounds: tuple[int, int | None]) -> None:
    class Sliced(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, slice(*bounds)] * 2

    graph = capture(Sliced(), torch.zeros(1, 6, 4), "sliced")
    node = [node for node in graph.nodes if node.kind == "slice"][-1]  # along the second axis
    shown = torch.arange(6)[slice(*bounds)].tolist()
    for n in range(len(shown)):
        reads = slice_boxes(node, ((0, 1), (n, n + 1), (0, 4)), graph.specs())
        assert reads == {node.inputs[0]: ((0, 1), (shown[n], shown[n] + 1), (0, 4))}
