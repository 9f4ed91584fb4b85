"""The automatic split against brute force.

Equal bottleneck, equal latency, processors used once, limits kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipeline_graphs import ONE, graphs, node

from nnstretch.errors import BadInput, NoPlan
from nnstretch.graph import Graph, Value
from nnstretch.partition.search.compute_layers import compute_layers
from nnstretch.partition.search.lower_bound import bottleneck_bound_us
from nnstretch.partition.search.solver import best_assignments
from nnstretch.partition.search.stage_costs import StageCostTable, boundary_traffic, sum_between
from nnstretch.partition.search.topological_cuts import (
    chain_cuts,
    dependencies_of,
    enumerate_cuts,
    topological_cuts,
)
from nnstretch.partition.split_graph import split_graph

NAMES = ("cpu", "gpu", "dsp")


def runs(units_us: np.ndarray) -> np.ndarray:
    """Compute of every run of a chain's units."""
    chain = chain_cuts(len(units_us))
    return sum_between(units_us, chain.member, chain.nested)


def contention(names: frozenset[str]) -> float:
    return 1.0 + 0.25 * (len(names) - 1) if "gpu" in names else 1.0


@st.composite
def tables(draw: st.DrawFn) -> StageCostTable:
    """Compute that adds up, transfers that do not, and some units that some processors refuse."""
    processors, units = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    cost = (
        st.one_of(st.integers(1, 9).map(float), st.just(np.inf))
        if draw(st.booleans())
        else st.integers(1, 9).map(float)
    )
    least = np.array(
        [draw(st.lists(cost, min_size=units, max_size=units)) for _ in range(processors)]
    )
    compute = [runs(one) for one in least]
    shape = (processors, units + 1, units + 1)
    flat = draw(
        st.lists(st.integers(0, 4), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))
    )
    beside = frozenset(draw(st.lists(st.sampled_from(NAMES[1:]), unique=True)))
    slower = {"cpu beside dsp": compute[0] * draw(st.sampled_from((1.0, 1.5, 2.0)))}
    return StageCostTable(
        NAMES[:processors],
        np.stack(compute),
        np.array(flat, float).reshape(shape),
        contention,
        least,
        overlapping=beside,
        price_key=lambda name, used: f"{name} beside dsp" if "dsp" in used else name,
        beside_us=slower,
    )


def every_way(table: StageCostTable, stages: int, replicas: bool) -> Iterator[tuple[float, float]]:
    """Bottleneck and latency of every split and every binding, one by one."""
    for inner in combinations(range(1, table.units), stages - 1):
        borders = (0, *inner, table.units)
        for groups in bindings(tuple(range(len(table.processors))), stages, replicas):
            used = frozenset(table.processors[p] for group in groups for p in group)
            factor = table.slowdown(used) if len(used) > 1 else 1.0
            keys = [table.price_key(name, used) for name in table.processors]
            compute_us = [
                table.beside_us.get(key, alone)
                for key, alone in zip(keys, table.compute_us, strict=True)
            ]
            costs = [
                [
                    (
                        factor * compute_us[p][start, stop],
                        table.transfer_us[p, start, stop],
                        table.processors[p] in table.overlapping,
                    )
                    for p in group
                ]
                for group, start, stop in zip(groups, borders[:-1], borders[1:], strict=True)
            ]
            periods_us = (
                max(max(c, t) if beside else c + t for c, t, beside in one) / len(one)
                for one in costs
            )
            yield (
                max(periods_us),
                sum(
                    max(compute_us + transfer_us for compute_us, transfer_us, _ in one)
                    for one in costs
                ),
            )


def bindings(
    free: tuple[int, ...], stages: int, replicas: bool
) -> Iterator[tuple[tuple[int, ...], ...]]:
    if not stages:
        yield ()
        return
    for many in range(1, len(free) + 1 if replicas else 2):
        for group in combinations(free, many):
            for rest in bindings(tuple(p for p in free if p not in group), stages - 1, replicas):
                yield (group, *rest)


@pytest.mark.slow
@settings(deadline=None, max_examples=250)
@given(tables(), st.booleans(), st.sampled_from([None, 1, 2, 3]))
def test_the_choice_is_the_optimum(
    table: StageCostTable, replicas: bool, stages: int | None
) -> None:
    counts = range(1, len(table.processors) + 1) if stages is None else [stages]
    ways = [
        way for count in counts for way in every_way(table, count, replicas) if np.isfinite(way[0])
    ]
    if not ways:
        with pytest.raises(NoPlan):
            best_assignments(table, stages, replicas)
        return
    choice, *_ = found = best_assignments(table, stages, replicas, top=4)
    bottleneck_us = min(way[0] for way in ways)
    assert choice.bottleneck_us == pytest.approx(bottleneck_us)
    assert choice.latency_us == pytest.approx(
        min(latency for period, latency in ways if period <= bottleneck_us * (1 + 1e-9))
    )
    assert choice.borders[0] == 0
    assert choice.borders[-1] == table.units
    used = [name for group in choice.groups for name in group]
    assert len(used) == len(set(used))
    assert bottleneck_bound_us(table, replicas) <= choice.bottleneck_us * (1 + 1e-9)
    assert [one.bottleneck_us for one in found] == sorted(one.bottleneck_us for one in found)
    assert len({(one.borders, one.groups) for one in found}) == len(found)


