"""The schedule carried out in arenas computes the network's numbers; wrong plans do not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from support.chip_networks import NETWORKS, batches
from support.random_chip_graphs import (
    random_graph,
    random_machine,
    random_tensors,
    true_outputs,
)

from nnstretch.accelerate.bounds import least_times_us
from nnstretch.accelerate.chip_graph import chip_graph
from nnstretch.accelerate.engines.placement import PlacedProgram
from nnstretch.accelerate.engines.verify_plan import defects, verify_plan
from nnstretch.accelerate.execute import check, execute, largest_error
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.policies import ClusterSchedule, ScheduleOptions, schedule_cluster
from nnstretch.errors import BadPlan, Mismatch

SEEDS = range(300)


def schedule_of(seed: int, policy: str) -> ClusterSchedule | None:
    """A random pair's schedule, None where a layer does not fit even alone."""
    rates = ChipRates(random_machine(seed), "fp16")
    try:
        return schedule_cluster(
            chip_graph(random_graph(seed), "fp16"), rates, ScheduleOptions(policy)
        )
    except BadPlan:
        return None


@pytest.mark.parametrize("tens", range(0, len(SEEDS), 50))
@pytest.mark.parametrize("policy", ["ddr", "gb", "lb", "graphturbo"])
def test_random_graphs_on_random_machines_compute_the_networks_numbers(
    tens: int, policy: str
) -> None:
    scheduled = 0
    for seed in SEEDS[tens : tens + 50]:
        if policy == "gb" and random_machine(seed).shared is None:
            continue
        schedule = schedule_of(seed, policy)
        if schedule is None:
            continue
        scheduled += 1
        verify_plan(schedule.placed, schedule.rates)
        graph = random_graph(seed)
        weights, inputs = random_tensors(graph, seed)
        truth = true_outputs(graph, weights, inputs)
        check(schedule.placed, schedule.rates.accelerator.cores, weights, inputs, truth)
        bound_us = max(least_times_us(schedule.placed.program.chip, schedule.rates).values())
        assert schedule.latency_us >= bound_us * (1 - 1e-9), seed
    assert scheduled > 20


def caught(placed: PlacedProgram, schedule: ClusterSchedule, seed: int) -> bool:
    """Whether a plan's own check or its numbers show that it is wrong."""
    if next(defects(placed, schedule.rates), None) is not None:
        return True
    graph = random_graph(seed)
    weights, inputs = random_tensors(graph, seed)
    cores = schedule.rates.accelerator.cores
    outputs = execute(placed, cores, weights, inputs)
    return not largest_error(outputs, true_outputs(graph, weights, inputs))[1] <= 1e-4


def swap_addresses(placed: PlacedProgram, draw: random.Random) -> PlacedProgram | None:
    """A step reads one tensor where another lies."""
    steps = list(placed.program.steps)
    places = [
        (place, a, b)
        for place, step in enumerate(steps)
        for a in range(len(step.readings))
        for b in range(a)
        if step.readings[a].box == step.readings[b].box and "cat" not in str(step.operators)
    ]
    if places:
        place, a, b = draw.choice(places)
        return None if place < 0 else swap_tensors(placed, place, a, b)
    return None


def swap_tensors(placed: PlacedProgram, place: int, a: int, b: int) -> PlacedProgram | None:
    step = placed.program.steps[place]
    first, second = step.readings[a].storage, step.readings[b].storage
    addresses = dict(placed.addresses)
    addresses[first], addresses[second] = addresses[second], addresses[first]
    moved = replace(placed, addresses=addresses)
    return moved if addresses[first] != addresses[second] else None


def free_early(placed: PlacedProgram, draw: random.Random) -> PlacedProgram | None:
    """A tensor is written where another is still needed."""
    storages = placed.program.storages
    pairs = [
        (early, late)
        for early in storages.values()
        for late in storages.values()
        if early.scope == late.scope
        and early.first_step < late.first_step < early.last_step
        and not early.fixed
        and not late.fixed
    ]
    if not pairs:
        return None
    early, late = draw.choice(pairs)
    return replace(placed, addresses={**placed.addresses, late.name: placed.addresses[early.name]})


