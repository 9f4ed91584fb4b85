"""What lies in the buffers at every instant, engines running ahead of one another."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from support.engine_clashes import count_clashes
from support.random_chip_graphs import random_machine, schedule_that_fits

from nnstretch.accelerate.chip_pictures import bytes_over_time
from nnstretch.accelerate.policies import ClusterSchedule, ScheduleOptions


def schedules(first: int, policy: str) -> Iterator[ClusterSchedule]:
    """Schedules of fifty random pairs, without those of which a machine has no global buffer."""
    for seed in range(first, first + 50):
        if policy == "gb" and random_machine(seed).shared is None:
            continue
        options = ScheduleOptions(policy, overlap="layers", parts_margin=math.inf)
        yield schedule_that_fits(seed, options)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["gb", "lb", "graphturbo"])
def test_no_buffer_holds_more_than_it_has_at_any_instant(first_seed: int, policy: str) -> None:
    seen = 0
    for schedule in schedules(first_seed, policy):
        seen += 1
        machine = schedule.rates.accelerator
        room = {"local buffer": machine.local_bytes, "global buffer": machine.shared_bytes}
        for name, levels in bytes_over_time(schedule).items():
            assert 0 < max(level for _, level in levels) <= room[name]
            assert levels[-1][1] == 0
            assert levels == sorted(levels, key=lambda at: at[0])
    assert seen == 50 or (policy == "gb" and seen > 25)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["gb", "lb", "graphturbo"])
def test_addresses_that_one_writes_are_no_other_ones_meanwhile(
    first_seed: int, policy: str
) -> None:
    clashes = [count_clashes(schedule) for schedule in schedules(first_seed, policy)]
    assert len(clashes) == 50 or (policy == "gb" and len(clashes) > 25)
    assert min(clashes) > 0
