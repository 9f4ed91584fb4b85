"""Weights that the global buffer keeps between instances: fewer bytes over DDR, the same numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from support.engine_clashes import count_clashes
from support.random_chip_graphs import (
    GraphMaker,
    random_graph,
    random_machine,
    random_tensors,
    schedule_that_fits,
    true_outputs,
)

from nnstretch.accelerate.accelerate import traffic
from nnstretch.accelerate.best_schedule import best_schedule
from nnstretch.accelerate.chip_graph import ChipGraph, chip_graph
from nnstretch.accelerate.chip_pictures import bytes_over_time
from nnstretch.accelerate.engines.dependencies import needs_of
from nnstretch.accelerate.engines.instructions import instructions_of
from nnstretch.accelerate.engines.kept_weights import keep_weights
from nnstretch.accelerate.engines.placed_program import residencies_of
from nnstretch.accelerate.engines.simulate import end_times_us
from nnstretch.accelerate.engines.verify_plan import defects, verify_plan
from nnstretch.accelerate.execute import check, execute, largest_error
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.optimum.least_busy import LeastBusy
from nnstretch.accelerate.policies import ClusterSchedule, ScheduleOptions, schedule_cluster
from nnstretch.accelerate.schedule_file import read_schedule, schedule_by_hand, schedule_document
from nnstretch.chip.accelerator import Accelerator, Dram, MatrixUnit, OnChipBuffer, VectorUnit
from nnstretch.chip.instances import Region
from nnstretch.graph import TensorSpec, Value

IN_PARTS = ScheduleOptions(overlap="layers", parts_margin=math.inf)


def with_kept(schedule: ClusterSchedule) -> ClusterSchedule | None:
    """A schedule whose weights stay in the global buffer, whether that is faster or not."""
    placed = keep_weights(schedule.placed, schedule.rates)
    if placed is None:
        return None
    instructions = instructions_of(placed, schedule.rates)
    needs = needs_of(instructions, schedule.overlap)
    latency_us = max(end_times_us(instructions, needs))
    return replace(
        schedule, placed=placed, instructions=instructions, needs=needs, latency_us=latency_us
    )


def keeping_schedules(first: int) -> Iterator[tuple[int, ClusterSchedule, ClusterSchedule]]:
    """Schedules of fifty random pairs, without and with kept weights, where any are kept.

    Local buffers are small, so that many graphs are cut into parts.
    """
    for seed in range(first, first + 50):
        machine = random_machine(seed)
        if machine.shared is not None:
            small = machine.with_buffers(2048, machine.shared_bytes)
            plain = schedule_that_fits(seed, IN_PARTS, small)
            if (keeping := with_kept(plain)) is not None:
                yield seed, plain, keeping


@pytest.mark.slow
def test_kept_weights_cross_ddr_once_and_the_numbers_stay(first_seed: int) -> None:
    seen = 0
    for seed, plain, keeping in keeping_schedules(first_seed):
        seen += 1
        verify_plan(keeping.placed, keeping.rates)
        assert count_clashes(keeping) > 0
        machine = keeping.rates.accelerator
        room = {"local buffer": machine.local_bytes, "global buffer": machine.shared_bytes}
        for name, levels in bytes_over_time(keeping).items():
            assert max(level for _, level in levels) <= room[name], (seed, name)
        saved_bytes = sum(
            (len(kept.steps) - 1) * (kept.region.stop - kept.region.start)
            for kept in keeping.placed.kept_weights
        )
        before, after = traffic(plain.instructions), traffic(keeping.instructions)
        # Tiles of odd sizes are rounded up, each to a byte.
        tiles = len(plain.instructions)
        assert saved_bytes <= before["weights"] - after["weights"] <= saved_bytes + tiles, seed
        assert after["port"] == before["port"]
        graph = random_graph(seed)
        weights, inputs = random_tensors(graph, seed)
        truth = true_outputs(graph, weights, inputs)
        check(keeping.placed, keeping.rates.accelerator.cores, weights, inputs, truth)
        bound = LeastBusy(keeping.placed.program.chip, keeping.rates, "layers", keeps_weights=True)
        assert bound.plan_us(keeping.groups) <= keeping.latency_us * (1 + 1e-9), seed
    assert seen >= 8


def machine(shared_bytes: int, ddr_bytes_per_s: float = 1e8) -> Accelerator:
    return Accelerator(
        "small",
        clusters=1,
        cores=2,
        clock_hz=1e9,
        element_types=("fp16",),
        matrix=MatrixUnit(16, 8, 8),
        vector=VectorUnit(8, 1, 4),
        local=OnChipBuffer(6 * 1024, 32e9),
        ddr=Dram(ddr_bytes_per_s),
        shared=OnChipBuffer(shared_bytes, 16e9),
    )


def two_convolutions() -> ChipGraph:
    """Four images, whose maps fit the local buffers two at a time."""
    maker = GraphMaker()
    value = Value("x", TensorSpec((4, 8, 12, 12)))
    maker.shapes["x"] = value.spec.shape
    first = maker.conv("x", 8, 3, 1)
    return chip_graph(maker.finish((value,), (maker.conv(first, 8, 3, 1),)), "fp16")


def in_parts(shared_bytes: int, keep: bool, ddr_bytes_per_s: float = 1e8) -> ClusterSchedule:
    rates = ChipRates(machine(shared_bytes, ddr_bytes_per_s), "fp16")
    return schedule_cluster(two_convolutions(), rates, replace(IN_PARTS, keep_weights=keep))


def test_the_bytes_of_two_convolutions_in_parts() -> None:
    # 8 x 8 x 3 x 3 of two bytes; the second layer's five tiles are rounded up to 231 B each.
    layer_bytes, second_bytes = 1152, 5 * 231
    passing, keeping = in_parts(24 * 1024, keep=False), in_parts(24 * 1024, keep=True)
    assert len(passing.order) == 2
    assert traffic(passing.instructions)["weights"] == 2 * (layer_bytes + second_bytes)
    assert traffic(keeping.instructions)["weights"] == layer_bytes + second_bytes
    shown = [str(item) for item in residencies_of(keeping.placed) if "weights" in item.tensor]
    assert shown == [
        "g0.1/conv2d_0 weights 0 global [462, 1614) steps 0..2",
        "g0.1/conv2d_1 weights 0 global [1614, 1844) steps 1..3",
        "g0.1/conv2d_1 weights 1 global [1844, 2074) steps 1..3",
        "g0.1/conv2d_1 weights 2 global [2074, 2305) steps 1..3",
        "g0.1/conv2d_1 weights 3 global [2305, 2535) steps 1..3",
        "g0.1/conv2d_1 weights 4 global [2535, 2766) steps 1..3",
    ]
    # DDR is what all wait for: of the other bytes, each crosses it once.
    saved_us = (layer_bytes + second_bytes) / 1e8 * 1e6
    assert passing.latency_us - keeping.latency_us == pytest.approx(saved_us, rel=0.05)


def test_where_one_layer_has_room_one_is_kept() -> None:
    tight = in_parts(2048, keep=True)
    assert [item.name for item in tight.placed.kept_weights] == ["g0.1/conv2d_0 weights"]
    verify_plan(tight.placed, tight.rates)
    assert not in_parts(1024, keep=True).placed.kept


def test_kept_weights_that_something_overwrites_show() -> None:
    keeping = in_parts(24 * 1024, keep=True)
    first, second = keeping.placed.kept_weights
    shifted = Region("global", first.region.start + 500, first.region.stop + 500)
    moved = {number: replace(second, region=shifted) for number in second.steps}
    spoilt = replace(keeping.placed, kept={**keeping.placed.kept, **moved})
    assert any("overlap" in defect for defect in defects(spoilt, keeping.rates))
    chip = keeping.placed.program.chip
    weights, inputs = random_tensors(chip.graph, 0)
    truth = true_outputs(chip.graph, weights, inputs)
    assert largest_error(execute(keeping.placed, 2, weights, inputs), truth)[1] < 1e-4
    assert not largest_error(execute(spoilt, 2, weights, inputs), truth)[1] < 1e-4


def test_best_keeps_weights_unless_told_not_to() -> None:
    rates = ChipRates(machine(24 * 1024), "fp16")
    chip = two_convolutions()
    keeping = best_schedule(chip, rates, ScheduleOptions("best"), 0.0)
    passing = best_schedule(chip, rates, ScheduleOptions("best", keep_weights=False), 0.0)
    assert not passing.placed.kept
    assert keeping.latency_us <= passing.latency_us
    assert keeping.latency_us <= in_parts(24 * 1024, keep=True).latency_us


def test_a_schedule_written_with_kept_weights_is_read_with_them(tmp_path: Path) -> None:
    keeping = in_parts(24 * 1024, keep=True)
    document = schedule_document(keeping)
    assert document["keep_weights"] is True
    said = replace(ScheduleOptions("best", overlap="layers"), keep_weights=False)
    kept_by_word: list[bool] = []
    for written, options in (
        (document, said),
        (document | {"keep_weights": False}, ScheduleOptions("best", overlap="layers")),
    ):
        other = tmp_path / "other.yaml"
        other.write_text(yaml.safe_dump(written))
        schedule = schedule_by_hand(
            two_convolutions(), keeping.rates, options, read_schedule(other)
        )
        kept_by_word.append(bool(schedule.placed.kept))
    assert kept_by_word == [False, False]
    file = tmp_path / "schedule.yaml"
    file.write_text(yaml.safe_dump(document))
    chip = two_convolutions()
    again = schedule_by_hand(
        chip, keeping.rates, ScheduleOptions(overlap="layers"), read_schedule(file)
    )
    assert again.latency_us == keeping.latency_us
    assert again.placed.kept == keeping.placed.kept
