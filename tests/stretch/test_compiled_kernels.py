"""Compiled loops compute what arrays compute, to the bit, and are there where a compiler is."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
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

from nnstretch.stretch.cost.cost_arrays import Array, BranchTable
from nnstretch.stretch.search.bounds import compiled_bounds, entry_bins
from nnstretch.stretch.search.bounds.cost_to_go import cost_to_go
from nnstretch.stretch.search.bounds.entry_bins import EntryBins, bin_entries, width_bins
from nnstretch.stretch.search.bounds.lagrangian import candidate_relaxations, deadline_costs
from nnstretch.stretch.search.bounds.multipliers import CostToGo, Multipliers
from nnstretch.stretch.search.bounds.option_bounds import CutBins, bound_option
from nnstretch.stretch.search.bounds.relaxations import choice_key, known_rows
from nnstretch.stretch.search.compiled import library
from nnstretch.stretch.search.compiled.library import load_kernels
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.label_setting.combinations import candidate_combinations
from nnstretch.stretch.search.label_setting.dominance import pareto_rows
from nnstretch.stretch.search.label_setting.small_sums import pairs_below
from nnstretch.stretch.search.options import segment_option
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.options.segment_options import segment_options
from nnstretch.stretch.search.space.cost_tables import CostTables


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_an_installation_beside_a_compiler_has_the_library() -> None:
    assert load_kernels() is not None


@pytest.mark.slow
@NEEDS_LIBRARY
@pytest.mark.parametrize("is_blocked", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_bounds_are_those_of_arrays(
    seed: int, is_blocked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_bins, "SINGLE_BINS", 1)
    one = loosened(random_instance(seed))
    space = space_of(blocked(one) if is_blocked else one)
    options = list(segment_options(CostTables(space)))
    values = cost_to_go(space, options, random_prices(Random(seed), space), None, 1.3)
    check_bounds_both_ways(options, values, seed, monkeypatch)


@pytest.mark.slow
@NEEDS_LIBRARY
@pytest.mark.parametrize("is_blocked", [False, True])
@pytest.mark.parametrize("seed", range(30, 36))
def test_bounds_of_equal_latencies_are_those_of_arrays(
    seed: int, is_blocked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where options take equally long, loops and arrays look at them in one order."""

    def rounded(table: BranchTable | EntryBins) -> Any:
        names = {"us", "adapted_us", "plain_us"} & set(vars(table))
        plain = getattr(table, "plain", None)
        columns = {name: np.round(getattr(table, name) / 40) * 40 for name in names}
        return replace(table, **columns, **({"plain": rounded(plain)} if plain else {}))

    table, bins = SegmentOption.branch_table, entry_bins.compute_bins
    monkeypatch.setattr(SegmentOption, "branch_table", lambda option, b: rounded(table(option, b)))
    monkeypatch.setattr(entry_bins, "compute_bins", lambda *asked: list(map(rounded, bins(*asked))))
    monkeypatch.setattr(entry_bins, "SINGLE_BINS", 1)
    one = loosened(random_instance(seed))
    space = space_of(blocked(one) if is_blocked else one)
    options = list(segment_options(CostTables(space)))
    prices = random_prices(Random(seed), space)
    for signed in (prices, replace(prices, per_mac=-abs(prices.per_mac) - 1e-5)):
        with monkeypatch.context() as patch:
            values = cost_to_go(space, options, signed, None, 1.3)
            check_bounds_both_ways(options, values, seed, patch)


@pytest.mark.slow
@NEEDS_LIBRARY
def test_bounds_of_a_network_are_those_of_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of branches with hundreds of options, relaxations are chosen by a sample."""
    for module in (segment_option, compiled_bounds):
        monkeypatch.setattr(module, "SAMPLE", 5)
    options = options_of("torchvision:resnet18")
    values = cost_to_go(options[0].space, options, Multipliers(4e-6, 1e-4), None, 1.3)
    check_bounds_both_ways(options[::9], values, 0, monkeypatch)


@NEEDS_LIBRARY
@pytest.mark.parametrize("spread_us", [0.0, 0.5, 40.0])
@pytest.mark.parametrize("seed", range(3))
def test_bounds_of_thousands_of_options_are_those_of_arrays(
    seed: int, spread_us: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buckets of latencies are many, some of them empty; some options take forever."""

    def enlarged(table: BranchTable) -> BranchTable:
        draw, times = np.random.default_rng(seed), 1 + 1500 // len(table.us)
        columns = {name: np.tile(column, times) for name, column in vars(table).items()}
        late_us = draw.choice((0.0, 1.0, 2.0, 60.0), times * len(table.us)) * spread_us
        late_us[draw.random(len(late_us)) < 0.1] = np.inf
        for name in ("us", "adapted_us", "plain_us"):
            columns[name] = columns[name] + late_us
        columns["macs"] = columns["macs"] * draw.random(len(late_us))
        return BranchTable(**columns)

    table = SegmentOption.branch_table
    space = space_of(loosened(random_instance(seed)))
    values = cost_to_go(
        space,
        list(segment_options(CostTables(space))),
        random_prices(Random(seed), space),
        None,
        1.3,
    )
    monkeypatch.setattr(SegmentOption, "branch_table", lambda option, b: enlarged(table(option, b)))
    options = [option for option in segment_options(CostTables(space)) if option.branched]
    check_bounds_both_ways(options[::3], values, seed, monkeypatch)


