"""Kernel counts of units as polynomials of their widths, also of units without any width."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from nnstretch import load_soc
from nnstretch.capture import capture
from nnstretch.errors import BadInput
from nnstretch.kernel import Kernel
from nnstretch.stretch.cost.polynomials import COUNTS, LoweredPoint, Point, fit_polynomials
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.search import search


class PinnedUnit(nn.Module):
    """Maps of 24 channels between convolutions that scale: matmul with a constant fixes the 24."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, 2, 1)
        self.body = nn.Sequential(nn.Conv2d(24, 48, 3, 1, 1), nn.ReLU(), nn.Conv2d(48, 24, 1))
        self.register_buffer("mix", torch.randn(24, 24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = torch.einsum("oc,bchw->bohw", self.mix, x)
        x = self.body(x).relu()
        return torch.einsum("oc,bchw->bohw", self.mix, x)


def test_a_unit_without_any_width_has_constant_counts() -> None:
    graph = capture(nn.Conv2d(3, 8, 3).eval(), torch.zeros(1, 3, 8, 8))
    kernel = Kernel("k", "conv", 3, 8, 8, 6, 3, 1, 1, 1, graph.macs, 192, 288, 216)

    def lower(point: Point) -> LoweredPoint:
        assert point == ()
        return graph, ((kernel,),)

    form = fit_polynomials(lower, (), ())
    assert form is not None
    assert form.macs.at([]) == graph.macs
    assert form.kernels[0][0][1]["cout"].at([]) == 8


def test_counts_beyond_64_bits_are_refused() -> None:
    graph = capture(nn.Conv2d(3, 8, 3).eval(), torch.zeros(1, 3, 8, 8))
    kernel = Kernel("k", "conv", 3, 8, 8, 6, 3, 1, 1, 1, 10**20, 192, 288, 216)
    with pytest.raises(BadInput, match=r"^1e\+20 of something in .*counts end at 9\.22e\+18$"):
        fit_polynomials(lambda _: (graph, ((kernel,),)), (), ())


def test_a_chain_of_many_widths_takes_few_graphs_and_is_exact_everywhere() -> None:
    """Layers share widths with their neighbours alone; one reads three, one squares its own."""
    graph = capture(nn.Conv2d(3, 8, 3).eval(), torch.zeros(1, 3, 8, 8))
    lowered: list[Point] = []

    def kernels_at(point: Point) -> tuple[Kernel, ...]:
        layers = []
        for n, (cin, cout) in enumerate(pairwise(point)):
            weights = cin * cout + cout
            layers.append(
                Kernel(
                    f"k{n}", "conv", cin, cout, 8, 6, 3, 1, 1, 1, 9 * weights, cin, cout, weights
                )
            )
        joined = point[0] + point[9] + point[17]
        both = joined * point[4] + point[4] ** 2
        layers.append(Kernel("joined", "conv", joined, 7, 8, 6, 3, 1, 1, 1, both, 3, joined, 1))
        return tuple(layers)

    def lower(point: Point) -> LoweredPoint:
        lowered.append(point)
        return graph, (kernels_at(point),)

    widths = tuple(range(8, 8 + 40 * 24, 40))
    form = fit_polynomials(lower, widths, (8, 4) * 12)
    assert form is not None
    assert len(lowered) < 60, "325 pairs of widths, most of which no kernel reads together"
    point = tuple(np.random.default_rng(0).integers(1, 2000, len(widths)).tolist())
    steps = form.steps([np.array(width) for width in point])
    for (_, counts), kernel in zip(form.kernels[0], kernels_at(point), strict=True):
        for name in COUNTS:
            assert round(float(counts[name].at(steps))) == getattr(kernel, name), name


def test_counts_that_are_no_quadratics_have_no_polynomials() -> None:
    graph = capture(nn.Conv2d(3, 8, 3).eval(), torch.zeros(1, 3, 8, 8))

    def cubic(point: Point) -> LoweredPoint:
        a, b, c = point
        return graph, ((Kernel("k", "conv", a, b, 8, 6, 3, 1, 1, 1, a * b * c, 3, 3, 3),),)

    assert fit_polynomials(cubic, (8, 168, 328), (8, 8, 8)) is None


def test_a_network_whose_widths_are_fixed_is_searched() -> None:
    graph = capture(PinnedUnit().eval(), torch.zeros(1, 3, 64, 64))
    result = search(graph, load_soc("mi9"), fallback="nearest")
    assert result.plans


class Detector(nn.Module):
    """A head whose end is 1 x (4 + classes) x places, as YOLO's: classes are no channels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU(),
        )  # fmt: skip
        self.boxes = nn.Conv2d(64, 4, 1)
        self.classes = nn.Conv2d(64, 18, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        maps = torch.cat([self.boxes(x), self.classes(x)], 1).flatten(2)
        boxes, classes = maps.split([4, 18], 1)
        return torch.cat([boxes * 2, classes.sigmoid()], 1)


@pytest.mark.slow
def test_a_detectors_classes_are_no_channels() -> None:
    graph = capture(Detector().eval(), torch.zeros(1, 3, 160, 160))
    result = search(graph, load_soc("mi9"), fallback="nearest", top=3)
    assert all(scored.trial.macs > 0 for scored in result.plans)


def residual(width: int) -> nn.Module:
    return Residual(
        nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1, groups=width),
            nn.Conv2d(width, 2 * width, 1),
            nn.ReLU(),
            nn.Conv2d(2 * width, width, 1),
        )
    )


class Residual(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = x + self.body(x)
        return added


def multiplied() -> nn.Module:
    """A depthwise convolution that doubles the channels between two stages, as FastViT's."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 2, 1),
        *(nn.ReLU(), residual(64), residual(64)),
        *(nn.Conv2d(64, 128, 7, 2, 3, groups=64), nn.BatchNorm2d(128)),
        *(nn.Conv2d(128, 128, 1), nn.ReLU(), residual(128), residual(128)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)),
    )


@pytest.mark.slow
def test_channels_that_a_depthwise_convolution_multiplies_are_cut_and_priced_exactly() -> None:
    graph = capture(multiplied().eval(), torch.zeros(1, 3, 128, 128))
    analysis = NetworkAnalysis(graph)
    ends = {cut.name for cut in analysis.block_ends}
    assert {"2", "3", "5", "8"} <= ends, "no stage is one with the one behind the multiplication"
    result = search(analysis, load_soc("mi9"), fallback="nearest", top=3)
    assert result.optimal, "tables and lowered plan agree"
