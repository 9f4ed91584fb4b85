"""A buffer of twice the size never slows `best`, and no policy is faster than `best`.

What `best` simulates for a machine holds all that it simulates for halves of its buffers. Shown
without a limit of time for random pairs of graph and machine, with climbs of a few changes for each
size: two in `make test`, four in `make check`, any number by `--pairs` (300 take half an hour).
"""

from __future__ import annotations

import pytest
from support.random_chip_graphs import random_graph, random_machine

from nnstretch.accelerate import best_schedule as module
from nnstretch.accelerate.best_schedule import best_schedule
from nnstretch.accelerate.chip_graph import ChipGraph, chip_graph
from nnstretch.accelerate.engines.verify_plan import verify_plan
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.optimum.climb import Climb, GroupingPlan, Planned
from nnstretch.accelerate.policies import ClusterSchedule, ScheduleOptions, schedule_cluster
from nnstretch.chip.accelerator import Accelerator
from nnstretch.errors import BadInput, BadPlan

MOST_CHANGES = 6
POLICIES = ("ddr", "gb", "lb", "ordered", "graphturbo")
FEW = 2


class ShortClimb(Climb):
    """Climb that ends after a few changes and tries none in pairs."""

    def step(self, plan: GroupingPlan, latency_us: float) -> Planned | None:
        return None if len(self.tried) >= MOST_CHANGES else super().step(plan, latency_us)

    def simulated(self, plan: GroupingPlan) -> ClusterSchedule | None:
        return None if len(self.tried) > MOST_CHANGES else super().simulated(plan)

    def double_step(self, plan: GroupingPlan, latency_us: float) -> Planned | None:
        return None


def timeless() -> float:
    """A clock that stands still: no budget ends."""
    return 0.0


@pytest.fixture
def short_climbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Climbs of a few changes."""
    monkeypatch.setattr(module, "Climb", ShortClimb)


def sized(machine: Accelerator, local_bytes: int, shared_bytes: int) -> Accelerator:
    """The machine with buffers of other sizes; one without a global buffer stays so."""
    return machine.with_buffers(local_bytes, shared_bytes if machine.shared else 0)


def best_of(chip: ChipGraph, machine: Accelerator) -> ClusterSchedule:
    """What `best` finds without a limit of time."""
    return best_schedule(chip, ChipRates(machine, "fp16"), ScheduleOptions("best"), 1.0, timeless)


@pytest.mark.slow
@pytest.mark.usefixtures("short_climbs")
def test_twice_the_buffer_never_slows_best_and_no_policy_is_faster() -> None:
    check_pairs(range(FEW))


@pytest.mark.slow
@pytest.mark.usefixtures("short_climbs")
def test_more_pairs_of_a_graph_and_a_machine_keep_it(request: pytest.FixtureRequest) -> None:
    check_pairs(range(FEW, request.config.getoption("--pairs")))


def check_pairs(seeds: range) -> None:
    """Compare `best` with itself on larger buffers, and with every policy."""
    compared = 0
    for seed in seeds:
        machine = sized(random_machine(seed), 2048, 2048)
        chip = chip_graph(random_graph(seed), "fp16")
        try:
            first_us = best_of(chip, machine).latency_us
        except BadPlan:
            continue
        sizes = [(4096, 2048), (2048, 4096)][: 2 if machine.shared else 1]
        for larger in sizes:
            schedule = best_of(chip, sized(machine, *larger))
            verify_plan(schedule.placed, schedule.rates)
            assert schedule.latency_us <= first_us * (1 + 1e-9), (seed, larger)
            compared += 1
        for policy in POLICIES:
            try:
                plain = schedule_cluster(chip, ChipRates(machine, "fp16"), ScheduleOptions(policy))
            except (BadInput, BadPlan):
                continue
            assert first_us <= plain.latency_us * (1 + 1e-9), (seed, policy)
    assert compared >= len(seeds) // 2
