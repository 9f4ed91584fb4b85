"""The printed form of each noun of a chip schedule, in the schedule of one small network."""

from __future__ import annotations

import math
from functools import cache

from support.random_chip_graphs import GraphMaker

from nnstretch.accelerate.chip_graph import chip_graph
from nnstretch.accelerate.engines.placed_program import residencies_of
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.policies import ClusterSchedule, ScheduleOptions, schedule_cluster
from nnstretch.chip.accelerator import Accelerator, Dram, MatrixUnit, OnChipBuffer, VectorUnit
from nnstretch.chip.instances import Binding, Split
from nnstretch.graph import TensorSpec, Value

MACHINE = Accelerator(
    "small",
    clusters=1,
    cores=2,
    clock_hz=1e9,
    element_types=("fp16",),
    matrix=MatrixUnit(8, 8, 8),
    vector=VectorUnit(8, 1, 4),
    local=OnChipBuffer(1400, 32e9),
    ddr=Dram(1e9),
    shared=OnChipBuffer(4096, 16e9),
)


@cache
def schedule() -> ClusterSchedule:
    """Three convolutions of four images, of which two fit at once."""
    value = Value("x", TensorSpec((4, 4, 8, 8)))
    maker = GraphMaker(shapes={"x": value.spec.shape})
    x = maker.conv(maker.relu(maker.conv("x", 4, 1, 1)), 4, 1, 2)
    graph = maker.finish((value,), (maker.conv(x, 8, 1, 2),))
    options = ScheduleOptions(parts_margin=math.inf)
    return schedule_cluster(chip_graph(graph, "fp16"), ChipRates(MACHINE, "fp16"), options)


def printed(things: object) -> str:
    """Return things one a line."""
    assert isinstance(things, (list, tuple))
    return "\n".join(map(str, things))


def test_the_printed_form_of_groups() -> None:
    assert printed(schedule().groups) == (
        "g0: 4 operators conv2d_0..conv2d_3, 2 parts of dimension 0, peak 4096 B"
    )


def test_the_printed_form_of_splits() -> None:
    splits = [Split(8), Split(4, 2), Split(1), Split(16, fits=False)]
    assert printed(splits) == (
        "8 parts of dimension 0\n4 parts of dimension 2\nwhole\nno split fits"
    )


def test_the_printed_form_of_instances() -> None:
    assert printed(schedule().order) == (
        "g0.1: x[2:4,0:4,0:5,0:5] -> conv2d_3[2:4,0:8,0:2,0:2]\n"
        "g0.0: x[0:2,0:4,0:5,0:5] -> conv2d_3[0:2,0:8,0:2,0:2]"
    )


def test_the_printed_form_of_bindings() -> None:
    bindings = [Binding((2, 4, 1), (0, 1, 2)), Binding((1, 1), (0, 1)), Binding((8,), (3,))]
    assert printed(bindings) == "[2, 4]\n[1]\n[8]"


def test_the_printed_form_of_residencies() -> None:
    lying = [item for item in residencies_of(schedule().placed) if "slot" not in item.tensor]
    assert printed(lying) == (
        "in/x ddr [0, 2048) steps 0..5\n"
        "g0.1/relu_1 local [0, 200) steps 0..1\n"
        "g0.1/conv2d_2 local [200, 272) steps 1..2\n"
        "g0.1/conv2d_3 ddr [2048, 2176) steps 0..5\n"
        "g0.0/relu_1 local [0, 200) steps 3..4\n"
        "g0.0/conv2d_2 local [200, 272) steps 4..5\n"
        "g0.0/conv2d_3 ddr [2176, 2304) steps 0..5"
    )


def test_the_printed_form_of_instructions() -> None:
    instructions = [i for i in schedule().instructions if i.step in (1, 2)]
    assert printed(instructions) == (
        "k0 dma_in g0.1/conv2d_2 weights 0 0.032 us\n"
        "k0 port g0.1/conv2d_2 weights 0 hoist 0.002 us\n"
        "k0 matrix g0.1/conv2d_2 0 0.017 us\n"
        "k0 dma_in g0.1/conv2d_3 weights 0 0.064 us\n"
        "k0 port g0.1/conv2d_3 weights 0 hoist 0.004 us\n"
        "k0 matrix g0.1/conv2d_3 0 0.009 us\n"
        "k0 dma_out g0.1/conv2d_3 0 store 0.032 us\n"
        "k0 matrix g0.1/conv2d_3 1 0.009 us\n"
        "k0 dma_out g0.1/conv2d_3 1 store 0.032 us\n"
        "k0 matrix g0.1/conv2d_3 2 0.009 us\n"
        "k0 dma_out g0.1/conv2d_3 2 store 0.032 us\n"
        "k0 matrix g0.1/conv2d_3 3 0.009 us\n"
        "k0 dma_out g0.1/conv2d_3 3 store 0.032 us"
    )
