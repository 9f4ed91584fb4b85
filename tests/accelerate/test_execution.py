"""The schedule carried out in arenas computes the network's numbers; wrong plans do not."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from support.chip_networks import NETWORKS, batches
from support.logged_arena import log_arenas
from support.random_chip_graphs import (
    random_graph,
    random_machine,
    random_tensors,
    schedule_that_fits,
    true_outputs,
)

from nnstretch.accelerate.best_schedule import best_schedule
from nnstretch.accelerate.bounds import least_times_us
from nnstretch.accelerate.chip_graph import chip_graph
from nnstretch.accelerate.engines.placed_program import PlacedProgram
from nnstretch.accelerate.engines.program import Storage
from nnstretch.accelerate.engines.verify_plan import defects, verify_plan
from nnstretch.accelerate.execute import check, execute, largest_error
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.network_batches import NetworkBatches
from nnstretch.accelerate.policies import ClusterSchedule, ScheduleOptions, schedule_cluster
from nnstretch.errors import BadPlan, Mismatch


def schedule_of(seed: int, policy: str) -> ClusterSchedule:
    """A random pair's schedule, on larger local buffers where a layer does not fit even alone."""
    # Parts that do not pay are cut all the same: pieces and halos are what is tested.
    return schedule_that_fits(seed, ScheduleOptions(policy, parts_margin=math.inf))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["ddr", "gb", "lb", "graphturbo"])
def test_random_graphs_on_random_machines_compute_the_networks_numbers(
    first_seed: int, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = range(first_seed, first_seed + 50)
    if policy == "gb":
        seeds = [seed for seed in seeds if random_machine(seed).shared is not None]
    arenas = log_arenas(monkeypatch)
    for seed in seeds:
        schedule = schedule_of(seed, policy)
        verify_plan(schedule.placed, schedule.rates)
        graph = random_graph(seed)
        weights, inputs = random_tensors(graph, seed)
        truth = true_outputs(graph, weights, inputs)
        check(schedule.placed, schedule.rates.accelerator.cores, weights, inputs, truth)
        arenas[-1].require_one_free_each()
        bound_us = max(least_times_us(schedule.placed.program.chip, schedule.rates).values())
        assert schedule.latency_us >= bound_us * (1 - 1e-9), seed
    assert len(arenas) == len(seeds)
    assert len(seeds) == 50 or policy == "gb"
    assert sum(arena.reads for arena in arenas) > 3 * len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_plans_that_best_climbs_to_compute_the_networks_numbers(seed: int) -> None:
    graph, rates = random_graph(seed), ChipRates(random_machine(seed), "fp16")
    chip, options = chip_graph(graph, "fp16"), ScheduleOptions("best")
    try:
        schedule = best_schedule(chip, rates, options, 0.3, time.process_time)
    except BadPlan:
        return
    verify_plan(schedule.placed, rates)
    weights, inputs = random_tensors(graph, seed)
    truth = true_outputs(graph, weights, inputs)
    check(schedule.placed, rates.accelerator.cores, weights, inputs, truth)
    assert schedule.latency_us >= max(least_times_us(chip, rates).values()) * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["ddr", "lb", "graphturbo"])
def test_layers_computed_from_ddr_compute_the_networks_numbers(policy: str) -> None:
    bypassed = 0
    for seed in range(16):
        machine = replace(random_machine(seed).with_buffers(48, 64), ddr_fallback=True)
        rates = ChipRates(machine, "fp16")
        graph = random_graph(seed)
        chip = chip_graph(graph, "fp16")
        schedule = schedule_cluster(chip, rates, ScheduleOptions(policy))
        verify_plan(schedule.placed, rates)
        weights, inputs = random_tensors(graph, seed)
        truth = true_outputs(graph, weights, inputs)
        check(schedule.placed, machine.cores, weights, inputs, truth)
        bound_us = max(least_times_us(chip, rates).values())
        assert schedule.latency_us >= bound_us * (1 - 1e-9), seed
        bypassed += any("fallback" in spill.rule for spill in schedule.placed.spills)
    assert bypassed > 8


def shows_in_numbers(placed: PlacedProgram, schedule: ClusterSchedule, seed: int) -> bool:
    """Whether the schedule, carried out, computes other numbers than the network."""
    graph = random_graph(seed)
    weights, inputs = random_tensors(graph, seed)
    cores = schedule.rates.accelerator.cores
    outputs = execute(placed, cores, weights, inputs)
    return not largest_error(outputs, true_outputs(graph, weights, inputs))[1] <= 1e-4


def share_memory(placed: PlacedProgram, first: Storage, second: Storage) -> bool:
    """Whether two tensors of one buffer that live at once have a byte in common."""
    at_once = first.first_step <= second.last_step and second.first_step <= first.last_step
    a, b = placed.region(first.name), placed.region(second.name)
    return at_once and a.buffer == b.buffer and a.start < b.stop and b.start < a.stop


def swap_addresses(placed: PlacedProgram, draw: random.Random) -> PlacedProgram | None:
    """Two tensors exchange addresses, so that one of them lies where a third or the other is."""
    storages = [s for s in placed.program.storages.values() if not s.fixed and s.scope != "ddr"]
    pairs = list(combinations(storages, 2))
    draw.shuffle(pairs)
    for first, second in pairs:
        if first.scope != second.scope:
            continue
        exchanged = {
            first.name: placed.addresses[second.name],
            second.name: placed.addresses[first.name],
        }
        moved = replace(placed, addresses={**placed.addresses, **exchanged})
        # An exchange after which nothing overlaps is another plan, and a right one.
        if any(share_memory(moved, *both) for both in combinations(storages, 2)):
            return moved
    return None


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


