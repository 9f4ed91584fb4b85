"""The simulator against formulas, against the loop, and against physics."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.chip_networks import resnet50
from support.random_chip_graphs import (
    random_graph,
    random_machine,
    schedule_that_fits,
)

from nnstretch.accelerate.best_schedule import best_schedule
from nnstretch.accelerate.chip_graph import chip_graph
from nnstretch.accelerate.engines.dependencies import needs_of
from nnstretch.accelerate.engines.instructions import instructions_of
from nnstretch.accelerate.engines.simulate import end_times_us, tasks_of, trace_of
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.operator_work import MatrixShape, is_matrix, weight_bytes
from nnstretch.accelerate.policies import ScheduleOptions, schedule_cluster
from nnstretch.accelerate.schedule_file import ChipScheduleFile, GroupRow, groups_of, order_of
from nnstretch.accelerate.steps.memory import Block, overflows
from nnstretch.accelerate.steps.slicing import slice_groups
from nnstretch.chip.accelerator import Accelerator, Dram, MatrixUnit, OnChipBuffer, VectorUnit
from nnstretch.chip.instances import Instruction, Region
from nnstretch.errors import BadPlan
from nnstretch.schedule.simulation.run_graph import run_graph
from nnstretch.soc import Processor


def tiles(count: int, load: float, compute: float, store: float) -> list[Instruction]:
    """The instructions of a tile loop with two slots for operands and two for results."""
    instructions: list[Instruction] = []
    for tile in range(count):
        place = tile % 2
        operand, result = Region("local", place, place + 1), Region("local", 2 + place, 3 + place)
        target = Region("ddr", tile, tile + 1)
        instructions += [
            Instruction(f"load {tile}", "dma_in", load, (), (operand,)),
            Instruction(f"compute {tile}", "matrix", compute, (operand,), (result,)),
            Instruction(f"store {tile}", "dma_out", store, (result,), (target,)),
        ]
    return instructions


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "times", [(5.0, 3.0, 2.0), (2.0, 7.0, 3.0), (1.0, 2.0, 6.0), (4.0, 4.0, 4.0)]
)
def test_k_tiles_with_two_slots_take_the_formulas_time(
    count: int, times: tuple[float, float, float]
) -> None:
    instructions = tiles(count, *times)
    overlapped = max(end_times_us(instructions, needs_of(instructions, "layers")))
    serial = max(end_times_us(instructions, needs_of(instructions, "none")))
    assert serial == count * sum(times)
    assert overlapped == sum(times) + (count - 1) * max(times)


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("limited", ["local", "all"])
@pytest.mark.parametrize(("load", "compute", "store"), [(5.0, 3.0, 2.0), (2.0, 7.0, 3.0)])
def test_ports_and_instructions_in_flight_take_the_formulas_time(
    count: int, limited: str, load: float, compute: float, store: float
) -> None:
    # Loads, products and stores all touch the local buffer; those retire in order, too.
    instructions = tiles(count, load, compute, store)
    times_us = {}
    for most in (1, 2, 3):
        needs = needs_of(instructions, "layers", {limited: most})
        times_us[most] = max(end_times_us(instructions, needs))
    whole_us = load + compute + store
    assert times_us[1] == count * whole_us
    assert times_us[2] == whole_us + (count - 1) * (compute + max(load, store))
    assert times_us[3] == whole_us + (count - 1) * max(load, compute, store)


@pytest.mark.slow
def test_no_more_instructions_are_under_way_than_a_description_says() -> None:
    slowed = 0
    for seed in range(40):
        machine = random_machine(seed)
        limits = {"local": 1 + seed % 3, "global": 1 + seed % 2, "all": 1 + seed % 4}
        shared = machine.shared and replace(machine.shared, ports=limits["global"])
        limited = replace(
            machine,
            local=replace(machine.local, ports=limits["local"]),
            shared=shared,
            instructions_in_flight=limits["all"],
        )
        try:
            free, bound = (
                schedule_cluster(
                    chip_graph(random_graph(seed), "fp16"),
                    ChipRates(described, "fp16"),
                    ScheduleOptions(overlap="layers"),
                )
                for described in (machine, limited)
            )
        except BadPlan:
            continue
        assert bound.latency_us >= free.latency_us * (1 - 1e-9)
        slowed += bound.latency_us > free.latency_us
        ends_us = end_times_us(bound.instructions, bound.needs)
        for name, most in limits.items():
            spans = [
                (end_us - item.duration_us, end_us)
                for item, end_us in zip(bound.instructions, ends_us, strict=True)
                if item.duration_us and item.engine != "host" and touches(item, name)
            ]
            assert most_under_way(spans) <= most, (seed, name)
    assert slowed > 10


@pytest.mark.slow
def test_more_ports_and_more_instructions_in_flight_are_never_slower() -> None:
    for seed in range(30):
        schedule = schedule_that_fits(seed, ScheduleOptions(overlap="layers"))
        instructions = schedule.instructions
        for name in ("local", "global", "all"):
            times_us = [
                max(end_times_us(instructions, needs_of(instructions, "layers", {name: most})))
                for most in range(1, 8)
            ]
            assert times_us == sorted(times_us, reverse=True), (seed, name)
            assert times_us[-1] >= schedule.latency_us * (1 - 1e-9)


def touches(item: Instruction, buffer: str) -> bool:
    """Whether an instruction uses a buffer."""
    regions = (*item.reads, *item.writes)
    return buffer == "all" or any(r.buffer == buffer and r.stop > r.start for r in regions)


def most_under_way(spans: list[tuple[float, float]]) -> int:
    """The most spans that have an instant in common; ends touch starts to a rounding."""
    changes = [(start_us, 1) for start_us, _ in spans] + [
        (end_us - 1e-6, -1) for _, end_us in spans
    ]
    most = level = 0
    for _, change in sorted(changes):
        level += change
        most = max(most, level)
    return most


def gemm_cycles(rows: int, m: int, n: int, k: int) -> float:
    unit = MatrixUnit(rows, rows, fill_cycles=2 * rows + rows - 2)
    machine = Accelerator(
        "scalesim", 1, 1, 1e9, ("int8",), unit, VectorUnit(1), OnChipBuffer(1, 1.0), Dram(1.0)
    )
    return ChipRates(machine, "int8").matrix_us(MatrixShape(1, m, k, n)) * 1000


# scalesim 3.0.0, weight stationary, run and published (its own run counts one cycle less).
@pytest.mark.parametrize(
    ("rows", "m", "n", "k", "cycles"),
    [
        (32, 64, 64, 64, 631 + 1),
        (32, 100, 64, 48, 775 + 1),
        (128, 1024, 128, 128, 1406),
        (128, 128, 128, 1024, 4080),
        (128, 1024, 1024, 1024, 89984),
    ],
)
def test_gemm_cycles_are_those_of_scalesim(rows: int, m: int, n: int, k: int, cycles: int) -> None:
    assert gemm_cycles(rows, m, n, k) == pytest.approx(cycles)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("overlap", ["none", "kernel", "layers"])
def test_longest_paths_are_the_trace_of_the_loop(seed: int, overlap: str) -> None:
    rates = ChipRates(random_machine(seed), "fp16")
    try:
        schedule = schedule_cluster(
            chip_graph(random_graph(seed), "fp16"), rates, ScheduleOptions(overlap=overlap)
        )
    except BadPlan:
        pytest.skip("no layer fits")
    if len(schedule.instructions) > 400:
        pytest.skip("long for the loop")
    tasks = tasks_of(schedule.instructions, schedule.needs)
    engines = sorted({item.engine for item in schedule.instructions})
    processors = tuple(Processor(name, "npu", 1) for name in engines)
    durations = {
        (task.work, item.engine): item.duration_us
        for task, item in zip(tasks, schedule.instructions, strict=True)
    }
    looped = run_graph(tasks, processors, durations, "eft")
    ends = {span.task.name: span.end_us for span in looped.spans}
    walked = {s.task.name: s.end_us for s in trace_of(schedule.instructions, schedule.needs).spans}
    assert ends == pytest.approx(walked)


def test_what_is_read_together_is_one_need_and_holds_back_who_writes_a_part_of_it() -> None:
    tensor = Region("global", 0, 50)
    written = [
        Instruction(f"store {n}", "port", 1.0, (), (Region("global", n, n + 1),)) for n in range(50)
    ]
    read = [Instruction(f"load {n}", f"reader {n}", 1.0, (tensor,)) for n in range(2)]
    written_again = Instruction("store", "port", 1.0, (), (Region("global", 7, 8),))
    needs = needs_of([*written, *read, written_again], "layers")
    assert needs[50:52] == [(49,), (49,)], "of 50 tiles of one engine the last is enough"
    assert needs[52] == (49, 50, 51)


def faster(machine: Accelerator) -> list[Accelerator]:
    """The machine with each rate doubled."""
    unit, vector = machine.matrix, machine.vector
    doubled = [
        replace(machine, clock_hz=2 * machine.clock_hz),
        replace(machine, matrix=replace(unit, positions_per_cycle=2 * unit.positions_per_cycle)),
        replace(machine, vector=replace(vector, lanes=2 * vector.lanes)),
        replace(machine, ddr=replace(machine.ddr, bytes_per_s=2 * machine.ddr.bytes_per_s)),
        replace(machine, local=replace(machine.local, bytes_per_s=2 * machine.local.bytes_per_s)),
    ]
    if machine.shared is not None:
        rate = 2 * machine.shared.bytes_per_s
        doubled.append(replace(machine, shared=replace(machine.shared, bytes_per_s=rate)))
    if machine.mesh_bytes_per_s is not None:
        doubled.append(replace(machine, mesh_bytes_per_s=2 * machine.mesh_bytes_per_s))
    return doubled


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["ddr", "gb", "lb", "ordered", "graphturbo"])
def test_doubling_a_rate_never_slows_the_same_schedule(first_seed: int, policy: str) -> None:
    compared = 0
    for seed in range(first_seed, first_seed + 50):
        machine = random_machine(seed)
        chip = chip_graph(random_graph(seed), "fp16")
        if policy == "gb" and machine.shared is None:
            continue
        try:
            rates = ChipRates(machine, "fp16")
            schedule = schedule_cluster(chip, rates, ScheduleOptions(policy))
        except BadPlan:
            continue
        for better in faster(machine):
            instructions = instructions_of(schedule.placed, ChipRates(better, "fp16"))
            latency_us = max(end_times_us(instructions, needs_of(instructions, schedule.overlap)))
            assert latency_us <= schedule.latency_us * (1 + 1e-9), (seed, str(better))
            compared += 1
    assert compared > 100


# Seeds whose climbs end within seconds.
@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 6, 8])
def test_doubling_a_buffer_never_slows_best_and_no_policy_is_faster(seed: int) -> None:
    machine = random_machine(seed).with_buffers(2048, 4096)
    chip = chip_graph(random_graph(seed), "fp16")

    def best_us(local_bytes: int, shared_bytes: int) -> float:
        sized = machine.with_buffers(local_bytes, shared_bytes)
        return best_schedule(chip, ChipRates(sized, "fp16"), ScheduleOptions("best"), 60).latency_us

    try:
        first_us = best_us(2048, 4096)
    except BadPlan:
        return
    for local_bytes, shared_bytes in ((4096, 4096), (2048, 8192)):
        assert best_us(local_bytes, shared_bytes) <= first_us * (1 + 1e-9)
    for policy in ("ddr", "lb", "graphturbo"):
        try:
            plain = schedule_cluster(chip, ChipRates(machine, "fp16"), ScheduleOptions(policy))
        except BadPlan:
            continue
        assert first_us <= plain.latency_us * (1 + 1e-9)


MIRROR = """
    g0.0 g0.1 g1.0 g0.2 g0.3 g1.1 g2.0 g0.4 g0.5 g1.2 g0.6 g0.7 g1.3 g2.1 g3.0
