"""The exhaustive search against brute force, its bound against simulation, and `best` against it."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from support.random_chip_graphs import GraphMaker, random_graph, random_machine

from nnstretch.accelerate.best_schedule import best_candidate, best_schedule
from nnstretch.accelerate.chip_graph import ChipGraph, chip_graph
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.optimum.climb import Climb, GroupingPlan
from nnstretch.accelerate.optimum.exhaustive import (
    every_plan,
    exhaustive_optimum,
    orders,
    schedule_in_order,
)
from nnstretch.accelerate.optimum.grouping_plan import moved_borders, partitions
from nnstretch.accelerate.optimum.least_busy import LeastBusy
from nnstretch.accelerate.policies import POLICIES, ScheduleOptions, schedule_cluster
from nnstretch.accelerate.steps.slicing import slice_groups
from nnstretch.chip.accelerator import Accelerator, Dram, MatrixUnit, OnChipBuffer, VectorUnit
from nnstretch.errors import BadInput, BadPlan
from nnstretch.graph import TensorSpec, Value

MACHINE = Accelerator(
    "small",
    clusters=1,
    cores=2,
    clock_hz=1e9,
    element_types=("fp16",),
    matrix=MatrixUnit(16, 8, 8),
    vector=VectorUnit(8, 1, 4),
    local=OnChipBuffer(6 * 1024, 32e9),
    ddr=Dram(1e9),
    shared=OnChipBuffer(24 * 1024, 16e9),
    launch_us=0.2,
)
RATES = ChipRates(MACHINE, "fp16")
OPTIONS = ScheduleOptions()


def chain(layers: int) -> ChipGraph:
    """Convolutions and activations whose maps exceed the local buffers."""
    maker = GraphMaker()
    value = Value("x", TensorSpec((2, 8, 16, 16)))
    maker.shapes["x"] = value.spec.shape
    x = "x"
    for layer in range(layers):
        x = maker.relu(x) if layer % 2 else maker.conv(x, 16, 3, 2 if layer == 2 else 1)
    return chip_graph(maker.finish((value,), (x,)), "fp16")


def diamond() -> ChipGraph:
    maker = GraphMaker()
    value = Value("x", TensorSpec((2, 8, 16, 16)))
    maker.shapes["x"] = value.spec.shape
    entry = maker.conv("x", 8, 3, 1)
    left, right = maker.conv(entry, 8, 3, 1), maker.relu(entry)
    return chip_graph(maker.finish((value,), (maker.sum(left, right),)), "fp16")


def test_partitions_are_connected_and_close_no_cycle() -> None:
    assert [len(list(partitions(chain(n)))) for n in (1, 2, 3, 6)] == [1, 2, 4, 32]
    # Of the diamond e l r s: all fifteen but {l r} apart (2), {e s} apart (2), and {e l s}, {e r s}.
    shown = {" ".join(sorted(str(len(group)) for group in p)) for p in partitions(diamond())}
    assert shown == {"1 1 1 1", "1 1 2", "2 2", "1 3", "4"}
    assert len(list(partitions(diamond()))) == 10


@pytest.mark.slow
@pytest.mark.parametrize("chip", [chain(3), diamond()], ids=["chain", "diamond"])
def test_pruning_loses_nothing(chip: ChipGraph) -> None:
    slowest = schedule_cluster(chip, RATES, ScheduleOptions("ddr", "none"))
    optimum = exhaustive_optimum(chip, RATES, OPTIONS, slowest, most_parts=2)
    simulated = [
        schedule_in_order(chip, groups, order, RATES, OPTIONS).latency_us
        for groups in every_plan(chip, RATES, OPTIONS, 2)
        for order in orders(slice_groups(chip, groups))
    ]
    assert optimum.proven
    assert optimum.simulated < len(simulated)
    assert optimum.schedule.latency_us == min(simulated) < slowest.latency_us


def test_parts_of_a_group_keep_their_order() -> None:
    chip = chain(2)
    (groups,) = (
        groups
        for groups in every_plan(chip, RATES, OPTIONS, 2)
        if [group.split.factor for group in groups] == [2, 2]
    )
    names = {" ".join(i.name for i in order) for order in orders(slice_groups(chip, groups))}
    assert names == {"g0.0 g0.1 g1.0 g1.1", "g0.0 g1.0 g0.1 g1.1"}


@pytest.mark.parametrize("overlap", ["none", "kernel", "layers"])
@pytest.mark.parametrize("seed", range(12))
def test_no_plan_is_faster_than_its_bound(seed: int, overlap: str) -> None:
    chip, rates = chip_graph(random_graph(seed), "fp16"), ChipRates(random_machine(seed), "fp16")
    bound = LeastBusy(chip, rates, overlap)
    for policy in ("graphturbo", "lb", "ddr"):
        try:
            plan = schedule_cluster(chip, rates, ScheduleOptions(policy, overlap))
        except BadPlan:
            continue
        assert bound.plan_us(plan.groups) <= plan.latency_us * (1 + 1e-9)


def test_what_is_too_large_to_try_is_refused() -> None:
    chip = chain(8)
    start = schedule_cluster(chip, RATES, OPTIONS)
    with pytest.raises(BadInput, match="8 operators, exhaustive search"):
        exhaustive_optimum(chip, RATES, OPTIONS, start)


@pytest.mark.slow
@pytest.mark.parametrize("chip", [chain(5), diamond()], ids=["chain", "diamond"])
def test_best_climbs_to_the_optimum(chip: ChipGraph) -> None:
    options = ScheduleOptions("best", parts_margin=math.inf)
    start = best_candidate(chip, RATES, options, float("inf"))
    assert start is not None
    _, climbed = Climb(chip, RATES, float("inf")).climb(start)
    optimum = exhaustive_optimum(chip, RATES, OPTIONS, climbed)
    assert optimum.proven
    assert climbed.latency_us <= 1.05 * optimum.schedule.latency_us
    assert climbed.latency_us < start[1].latency_us


LAYERS = {"c": (8, 3, 1), "p": (16, 1, 1), "s": (64, 3, 2)}
"""Channels, kernel and stride of convolutions; r is an activation."""


def two_paths(side: int, first: str, second: str, behind: str) -> ChipGraph:
    """Two paths of layers from a convolution, their sum, and layers behind it."""
    maker = GraphMaker()
    value = Value("x", TensorSpec((1, 8, side, side)))
    maker.shapes["x"] = value.spec.shape

    def layers(x: str, kinds: str) -> str:
        for kind in kinds:
            x = maker.relu(x) if kind == "r" else maker.conv(x, *LAYERS[kind])
        return x

    entry = maker.conv("x", 8, 3, 1)
    x = layers(maker.sum(layers(entry, first), layers(entry, second)), behind)
    return chip_graph(maker.finish((value,), (x,)), "fp16")


@pytest.mark.slow
def test_a_climb_cuts_layers_into_parts_together_with_the_policy_that_lets_them_pay() -> None:
    chip, options = two_paths(16, "c", "rc", ""), ScheduleOptions("ddr", "layers")
    machine = replace(MACHINE.with_buffers(2048, 4096), ddr=Dram(4e9, False), launch_us=1.0)
    rates = ChipRates(machine, "fp16")
    schedule = schedule_cluster(chip, rates, options)
    start = GroupingPlan.of(schedule, options), schedule
    _, climbed = Climb(chip, rates, float("inf")).climb(start)
    optimum = exhaustive_optimum(chip, rates, OPTIONS, climbed)
    assert optimum.proven
    assert climbed.latency_us == optimum.schedule.latency_us < schedule.latency_us


def test_pairs_of_changes_lead_on_where_no_single_one_is_faster() -> None:
    chip = two_paths(8, "r", "r", "pps")
    local = OnChipBuffer(2048, 128e9)
    machine = replace(MACHINE, local=local, shared=None, mesh_bytes_per_s=16e9, launch_us=0.5)
    rates = ChipRates(machine, "fp16")
    schedule = schedule_cluster(chip, rates, OPTIONS)
    climb = Climb(chip, rates, float("inf"))
    plan, reached = climb.climb((GroupingPlan.of(schedule, OPTIONS), schedule))
    assert climb.step(plan, reached.latency_us) is None
    step = climb.double_step(plan, reached.latency_us)
    assert step is not None
    assert step[1].latency_us < 0.9 * reached.latency_us
    assert climb.simulated(step[0]) == step[1]


def test_any_operator_at_a_border_may_move_over_it() -> None:
    entry, left, right, end = (node.name for node in diamond().operators)
    moved = set(moved_borders(diamond(), (entry, left, right), (end,)))
    assert moved == {((entry, right), (left, end)), ((entry, left), (right, end))}
    back = set(moved_borders(diamond(), (entry,), (left, right, end)))
    assert back == {((entry, left), (right, end)), ((entry, right), (left, end))}


def test_without_time_best_is_the_fastest_of_the_policies_as_they_are_known() -> None:
    chip = chip_graph(random_graph(6), "fp16")
    plain = [
        schedule_cluster(chip, RATES, replace(OPTIONS, policy=policy)).latency_us
        for policy in POLICIES
        if policy != "best"
    ]
    without_time = best_schedule(chip, RATES, ScheduleOptions("best"), 0.0)
    assert without_time.latency_us == min(plain)
    start = best_candidate(chip, RATES, ScheduleOptions("best"), float("inf"))
    assert start is not None
    assert start[1].latency_us < without_time.latency_us


def test_a_climb_without_time_stays_where_it_is() -> None:
    chip = chain(5)
    schedule = schedule_cluster(chip, RATES, OPTIONS)
    start = GroupingPlan.of(schedule, OPTIONS), schedule
    climb = Climb(chip, RATES, 0.0)
    assert climb.climb(start) is climb.climb_by_pairs(start) is start


@pytest.mark.slow
def test_random_plans_are_bounded_too() -> None:
    chip, draw = chain(4), random.Random(0)
    bound = LeastBusy(chip, RATES, "layers")
    for groups in draw.sample(list(every_plan(chip, RATES, OPTIONS, 4)), 40):
        order = next(orders(slice_groups(chip, groups)))
        schedule = schedule_in_order(chip, groups, order, RATES, OPTIONS)
        assert bound.plan_us(groups) <= schedule.latency_us * (1 + 1e-9)
