"""The network of equal MACs that a plan is compared with."""

from __future__ import annotations

import pytest
import torch
from support.search_instances import NETWORK, chip

from nnstretch import load_soc
from nnstretch.capture import capture, load_model
from nnstretch.stretch.cost.cost_model import CostModel, estimate_plan
from nnstretch.stretch.cost.iso_mac import NARROWEST, equal_macs, uniform_plan
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.search import search


def test_a_network_whose_joined_maps_no_share_fits_has_a_baseline() -> None:
    """DLA joins maps of two stages: where one is scaled, the sum cannot be what it was."""
    name = "timm:dla46_c"
    analysis = NetworkAnalysis(capture(load_model(name).eval(), torch.zeros(1, 3, 64, 64), name))
    for ratio in (0.9, 1.1):
        assert uniform_plan(analysis, "cpu", ratio).graph.macs > 0
    result = search(analysis, load_soc("mi9"), fallback="nearest", width_steps=2)
    assert result.plans[0].iso_mac.latency_us > 0


def test_macs_that_no_width_has_are_those_of_the_nearest() -> None:
    """Nothing is extrapolated: between networks of nearly equal MACs it could be below zero."""
    analysis, soc = NetworkAnalysis(NETWORK), chip()
    narrowest = estimate_plan(uniform_plan(analysis, "cpu", NARROWEST), soc, CostModel(soc))
    baseline = equal_macs(analysis, soc, CostModel(soc), ("cpu",), 1)
    assert baseline.latency_us == pytest.approx(narrowest.latency_us)
    assert baseline.macs == narrowest.macs > 1