def drop_copy(placed: PlacedProgram, draw: random.Random) -> PlacedProgram | None:
    """A piece of a concatenation is not copied."""
    copies = [place for place, step in enumerate(placed.program.steps) if not step.operators]
    if not copies:
        return None
    place = draw.choice(copies)
    steps = list(placed.program.steps)
    steps[place] = replace(steps[place], readings=steps[place].readings[1:])
    return replace(placed, program=replace(placed.program, steps=tuple(steps)))


def test_plans_spoilt_on_purpose_are_caught_200_of_200() -> None:
    spoilt = 0
    kinds: dict[str, int] = {}
    for seed in range(2000):
        schedule = schedule_of(seed, "graphturbo")
        if schedule is None:
            continue
        for spoil in (free_early, drop_copy):
            wrong = spoil(schedule.placed, random.Random(seed))
            if wrong is None or spoilt == 200:
                continue
            assert caught(wrong, schedule, seed), (seed, spoil.__name__)
            spoilt += 1
            kinds[spoil.__name__] = kinds.get(spoil.__name__, 0) + 1
        if spoilt == 200:
            break
    assert spoilt == 200
    assert min(kinds.values()) > 10, kinds


@pytest.mark.parametrize(
    ("model", "batch", "machine"),
    [
        ("torchvision:resnet18", 2, "stcp920"),
        (f"{NETWORKS}:bert_base?tokens=32&layers=1&words=100", 4, "stcp920"),
        (f"{NETWORKS}:conformer?frames=64&blocks=1", 3, "nvdla-64"),
        (f"{NETWORKS}:dlrm?rows=100&tables=4", 8, "stcp920"),
        ("torchvision:mobilenet_v2", 1, "nvdla-64"),
        ("torchvision:shufflenet_v2_x0_5", 2, "stcp920"),
    ],
)
def test_networks_compute_their_numbers(model: str, batch: int, machine: str) -> None:
    network = batches(model)
    rates = ChipRates(load_accelerator(machine), load_accelerator(machine).element_types[0])
    graph = network.graph(batch)
    schedule = schedule_cluster(chip_graph(graph, rates.element_type), rates, ScheduleOptions())
    verify_plan(schedule.placed, rates)
    examples = network.random_inputs(batch)
    inputs = dict(zip([value.name for value in graph.inputs], examples, strict=True))
    truth = network.outputs(examples)
    check(schedule.placed, rates.accelerator.cores, network.weights, inputs, truth)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "batch", "machine"),
    [
        ("torchvision:resnet50", 16, "stcp920"),
        (f"{NETWORKS}:bert_base?tokens=128&words=2000", 8, "stcp920"),
        (f"{NETWORKS}:bert_base?tokens=256&words=2000", 4, "stcp920"),
        (f"{NETWORKS}:bert_large?tokens=384&words=2000&layers=12", 2, "stcp920"),
        (f"{NETWORKS}:bert_base?tokens=512&words=2000", 2, "stcp920"),
        (f"{NETWORKS}:dlrm?rows=1000", 256, "stcp920"),
        ("torchvision:mobilenet_v2", 32, "stcp920"),
        ("timm:vit_base_patch16_224", 8, "stcp920"),
        ("torchvision:densenet121", 8, "stcp920"),
        (f"{NETWORKS}:conformer", 3, "stcp920"),
        ("torchvision:resnet18", 1, "nvdla-64"),
        ("torchvision:resnet50", 1, "nvdla-64"),
        ("torchvision:mobilenet_v2", 1, "ethos-u55-128"),
    ],
)
def test_published_pairs_compute_their_numbers(model: str, batch: int, machine: str) -> None:
    test_networks_compute_their_numbers(model, batch, machine)
    batches.cache_clear()


def test_other_numbers_are_refused_with_the_difference() -> None:
    schedule = schedule_of(0, "graphturbo")
    assert schedule is not None
    graph = random_graph(0)
    weights, inputs = random_tensors(graph, 0)
    truth = tuple(torch.zeros_like(t) for t in true_outputs(graph, weights, inputs))
    with pytest.raises(Mismatch, match="the schedule computes other numbers"):
        check(schedule.placed, schedule.rates.accelerator.cores, weights, inputs, truth)
