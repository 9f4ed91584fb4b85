"""What overflows a buffer leaves when it does, in pieces, and comes back before its next use."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from support.chip_networks import resnet50
from support.random_chip_graphs import random_graph, random_machine, random_tensors, true_outputs

from nnstretch.accelerate.chip_graph import chip_graph
from nnstretch.accelerate.engines.engine_use import engine_use
from nnstretch.accelerate.engines.late_spills import Departure, Uses, pieces_of, plan_departures
from nnstretch.accelerate.engines.placed_program import PlacedProgram
from nnstretch.accelerate.engines.placement import place_program
from nnstretch.accelerate.engines.program import build_program
from nnstretch.accelerate.engines.verify_plan import defects, verify_plan
from nnstretch.accelerate.execute import check
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.policies import (
    ScheduleOptions,
    bind,
    layer_groups,
    order_instances,
    schedule_cluster,
)
from nnstretch.accelerate.schedule_file import schedule_document
from nnstretch.accelerate.steps.slicing import needs_of, slice_groups
from nnstretch.chip.boxes import box_elements
from nnstretch.errors import BadPlan

# Two are written at 0 and 1 and read again at 9; a third at 4 and 5 overflows a room of ten.
SIZES = {"a": (4, 0, 9), "b": (4, 1, 9), "c": (4, 4, 5)}
USES = {"a": Uses((0, 2, 9), (0,)), "c": Uses((4, 5), (4,))}


def test_it_leaves_from_its_last_write_on_and_comes_back_where_room_is() -> None:
    (planned,) = plan_departures([("a", 4)], USES, SIZES, [0] * 10, 10)
    assert planned == Departure("a", 4, 0, 6, 9)


def test_slots_of_tiles_let_it_leave_earlier_and_come_back_later() -> None:
    (planned,) = plan_departures([("a", 4)], USES, SIZES, [0, 0, 0, 3, 0, 0, 3, 0, 0, 0], 10)
    assert planned == Departure("a", 3, 0, 7, 9)


def test_without_room_before_its_next_use_it_stays_outside() -> None:
    (planned,) = plan_departures([("a", 4)], USES, SIZES, [0] * 9 + [3], 10)
    assert (planned.out, planned.back) == (0, None)


def test_what_overflows_at_birth_is_born_outside() -> None:
    (planned,) = plan_departures([("c", 4)], USES, SIZES, [0] * 10, 10)
    assert (planned.out, planned.back) == (None, None)


@pytest.mark.parametrize("most", [1, 3, 7, 100])
def test_pieces_are_all_of_a_box(most: int) -> None:
    pieces = pieces_of(((2, 4), (0, 7), (5, 6)), most)
    assert len(pieces) == min(most, 7)
    assert sum(box_elements(piece) for piece in pieces) == 14
    assert pieces[0][1][0] == 0
    assert pieces[-1][1][1] == 7


@pytest.mark.slow
def test_the_stages_of_resnet_wait_on_chip_until_their_buffer_overflows() -> None:
    chip = resnet50(16)
    rates = ChipRates(load_accelerator("stcp920"), "fp16")
    schedule = schedule_cluster(chip, rates, ScheduleOptions())
    storages = schedule.placed.program.storages
    gone = [spill for spill in schedule.placed.spills if spill.target == "ddr"]
    assert len(gone) == 6
    assert sum(spill.size_bytes for spill in gone) == 3 * (3_211_264 + 1_605_632)
    for spill in gone:
        stays, out, back = (storages[spill.tensor + part] for part in ("", " out", " back"))
        assert (stays.scope, out.scope, back.scope) == ("global", "ddr", "global")
        assert stays.first_step < out.first_step <= stays.last_step < back.first_step
        assert f"back from step {back.first_step} on" in spill.rule
    scopes = schedule_document(schedule)["scopes"]
    assert "ddr" not in {scopes[spill.tensor.partition("/")[0]] for spill in gone}


@pytest.mark.slow
def test_use_and_fill_of_resnet_are_near_those_of_a_buffer_that_holds_everything() -> None:
    use: dict[str, float] = {}
    for size in ("8MiB", "32MiB"):
        machine = load_accelerator("stcp920", (f"global_buffer.size={size}",))
        rates = ChipRates(machine, "fp16")
        schedule = schedule_cluster(resnet50(16), rates, ScheduleOptions())
        shares = engine_use(schedule.placed, schedule.instructions, schedule.latency_us, rates)
        use[size] = 100 * (shares["matrix"] + shares["matrix_fill"])
    assert use["32MiB"] - 3 < use["8MiB"] <= use["32MiB"]


def late_placing(seed: int, policy: str) -> tuple[PlacedProgram, ChipRates] | None:
    """A random pair with spills from the overflow on; None where nothing leaves so."""
    rates = ChipRates(random_machine(seed), "fp16")
    chip = chip_graph(random_graph(seed), "fp16")
    if policy == "gb" and rates.accelerator.shared is None:
        return None
    options = ScheduleOptions(policy, overlap="layers")
    groups = layer_groups(chip)
    instances = slice_groups(chip, groups)
    order = order_instances(chip, groups, instances, options)
    bound = bind(chip, groups, order, needs_of(instances), rates, options)
    inner = {"gb": "global", "lb": "local"}[policy]
    program = build_program(chip, groups, order, bound, inner, rates.accelerator.cores)
    try:
        placed = place_program(program, rates, True, True)
    except BadPlan:
        return None
    return (placed, rates) if placed.late else None


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["gb", "lb"])
def test_copies_out_and_back_compute_the_networks_numbers(policy: str) -> None:
    parts: Counter[str] = Counter()
    for seed in range(120):
        placing = late_placing(seed, policy)
        if placing is None:
            continue
        placed, rates = placing
        verify_plan(placed, rates)
        graph = random_graph(seed)
        weights, inputs = random_tensors(graph, seed)
        truth = true_outputs(graph, weights, inputs)
        check(placed, rates.accelerator.cores, weights, inputs, truth)
        parts.update(name.rpartition(" ")[2] for name in placed.program.storages if " " in name)
    assert parts["out"] > 3
    assert parts["back"] > 1 or policy == "lb"


def test_a_piece_that_is_not_copied_is_a_defect() -> None:
    placed, rates = next(p for seed in range(120) if (p := late_placing(seed, "gb")))
    steps = list(placed.program.steps)
    copy = next(step for step in steps if step.writes.endswith((" out", " back")))
    steps[copy.number] = replace(copy, readings=copy.readings[1:])
    wrong = replace(placed, program=replace(placed.program, steps=tuple(steps)))
    assert any("copies less than" in defect for defect in defects(wrong, rates))
