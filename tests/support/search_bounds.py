"""Spaces, multipliers and combinations that bounds of a search are checked on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from support.brute_force import all_combinations
from support.search_instances import Instance

from nnstretch.capture import capture, load_model
from nnstretch.kernel import MOBILE_FUSION, ChannelBlockedLayout, FusionRules
from nnstretch.predict import load_soc
from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.bounds import lagrangian, option_bounds, relaxations
from nnstretch.stretch.search.bounds.multipliers import CostToGo, Multipliers
from nnstretch.stretch.search.compiled.library import load_kernels
from nnstretch.stretch.search.constraints import SegmentLimits
from nnstretch.stretch.search.label_setting import (
    combinations,
    dominance,
    extensions,
    small_sums,
)
from nnstretch.stretch.search.options.option_costs import BranchCombinations
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.options.segment_options import segment_options
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import SearchSpace

LOOSE = SegmentLimits(beta=4.0, main_macs=0.2, segment_macs=0.3)
NEEDS_LIBRARY = pytest.mark.skipif(
    load_kernels() is None, reason="no C compiler when the package was installed"
)


def loosened(one: Instance) -> Instance:
    """Return an instance whose rules refuse few combinations."""
    few = {name: getattr(LOOSE, name) for name in ("beta", "main_macs", "segment_macs")}
    return replace(one, limits=replace(one.limits, **few))


def space_of(one: Instance) -> SearchSpace:
    return SearchSpace(
        NetworkAnalysis(one.graph),
        CostModel(one.soc),
        one.processors,
        one.limits,
        one.width_steps,
        one.merges,
    )


def random_prices(rng: Random, space: SearchSpace) -> Multipliers:
    """Up to three times what a MAC and a parameter cost on the fastest processor."""
    us, macs = CostTables(space).original(0, len(space.cuts) - 1)
    each, all_us = min(us.values()) / macs, min(us.values())
    return Multipliers(
        rng.choice((0.0, 3 * each * rng.uniform(-1, 1))),
        rng.choice((0.0, 3 * all_us / space.analysis.graph.params * rng.random())),
        rng.choice((0.0, all_us * rng.random())),
    )


def reached(option: SegmentOption, rows: BranchCombinations, values: CostToGo) -> Array:
    """Reduced latency of combinations, and the bound on what is left behind them."""
    reduced = values.multipliers.reduced(rows.latency_us, rows.macs, rows.params, option.meetings)
    if option.j == len(option.space.cuts) - 1:
        return reduced
    return np.asarray(
        reduced
        + values.at[option.j][np.searchsorted(option.space.merged_widths(option.j), rows.width)]
    )


def crossings(
    every: list[SegmentOption], space: SearchSpace
) -> Iterator[tuple[int, int, int, BranchCombinations]]:
    """Every lane at every width it can read.

    Its number, the width and its number, and all admissible combinations.
    """
    for number, option in enumerate(every):
        for row, width in enumerate(space.merged_widths(option.i).tolist()):
            rows = all_combinations(option, width)
            if rows is not None and len(rows):
                yield number, row, width, rows


def slack(value: float) -> float:
    """Rounding of sums that are taken in another order."""
    return 1e-9 * (1 + abs(value))


def search_by_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search as where no C compiler was at hand."""
    bounds = lagrangian, option_bounds, relaxations
    for module in (*bounds, dominance, combinations, extensions, small_sums):
        monkeypatch.setattr(module, "load_kernels", lambda: None)


def blocked(one: Instance) -> Instance:
    """Return an instance whose runtimes copy between layouts, so that units are of two kinds."""
    rules = FusionRules(MOBILE_FUSION.pairs, False, ChannelBlockedLayout(16, 4, frozenset({"add"})))
    return replace(one, soc=replace(one.soc, fusion=dict.fromkeys(one.processors, rules)))


def options_of(network: str) -> list[SegmentOption]:
    """Return the segment options of a network on three processors."""
    graph = capture(load_model(network), torch.zeros(1, 3, 224, 224))
    cost_model, processors = CostModel(load_soc("mi9"), "nearest"), ("cpu", "gpu", "dsp")
    analysis, merges = NetworkAnalysis(graph), ("concat", "project")
    space = SearchSpace(analysis, cost_model, processors, LOOSE, None, merges)
    return list(segment_options(CostTables(space)))
