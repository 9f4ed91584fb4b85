"""Spaces, multipliers and combinations that bounds of a search are checked on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from support.brute_force import all_combinations
from support.search_instances import Instance, Rate
from support.toy_network import residual

from nnstretch.capture import capture, load_model
from nnstretch.kernel import MOBILE_FUSION, ChannelBlockedLayout, FusionRules
from nnstretch.predict import load_soc
from nnstretch.soc import Link, Processor, Soc
from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.bounds import lagrangian, option_bounds, relaxations
from nnstretch.stretch.search.bounds.multipliers import CostToGo, Multipliers
from nnstretch.stretch.search.compiled.library import load_kernels
from nnstretch.stretch.search.constraints import NetworkLimits, SegmentLimits
from nnstretch.stretch.search.label_setting import (
    branch_join,
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


def with_dear_copies(one: Instance, rng: Random) -> Instance:
    """Return an instance where copies decide which widths of branches may meet."""
    space = space_of(one)
    wide = max(
        (option for option in segment_options(CostTables(space)) if option.branched),
        key=lambda option: option.bounds.communication_us / option.bytes_out,
        default=None,
    )
    if wide is None:
        return one
    kib = wide.bytes_out * space.original_width(wide.j) / 1024
    usual = wide.bounds.communication_us / kib
    processors = tuple(
        replace(
            processor,
            copy_in=Link(),
            copy_out=Link(0.0, usual * rng.choice((0.5, 1.0, 2.0)) / rng.uniform(0.2, 0.9)),
            sync_us=0.0,
        )
        for processor in one.soc.processors
    )
    return replace(one, soc=replace(one.soc, processors=processors, merge=Link()))


def dear_copies(seed: int) -> Instance:
    """One block on two or three processors, where copies decide which widths may meet."""
    rng, names = Random(seed), ("cpu", "dsp") if seed % 2 else ("cpu", "gpu", "dsp")
    graph = residual(((rng.choice((32, 48, 64)), 1),), rng.choice((16, 32)), 16)
    alpha, main_macs = rng.choice((0.1, 0.3, 0.5)), rng.choice((0.2, 0.4))
    limits = SegmentLimits(alpha, 1.0, 0.3, 0.1, main_macs, rng.choice((0.5, 0.7, 0.8)))
    least_macs = rng.choice((0.0, rng.uniform(0.8, 1.1))) * graph.macs
    macs_per_us = 10 ** rng.uniform(2.7, 3.3)
    rates = {name: Rate(name, macs_per_us * rng.choice((1.0, 1.3, 1.6))) for name in names}
    processors = tuple(Processor(name, name, 2) for name in names)
    soc, steps = Soc("toy", processors, "float32", rates), 12 if seed % 2 else 6
    one = Instance(graph, soc, limits, NetworkLimits(least_macs), steps, ("concat",))
    return with_dear_copies(one, rng)


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
    for module in (*bounds, dominance, branch_join, extensions, small_sums):
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
