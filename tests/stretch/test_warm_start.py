"""What a search begins with, where it was given fewer segments than its space has."""

from __future__ import annotations

import pytest
from support.search_instances import NETWORK, chip

from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search import warm_start
from nnstretch.stretch.search.branch_and_bound import ExactSearch
from nnstretch.stretch.search.constraints import NetworkLimits, SegmentLimits
from nnstretch.stretch.search.options.segment_options import segment_options
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import SearchSpace


def test_segments_that_were_left_out_are_not_tried_with_few_widths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_start, "COARSE_WIDTHS", 3)
    monkeypatch.setattr(warm_start, "WORTH_WIDTHS", 1)
    space = SearchSpace(
        NetworkAnalysis(NETWORK), CostModel(chip()), ("cpu", "dsp"), SegmentLimits()
    )
    tables = CostTables(space)
    limits = NetworkLimits(min_macs=0.9 * NETWORK.macs)
    everything = tuple(segment_options(tables))
    best = ExactSearch(tables, everything, limits, 0.0).run().best
    assert best is not None
    branched = [everything[n].key for n in best.option_numbers if everything[n].branched]
    assert branched, "the fastest plan branches"
    fewer = tuple(option for option in everything if option.key not in branched)
    search = ExactSearch(tables, fewer, limits, 0.0)
    warm_start.warm_up(search)
    assert search.run().best is not None
    assert search.best is not None
    assert search.best.latency_us > best.latency_us
