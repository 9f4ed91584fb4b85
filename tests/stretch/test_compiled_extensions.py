"""Combinations that extend labels are the same by compiled loops and by arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from support.search_bounds import (
    NEEDS_LIBRARY,
    blocked,
    loosened,
    options_of,
    random_prices,
    search_by_arrays,
    space_of,
)
from support.search_instances import random_instance

from nnstretch.stretch.search.bounds.cost_to_go import cost_to_go
from nnstretch.stretch.search.bounds.multipliers import Multipliers
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.label_setting.extensions import Extensions, admissible_extensions
from nnstretch.stretch.search.label_setting.label_bounds import LabelBounds
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.options.segment_options import segment_options
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import SearchSpace


@NEEDS_LIBRARY
@pytest.mark.parametrize("is_blocked", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_extensions_are_those_of_arrays(
    seed: int, is_blocked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, rng = loosened(random_instance(seed)), Random(seed)
    processors = (replace(one.soc.processors[0], memory_bytes=10**6), *one.soc.processors[1:])
    one = replace(one, soc=replace(one.soc, processors=processors))
    space = space_of(blocked(one) if is_blocked else one)
    space.whole_limited = rng.random() < 0.5
    options = list(segment_options(CostTables(space)))
    values = [cost_to_go(space, options, random_prices(rng, space), None, 1.3) for _ in range(3)]
    bounds = LabelBounds(space, options, values, random_limits(rng, space))
    check_extensions_both_ways(options, bounds, seed, monkeypatch)


@pytest.mark.slow
@NEEDS_LIBRARY
@pytest.mark.parametrize("seed", range(3))
def test_extensions_in_a_network_are_those_of_arrays(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of("torchvision:resnet18")
    space = options[0].space
    space.whole_limited = seed > 0
    each = [Multipliers(4e-6, 1e-4), Multipliers(3e-6), Multipliers()]
    values = [cost_to_go(space, options, multipliers, None, 1.3) for multipliers in each]
    bounds = LabelBounds(space, options, values, random_limits(Random(seed), space))
    assert check_extensions_both_ways(options[::9], bounds, seed, monkeypatch) > 100


def check_extensions_both_ways(
    options: Sequence[SegmentOption],
    bounds: LabelBounds,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> int:
    """Extend by random combinations, keeping all or few; return how many were kept in all."""
    results: list[list[tuple[set[tuple[Any, ...]], float]]] = [[], []]
    for n in range(2):
        draw = np.random.default_rng(seed)
        for option in options:
            widths = option.space.merged_widths(option.i)
            width = int(draw.choice(widths))
            if option.merge == "project":
                width = option.space.original_width(option.i)
            rows = tuple(draw.integers(len(table.us), size=200) for table in option.branch_tables)
            totals = option.branch_totals(width)
            if totals is None:
                continue
            combinations = option.admissible_combinations(width, totals, rows)
            after_us = np.sort(bounds.after_us(option, combinations), axis=1)
            limits_us = np.full(len(after_us), np.inf)
            if after_us.size:
                limits_us = after_us[:, -1 - after_us.shape[1] // 5]
            for most in (10**6, 2):
                asked = option, width, rows, bounds, limits_us, most
                extensions = admissible_extensions(*asked)
                is_whole = extensions.discarded_us == math.inf  # else equal bounds change places
                kept = extension_rows(extensions)
                assert len(kept) <= most
                seen = kept if is_whole else {(len(kept),)}
                results[n].append((seen, extensions.discarded_us))
        search_by_arrays(monkeypatch)
    assert results[0] == results[1]
    return sum(len(rows) for rows, _ in results[0])


def random_limits(rng: Random, space: SearchSpace) -> NetworkLimits:
    """Return some limits of the whole network."""
    macs, params = space.macs, space.analysis.graph.params
    return NetworkLimits(
        rng.choice((0.0, macs)),
        rng.choice((math.inf, 2.0 * macs)),
        rng.choice((0.0, params)),
        rng.choice((tuple(0.6 * params for _ in space.holders), ())),
    )


def extension_rows(extensions: Extensions) -> set[tuple[Any, ...]]:
    """Return what is known of each combination."""
    rows = extensions.combinations
    columns = rows.latency_us, rows.macs, rows.params, rows.width, *extensions.after_us
    each = (column.tolist() for column in (*columns, *rows.params_held.T, *rows.options))
    return set(zip(*each, strict=True))