SPOILERS = (swap_addresses, free_early, drop_copy)


@pytest.mark.slow
def test_plans_spoilt_on_purpose_are_caught_200_of_200() -> None:
    by_numbers = 0
    kinds: Counter[str] = Counter()
    for seed in range(2000):
        schedule = schedule_of(seed, "graphturbo")
        assert next(defects(schedule.placed, schedule.rates), None) is None
        for spoil in SPOILERS:
            wrong = spoil(schedule.placed, random.Random(seed))
            if wrong is None or kinds.total() == 200:
                continue
            kinds[spoil.__name__] += 1
            assert next(defects(wrong, schedule.rates), None) is not None, (seed, spoil.__name__)
            by_numbers += shows_in_numbers(wrong, schedule, seed)
        if kinds.total() == 200:
            break
    assert kinds.total() == 200
    assert min(kinds[spoil.__name__] for spoil in SPOILERS) > 20, kinds
    # The others put a tensor over one of equal numbers: two poolings of one map.
    assert by_numbers >= 198


@pytest.mark.slow
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
    options = ScheduleOptions(parts_margin=1.0 if batch > 1 else math.inf)
    schedule = schedule_cluster(chip_graph(graph, rates.element_type), rates, options)
    if batch == 1:
        assert any(g.split.factor > 1 and g.split.axis == 2 for g in schedule.groups), "rows"
    verify_plan(schedule.placed, rates)
    examples = network.random_inputs(batch)
    inputs = dict(zip([value.name for value in graph.inputs], examples, strict=True))
    truth = network.outputs(examples)
    check(schedule.placed, rates.accelerator.cores, network.weights(batch), inputs, truth)


@pytest.fixture(scope="module")
def network(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a network, which is captured once for its pairs and forgotten after them."""
    yield request.param
    batches.cache_clear()


# Of each kind of network and machine one, at depths and batches that are computed in seconds;
# `scripts/accelerators executed` has all at the published ones, and whole.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "batch", "machine"),
    [
        ("torchvision:resnet50", 8, "stcp920"),
        ("torchvision:resnet50", 1, "nvdla-64"),
        (f"{NETWORKS}:bert_base?tokens=128&words=2000&layers=4", 2, "stcp920"),
        (f"{NETWORKS}:dlrm?rows=1000", 256, "stcp920"),
        ("torchvision:mobilenet_v2", 8, "stcp920"),
        ("torchvision:mobilenet_v2", 1, "ethos-u55-128"),
        ("timm:vit_base_patch16_224?depth=4", 2, "stcp920"),
        ("torchvision:densenet121", 1, "nvdla-64"),
        (f"{NETWORKS}:conformer?blocks=6", 3, "stcp920"),
    ],
    indirect=["network"],
)
def test_published_networks_compute_their_numbers(network: str, batch: int, machine: str) -> None:
    test_networks_compute_their_numbers(network, batch, machine)


class ShiftedWindow(torch.nn.Module):
    """What Swin does to maps: pads, rolls, and a bias picked from a table by constant indices."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(9))
        self.register_buffer("index", torch.arange(36).reshape(6, 6) % 9)
        self.last = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute one window of six rows and columns over four channels."""
        x = torch.roll(torch.nn.functional.pad(x, (0, 0, 0, 1, 0, 2)), (-1, 2), (1, 2))
        grid = torch.meshgrid(self.table[:6], self.table[3:], indexing="ij")
        bias = 2 * self.table[self.index.flatten()].view(6, 6).t() + torch.stack(grid).sin()[1]
        scores = x[..., 0] @ x[..., 1].transpose(-2, -1) + bias
        x = torch.nn.functional.pad(x + scores.softmax(-1).unsqueeze(-1), (0, 0))
        return self.last(torch.roll(x, 3, 1))


@pytest.mark.parametrize("machine", ["stcp920", "nvdla-64"])
def test_pads_rolls_and_tables_of_constants_compute_their_numbers(machine: str) -> None:
    torch.manual_seed(0)
    network = NetworkBatches(ShiftedWindow(), (torch.randn(1, 4, 5, 4),), "window")
    rates = ChipRates(load_accelerator(machine), load_accelerator(machine).element_types[0])
    chip = chip_graph(network.graph(3), rates.element_type)
    schedule = schedule_cluster(chip, rates, ScheduleOptions())
    verify_plan(schedule.placed, rates)
    examples = network.random_inputs(3)
    inputs = {network.graph(3).inputs[0].name: examples[0]}
    truth = network.outputs(examples)
    check(schedule.placed, rates.accelerator.cores, network.weights(3), inputs, truth)
    assert sum(weight.spec.elements for weight in chip.graph.weights) == 9 + 36 + 36 + 20


def test_other_numbers_are_refused_with_the_difference() -> None:
    schedule = schedule_of(0, "graphturbo")
    graph = random_graph(0)
    weights, inputs = random_tensors(graph, 0)
    truth = tuple(torch.zeros_like(t) for t in true_outputs(graph, weights, inputs))
    with pytest.raises(Mismatch, match="the schedule computes other numbers"):
        check(schedule.placed, schedule.rates.accelerator.cores, weights, inputs, truth)
