"""What lies in the buffers at every instant, engines running ahead of one another."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

import pytest
from support.random_chip_graphs import random_graph, random_machine

from nnstretch.accelerate.chip_graph import chip_graph
from nnstretch.accelerate.chip_pictures import bytes_over_time
from nnstretch.accelerate.engines.simulate import end_times_us
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.policies import ClusterSchedule, ScheduleOptions, schedule_cluster
from nnstretch.chip.instances import Region
from nnstretch.errors import BadPlan

MOST_INSTRUCTIONS = 250


def schedules(first: int, policy: str) -> Iterator[ClusterSchedule]:
    """Schedules of fifty random pairs, without those of which a layer does not fit."""
    for seed in range(first, first + 50):
        machine = random_machine(seed)
        chip = chip_graph(random_graph(seed), "fp16")
        if policy == "gb" and machine.shared is None:
            continue
        try:
            options = ScheduleOptions(policy, overlap="layers", parts_margin=math.inf)
            yield schedule_cluster(chip, ChipRates(machine, "fp16"), options)
        except BadPlan:
            continue


@pytest.mark.parametrize("first", range(0, 300, 50))
@pytest.mark.parametrize("policy", ["gb", "lb", "graphturbo"])
def test_no_buffer_holds_more_than_it_has_at_any_instant(first: int, policy: str) -> None:
    for schedule in schedules(first, policy):
        machine = schedule.rates.accelerator
        room = {"local buffer": machine.local_bytes, "global buffer": machine.shared_bytes}
        for name, levels in bytes_over_time(schedule).items():
            assert 0 < max(level for _, level in levels) <= room[name]
            assert levels[-1][1] == 0
            assert levels == sorted(levels, key=lambda at: at[0])


def clash(first: Region, second: Region) -> bool:
    """Whether two regions have a byte in common."""
    return first.start < second.stop and second.start < first.stop


@pytest.mark.parametrize("first", range(0, 300, 50))
@pytest.mark.parametrize("policy", ["gb", "lb", "graphturbo"])
def test_addresses_that_one_writes_are_no_other_ones_meanwhile(first: int, policy: str) -> None:
    compared = 0
    for schedule in schedules(first, policy):
        if len(schedule.instructions) > MOST_INSTRUCTIONS:
            continue
        ends = end_times_us(schedule.instructions, schedule.needs)
        touches: dict[str, list[tuple[int, Region, bool]]] = defaultdict(list)
        for place, item in enumerate(schedule.instructions):
            for regions, writes in ((item.reads, False), (item.writes, True)):
                for region in regions:
                    touches[region.buffer].append((place, region, writes))
        for listed in touches.values():
            for (before, earlier, wrote), (after, later, writes) in combinations(listed, 2):
                if before == after or not (wrote or writes) or not clash(earlier, later):
                    continue
                start_us = ends[after] - schedule.instructions[after].duration_us
                assert start_us >= ends[before] - 1e-6
                compared += 1
    assert compared > 1000