@settings(deadline=None, max_examples=60)
@given(tables())
def test_the_next_best_are_the_next_best(table: StageCostTable) -> None:
    if len(table.processors) < 2 or table.units < 2 or table.twins():
        return
    ways = sorted(way[0] for way in every_way(table, 2, False) if np.isfinite(way[0]))
    found = best_assignments(table, 2, False, top=3) if ways else ()
    assert [one.bottleneck_us for one in found] == pytest.approx(ways[:3])


@st.composite
def tables_of_copies(draw: st.DrawFn) -> StageCostTable:
    """Two or three copies of a processor, and another one or none, which may slow them."""
    table = draw(tables())
    rows = [0] * draw(st.integers(2, 3)) + [1] * (len(table.processors) > 1)
    other = draw(st.sampled_from(("gpu", "dsp")))
    names = tuple(f"cpu{n}" if not row else other for n, row in enumerate(rows))
    return StageCostTable(
        names,
        table.compute_us[rows],
        table.transfer_us[rows],
        contention,
        table.least_us[rows],
        price_key=table.price_key,
        beside_us=dict.fromkeys([f"{n} beside dsp" for n in names[:-1]], 2 * table.compute_us[0]),
    )


def test_copies_that_another_processor_slows_alike_are_twins() -> None:
    """Without, the ways to share stages among eight cores and a DSP took minutes."""
    table = line(2.0, 1.0, 3.0, processors=3)
    keys = {f"{name} beside dsp": 2 * table.compute_us[0] for name in NAMES[:2]}
    slowed = replace(table, price_key=lambda name, used: f"{name} beside dsp", beside_us=keys)
    assert slowed.twins() == {1: 0}
    unlike = replace(slowed, beside_us=keys | {"gpu beside dsp": 3 * table.compute_us[0]})
    assert unlike.twins() == {}


@settings(deadline=None, max_examples=60)
@given(tables_of_copies(), st.booleans(), st.integers(1, 3))
def test_mirror_images_on_copies_of_a_processor_are_one_candidate(
    table: StageCostTable, replicas: bool, stages: int
) -> None:
    ways = [way for way in every_way(table, stages, replicas) if np.isfinite(way[0])]
    if not ways:
        return
    found = best_assignments(table, stages, replicas, top=4)
    alike = [tuple(tuple(name[:3] for name in group) for group in one.groups) for one in found]
    assert len(set(zip((one.borders for one in found), alike, strict=True))) == len(found)
    assert found[0].bottleneck_us == pytest.approx(min(way[0] for way in ways))
    least_us = min(way[1] for way in ways if way[0] <= found[0].bottleneck_us * (1 + 1e-9))
    assert found[0].latency_us == pytest.approx(least_us)
    distinct = sorted({round(way[0], 9) for way in ways})
    assert {round(one.bottleneck_us, 9) for one in found} <= set(distinct)
    assert len(found) == 4 or {round(one.bottleneck_us, 9) for one in found} == set(distinct)


@settings(deadline=None, max_examples=80)
@given(graphs(), st.sampled_from([4, 256]))
def test_what_enters_and_leaves_a_stage_is_what_its_graph_reads_and_writes(
    graph: Graph, limit: int
) -> None:
    """Between any two frontiers the table's transfers and weights are those of the graphs that are
    built.
    """
    unit_of = compute_layers(graph)
    ends = topological_cuts(graph, unit_of, limit)
    stage_graph = boundary_traffic(graph, unit_of, ends, 4)
    for start, stop in list(zip(*np.nonzero(ends.nested), strict=True))[:60]:
        before, within = ends.masks[start], ends.masks[stop]
        stage_of = [0 if before >> unit & 1 else 1 if within >> unit & 1 else 2 for unit in unit_of]
        try:
            piece = split_graph(graph, [stage - (not before) for stage in stage_of])[
                int(before > 0)
            ]
        except BadInput:
            continue
        assert stage_graph.reads[start, stop] == len(piece.inputs)
        assert stage_graph.writes[start, stop] == len(piece.outputs)
        assert stage_graph.read_bytes[start, stop] == 4 * len(piece.inputs)
        assert stage_graph.weight_bytes[start, stop] == 4 * len(piece.weights)


