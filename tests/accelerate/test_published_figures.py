"""Machines that were measured and published, as we describe them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import fmean

import pytest
from support.chip_networks import bert, resnet50
from support.random_chip_graphs import GraphMaker

from nnstretch.accelerate.chip_graph import ChipGraph, chip_graph
from nnstretch.accelerate.engines.engine_use import engine_use
from nnstretch.accelerate.engines.simulate import end_times_us
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.policies import ClusterSchedule, ScheduleOptions, schedule_cluster
from nnstretch.chip.instances import DDR
from nnstretch.graph import Graph, TensorSpec, Value


def test_matrix_use_of_resnet50_never_falls_with_images_and_is_close_to_the_published() -> None:
    rates = ChipRates(load_accelerator("stcp920"), "fp16")
    published = {1: 19.1, 2: 28.6, 4: 51.8, 8: 77.7, 16: 78.6}
    uses: list[float] = []
    for images in published:
        made = schedule_cluster(resnet50(images), rates, ScheduleOptions())
        use = engine_use(made.placed, made.instructions, made.latency_us, rates)
        uses.append(100 * use["matrix"])
        matrix_us = sum(i.duration_us for i in made.instructions if i.engine == "matrix")
        assert use["matrix"] + use["matrix_fill"] == pytest.approx(matrix_us / made.latency_us)
    assert uses == sorted(uses)
    differences = [abs(use - theirs) for use, theirs in zip(uses, published.values(), strict=True)]
    assert fmean(differences) <= 15


def test_bert_of_16_sentences_is_no_faster_for_each_than_of_8() -> None:
    rates = ChipRates(load_accelerator("stcp920"), "fp16")
    of_8, of_16 = (
        schedule_cluster(bert(count, 128), rates, ScheduleOptions()).latency_us / count
        for count in (8, 16)
    )
    assert of_16 >= of_8 * (1 - 1e-9)


def maps_in_ddr(schedule: ClusterSchedule) -> set[str]:
    """Storages in DDR that are neither inputs nor outputs of the network."""
    program = schedule.placed.program
    ends = {value.name for value in program.chip.graph.inputs} | set(program.chip.outputs)
    in_ddr = {name: s.tensor for name, s in program.storages.items() if s.scope == DDR}
    return {name for name, tensor in in_ddr.items() if tensor not in ends}


@pytest.mark.parametrize("chip", [resnet50, lambda images: bert(images, 128)], ids=["A", "B"])
def test_only_named_spills_lie_in_ddr_beside_inputs_and_outputs(
    chip: Callable[[int], ChipGraph],
) -> None:
    rates = ChipRates(load_accelerator("stcp920"), "fp16")
    schedule = schedule_cluster(chip(16), rates, ScheduleOptions())
    spilled = {spill.tensor for spill in schedule.placed.spills if spill.target == DDR}
    assert {name.removesuffix(" out") for name in maps_in_ddr(schedule)} == spilled
    in_ddr = schedule_cluster(chip(16), rates, ScheduleOptions("ddr"))
    assert len(maps_in_ddr(in_ddr)) > 20


def matrix_spans_us(schedule: ClusterSchedule) -> list[tuple[float, float]]:
    """Start and end of each instruction of the matrix unit."""
    ends = end_times_us(schedule.instructions, schedule.needs)
    return [
        (end - item.duration_us, end)
        for item, end in zip(schedule.instructions, ends, strict=True)
        if item.engine == "matrix"
    ]


def perceptron(sizes: list[int], batch: int) -> ChipGraph:
    maker = GraphMaker()
    maker.shapes["x"] = (batch, sizes[0])
    x = "x"
    for width in sizes[1:]:
        x = maker.linear(x, width)
    graph: Graph = maker.finish((Value("x", TensorSpec((batch, sizes[0]))),), (x,))
    return chip_graph(graph, "int8")


# Jouppi et al., ISCA 2017, table 1 and 3: layers as equal squares of the published weights.
# Operations a second are those of these squares; LSTM1's matrices are 600x600 and smaller than them.
@pytest.mark.parametrize(
    ("layers", "weights", "batch", "active", "stall", "shift", "not_matrix", "operations_per_s"),
    [
        (5, 20e6, 200, 12.7, 53.9, 15.9, 17.5, 12.3e12),
        (4, 5e6, 168, 10.6, 44.2, 13.4, 31.9, 9.7e12),
        (24, 52e6, 64, 8.2, 58.1, 15.8, 17.9, 3.7e12),
        (37, 34e6, 96, 10.5, 62.1, 17.1, 10.3, None),
    ],
)
def test_tpuv1_waits_for_weights_as_its_counters_say(
    layers: int,
    weights: float,
    batch: int,
    active: float,
    stall: float,
    shift: float,
    not_matrix: float,
    operations_per_s: float | None,
) -> None:
    side = round((weights / layers) ** 0.5 / 256) * 256
    chip = perceptron([side] * (layers + 1), batch)
    rates = ChipRates(load_accelerator("tpuv1"), "int8")
    schedule = schedule_cluster(chip, rates, ScheduleOptions("graphturbo"))
    spans = matrix_spans_us(schedule)
    # Before the first and after the last tile the unit waits for maps, which is not counted here.
    cycles = (spans[-1][1] - spans[0][0]) * 700
    tiles_run = layers * (side // 256) ** 2
    shares = [tiles_run * batch / cycles, 0.0, tiles_run * 256 / cycles]
    shares[1] = 1 - shares[0] - shares[2]
    measured = [share / (1 - not_matrix / 100) for share in (active, stall, shift)]
    for ours, theirs in zip(shares, measured, strict=True):
        assert abs(100 * ours - theirs) <= 6
    assert abs(100 * shares[2] - measured[2]) <= 1
    if operations_per_s is not None:
        ours_per_s = 2 * layers * side**2 * batch / schedule.latency_us * 1e6
        assert 1 <= ours_per_s / operations_per_s <= 1.25


def test_tpuv1_never_waits_for_weights_where_convolutions_use_them_often() -> None:
    # CNN0: 16 convolutions, 8 million weights, 8 boards of 19 x 19; its counter of stalls says 0.
    shape = (8, 256, 19, 19)
    maker = GraphMaker(shapes={"x": shape})
    x = "x"
    for _ in range(16):
        x = maker.conv(x, 256, 3, 1)
    chip = chip_graph(maker.finish((Value("x", TensorSpec(shape)),), (x,)), "int8")
    rates = ChipRates(load_accelerator("tpuv1"), "int8")
    spans = matrix_spans_us(schedule_cluster(chip, rates, ScheduleOptions()))
    waits = [after[0] - before[1] for before, after in pairwise(spans)]
    assert len(spans) == 16 * 9
    assert max(waits) < 1e-9


def test_tpuv1_loads_600_by_600_matrices_in_18_us() -> None:
    rates = ChipRates(load_accelerator("tpuv1"), "int8")
    schedule = schedule_cluster(perceptron([600, 600], 1), rates, ScheduleOptions())
    assert schedule.latency_us == pytest.approx(18, rel=0.1)
    wide = load_accelerator("tpuv1", ["matrix.rows=512", "matrix.columns=512"])
    schedule = schedule_cluster(
        perceptron([600, 600], 1), ChipRates(wide, "int8"), ScheduleOptions()
    )
    assert schedule.latency_us == pytest.approx(32, rel=0.1)