"""
ROWS = tuple(
    GroupRow(parts, 0, end)
    for end, parts in (("layer1", 8), ("layer2", 4), ("layer3", 2), ("output", 1))
)


@pytest.mark.slow
def test_four_stages_by_hand_fetch_weights_again_and_overflow_the_global_buffer() -> None:
    chip = resnet50(16)
    rates = ChipRates(load_accelerator("stcp920"), "fp16")
    groups = groups_of(chip, rates, ROWS)
    convolutions = [
        n.name for n in chip.operators if is_matrix(chip, n.name) and n.kind == "conv2d"
    ]
    assert sum(weight_bytes(chip, name) for name in convolutions) / 1e6 == pytest.approx(
        46.91, abs=0.01
    )
    fetched = sum(
        group.split.factor * weight_bytes(chip, name)
        for group in groups
        for name in group.operators
        if name in convolutions
    )
    assert fetched / 1e6 == pytest.approx(71.45, abs=0.01)
    instances = slice_groups(chip, groups)
    order = order_of(instances, MIRROR.split())
    places = {instance.name: place for place, instance in enumerate(order)}
    blocks: list[Block] = []
    for instance in order[:-1]:
        group, index = instance.name.split(".")
        if int(index) % 2 == 0:
            (tensor, box), *_ = list(instance.writes.items())[-1:]
            reader = f"g{int(group[1]) + 1}.{int(index) // 2}"
            size = chip.bytes_of(tensor, box)
            blocks.append(Block(instance.name, size, places[instance.name], places[reader]))
    most = max(
        sum(b.size_bytes for b in blocks if b.first_step <= step <= b.last_step)
        for step in range(len(order))
    )
    assert most / 1e6 == pytest.approx(9.63, abs=0.01)
    gone = [overflow.block for overflow in overflows(blocks, 8 << 20)]
    assert [(b.name, round(b.size_bytes / 1e6, 2)) for b in gone] == [("g2.0", 3.21)]


@pytest.mark.parametrize(
    ("rows", "order", "words"),
    [
        (ROWS[:3], "", "no group computes"),
        ((*ROWS, GroupRow(1, 0, "layer9")), "", "no operator of that name is left"),
        ((GroupRow(7, 0, "output"),), "", "has no such parts"),
        (ROWS, "g1.0 g0.0", "it needs g0."),
        (ROWS, "g0.0 g0.0", "it is there twice"),
        (ROWS, "g0.0", "is not in the order"),
        (ROWS, "g7.0", "it is no instance"),
    ],
)
def test_a_wrong_schedule_is_refused_by_name(
    rows: tuple[GroupRow, ...], order: str, words: str
) -> None:
    chip = resnet50(16)
    rates = ChipRates(load_accelerator("stcp920"), "fp16")
    file = ChipScheduleFile(1, rows)
    with pytest.raises(BadPlan, match=words):
        order_of(slice_groups(chip, groups_of(chip, rates, file.groups)), order.split())