def check_bounds_both_ways(
    options: Sequence[SegmentOption],
    values: CostToGo,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bound options over some of their widths, with relaxations chosen and given."""
    bounds: list[list[Array]] = []
    for _ in range(2):
        bounds.append([])
        draw = np.random.default_rng(seed)
        for option in options:
            space, number = option.space, len(bounds[-1])
            starts = width_bins(space, option.i, 1.3)
            entries = bin_entries(option, starts)
            if not option.branched or entries is None:
                continue
            asked = CutBins(space, option.i, starts), entries
            is_usable = draw.random(len(space.merged_widths(option.i))) < 0.7
            is_usable[draw.integers(len(is_usable))] = True
            values.choices.clear()  # else like options say how to relax, and none chooses
            bounds[-1].append(bound_option(number, option, values, *asked, is_usable))
            bounds[-1].append(np.array(values.relaxations[number]))
            values.choices[choice_key(option)] = 10**6, every_row(option, values)
            bounds[-1].append(bound_option(number, option, values, *asked, is_usable))
            table = deadline_costs(option, entries, values, every_row(option, values))
            bounds[-1].append(table.costs.min(axis=2, initial=np.inf))
        search_by_arrays(monkeypatch)
    assert len(bounds[0]) == len(bounds[1]) > 0
    assert any(np.isfinite(bound).any() for bound in bounds[0])
    for by_loops, by_arrays in zip(*bounds, strict=True):
        np.testing.assert_array_equal(by_loops, by_arrays)


def every_row(option: SegmentOption, values: CostToGo) -> list[int]:
    """Return numbers of all ways to relax an option: more than fit into one vector."""
    return list(range(len(candidate_relaxations(option, values))))


@NEEDS_LIBRARY
@pytest.mark.parametrize("is_blocked", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_joined_branches_are_those_of_arrays(
    seed: int, is_blocked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory is limited, nothing dominates anything: the sets are equal."""
    one = loosened(random_instance(seed))
    space, rng = space_of(blocked(one) if is_blocked else one), Random(seed)
    options = list(segment_options(CostTables(space)))
    values = cost_to_go(space, options, random_prices(rng, space), None, 1.3)
    limits = NetworkLimits(max_held=(math.inf,))
    results: list[list[tuple[set[tuple[int, ...]], float]]] = [[], []]
    for n in range(2):
        for number, option in enumerate(options):
            for width in space.merged_widths(option.i).tolist():
                if not option.branched or option.branch_totals(width) is None:
                    continue
                ways = known_rows(number, option, values, width)
                asked = option, width, values, ways, limits
                for slack_us, most in ((math.inf, 10**6), (values.at[0][0], 10**6), (math.inf, 7)):
                    rows, left_out_us = candidate_combinations(*asked, slack_us, most)
                    joined = [] if rows is None else list(zip(*map(list, rows), strict=True))
                    assert len(set(joined)) == len(joined) <= most
                    is_whole = left_out_us == math.inf  # else those of one bound may change places
                    results[n].append((set(joined) if is_whole else {(len(joined),)}, left_out_us))
        search_by_arrays(monkeypatch)
    assert results[0] == results[1]
    assert sum(bool(joined) for joined, _ in results[0]) > 1


@NEEDS_LIBRARY
@given(
    st.integers(1, 4),
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(1, 300),
    st.integers(0, 2**32 - 1),
    st.sampled_from((-1.0, 3.0, 9.0, math.inf)),
)
def test_pairs_below_a_limit_are_those_of_arrays(
    prices: int, rows: int, columns: int, size: int, seed: int, limit: float
) -> None:
    draw = np.random.default_rng(seed)
    before = draw.integers(0, 9, (prices, rows)).astype(float)
    after = draw.choice((0.0, 1.0, 2.0, 5.0, math.inf), (prices, columns))
    sums = before[:, :, None] + after[:, None, :]
    expected = np.argwhere((sums < limit).all(axis=0)).tolist()
    with pytest.MonkeyPatch.context() as patch:
        for _ in range(2):
            slices = list(pairs_below(before, after, limit, size))
            assert all(len(few) <= size + columns for few, *_ in slices)
            pairs = [
                pair for few in slices for pair in zip(*map(np.ndarray.tolist, few), strict=True)
            ]
            assert sorted([row, column] for row, column, _ in pairs) == expected
            assert all(highest == sums[:, r, c].max() for r, c, highest in pairs)
            search_by_arrays(patch)


@NEEDS_LIBRARY
@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)),
        min_size=1,
        max_size=80,
    )
)
def test_pareto_rows_are_those_of_arrays(rows: list[tuple[bool, int, int, int]]) -> None:
    values = np.array([row[1:] for row in rows], dtype=float)
    first = np.array([n == 0 or row[0] for n, row in enumerate(rows)])
    by_loops = pareto_rows(values, first).tolist()
    with pytest.MonkeyPatch.context() as patch:
        search_by_arrays(patch)
        assert sorted(pareto_rows(values, first).tolist()) == by_loops


def test_a_library_of_another_source_or_machine_or_none_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_kernels.cache_clear()
    try:
        (tmp_path / "kernels.h").write_text("another")
        monkeypatch.setattr(library, "SOURCES", tmp_path)
        assert load_kernels() is None
        load_kernels.cache_clear()
        monkeypatch.setattr(library, "LIBRARY", tmp_path / "kernels.so")
        assert load_kernels() is None
        (tmp_path / "kernels.so").write_bytes(b"\x7fELF of another machine")
        load_kernels.cache_clear()
        assert load_kernels() is None
    finally:
        load_kernels.cache_clear()