@settings(deadline=None, max_examples=80)
@given(graphs())
def test_frontiers_are_all_sets_that_need_nothing_outside(graph: Graph) -> None:
    unit_of = compute_layers(graph)
    needs = dependencies_of(graph, unit_of)
    if len(needs) > 9:
        return
    closed = {
        mask
        for mask in range(1 << len(needs))
        if all(not need & ~mask for unit, need in enumerate(needs) if mask >> unit & 1)
    }
    assert set(enumerate_cuts(needs, 1 << 9) or ()) == closed
    some = topological_cuts(graph, unit_of, limit=2)
    assert set(some.masks) <= closed
    assert {0, (1 << len(needs)) - 1} | {(1 << count) - 1 for count in range(len(needs))} <= set(
        some.masks
    )
    assert some.complete == (len(closed) <= 2)


def test_parallel_branches_are_divided_in_whatever_order_is_best() -> None:
    """Two chains of weights 3, 1 and 1, 3 from one input.

    In printed order 3 1 | 1 3 hands nothing over but its output.
    """
    graph = forked()
    found = topological_cuts(graph, compute_layers(graph))
    assert found.complete
    assert len(found.masks) > len(chain_cuts(found.units).masks)


def forked() -> Graph:
    nodes = (
        node("a", "add.Tensor", "%x", 1),
        node("b", "add.Tensor", "%x", 2),
        node("a1", "mul.Tensor", "%a", 3),
        node("b1", "mul.Tensor", "%b", 4),
        node("out", "add.Tensor", "%a1", "%b1"),
    )
    return Graph("forked", (Value("x", ONE),), (), nodes, ("out",))


@settings(deadline=None, max_examples=60)
@given(graphs(), st.data())
def test_the_best_split_of_a_dag_is_the_best_of_all_assignments(
    graph: Graph, data: st.DataObject
) -> None:
    """Every way to give each unit a stage such that values run forward, one by one."""
    unit_of = compute_layers(graph)
    needs = dependencies_of(graph, unit_of)
    if not 2 <= len(needs) <= 6:
        return
    ends = topological_cuts(graph, unit_of)
    stage_graph = boundary_traffic(graph, unit_of, ends, 1)
    units_us = np.array(
        data.draw(st.lists(st.integers(1, 9).map(float), min_size=len(needs), max_size=len(needs)))
    )
    compute = sum_between(units_us, ends.member, ends.nested)
    cost = compute + 2 * stage_graph.reads + stage_graph.writes
    place = {mask: i for i, mask in enumerate(ends.masks)}
    everything, found = (1 << len(needs)) - 1, []
    for stages in product((0, 1), repeat=len(needs)):
        first = sum(1 << unit for unit, stage in enumerate(stages) if not stage)
        if first in (0, everything) or any(
            need & ~first for unit, need in enumerate(needs) if first >> unit & 1
        ):
            continue
        found.append(max(cost[0, place[first]], cost[place[first], place[everything]]))
    table = StageCostTable(
        ("cpu", "dsp"),
        np.stack([compute] * 2),
        np.stack([2 * stage_graph.reads + stage_graph.writes] * 2),
        lambda _: 1.0,
        np.stack([units_us] * 2),
    )
    assert best_assignments(table, 2)[0].bottleneck_us == pytest.approx(min(found))


def line(*times_us: float, processors: int = 2) -> StageCostTable:
    compute = np.stack([runs(np.array(times_us))] * processors)
    return StageCostTable(
        NAMES[:processors],
        compute,
        np.zeros_like(compute),
        lambda _: 1.0,
        np.array([times_us] * processors),
    )


def test_more_stages_than_processors_or_layers_are_refused_with_the_numbers() -> None:
    with pytest.raises(NoPlan, match=r"3 stages on 2 processors \(cpu, gpu\)"):
        best_assignments(line(1.0, 1.0, 1.0), 3)
    with pytest.raises(NoPlan, match="2 stages of 1 compute layers"):
        best_assignments(line(1.0), 2)


def test_a_processor_that_is_left_over_becomes_a_replica_of_the_heavy_stage() -> None:
    """One unit of 8 and one of 4 on three equal processors.

    The heavy one twice, a result every 4.
    """
    choice = best_assignments(line(8.0, 4.0, processors=3), 2, replicas=True)[0]
    assert (choice.bottleneck_us, choice.latency_us) == (4.0, 12.0)
    assert [len(group) for group in choice.groups] == [2, 1]
    assert best_assignments(line(8.0, 4.0, processors=3), 2)[0].bottleneck_us == 8.0


def test_the_bound_is_the_heaviest_layer_or_the_work_divided() -> None:
    assert bottleneck_bound_us(line(1.0, 9.0, 1.0), replicas=False) == 9.0
    assert bottleneck_bound_us(line(3.0, 3.0, 3.0, 3.0), replicas=False) == pytest.approx(6.0)
