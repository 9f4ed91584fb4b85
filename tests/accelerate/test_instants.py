"""What lies in the buffers at every instant, engines running ahead of one another."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
from support.random_chip_graphs import FIFTIES, random_machine, schedule_that_fits

from nnstretch.accelerate.chip_pictures import bytes_over_time
from nnstretch.accelerate.engines.simulate import end_times_us
from nnstretch.accelerate.policies import ClusterSchedule, ScheduleOptions


def schedules(first: int, policy: str) -> Iterator[ClusterSchedule]:
    """Schedules of fifty random pairs, without those of which a machine has no global buffer."""
    for seed in range(first, first + 50):
        if policy == "gb" and random_machine(seed).shared is None:
            continue
        options = ScheduleOptions(policy, overlap="layers", parts_margin=math.inf)
        yield schedule_that_fits(seed, options)


@pytest.mark.parametrize("first", range(0, 300, 50))
@pytest.mark.parametrize("policy", ["gb", "lb", "graphturbo"])
def test_no_buffer_holds_more_than_it_has_at_any_instant(first: int, policy: str) -> None:
    seen = 0
    for schedule in schedules(first, policy):
        seen += 1
        machine = schedule.rates.accelerator
        room = {"local buffer": machine.local_bytes, "global buffer": machine.shared_bytes}
        for name, levels in bytes_over_time(schedule).items():
            assert 0 < max(level for _, level in levels) <= room[name]
            assert levels[-1][1] == 0
            assert levels == sorted(levels, key=lambda at: at[0])
    assert seen == 50 or (policy == "gb" and seen > 25)


def count_clashes(schedule: ClusterSchedule) -> int:
    """Return how often two instructions touch one address and one of them writes it.

    Fails where the later one of such a pair starts before the earlier one has ended.
    """
    ends_us = np.array(end_times_us(schedule.instructions, schedule.needs))
    starts_us = ends_us - [item.duration_us for item in schedule.instructions]
    touches: dict[str, list[tuple[int, int, int, bool]]] = defaultdict(list)
    for place, item in enumerate(schedule.instructions):
        for regions, writes in ((item.reads, False), (item.writes, True)):
            for region in regions:
                touches[region.buffer].append((place, region.start, region.stop, writes))
    clashes = 0
    for listed in touches.values():
        places, starts, stops, writing = (np.array(column) for column in zip(*listed, strict=True))
        for place, start, stop, writes in listed:
            later = (places > place) & (starts < stop) & (start < stops) & (writing | writes)
            assert (starts_us[places[later]] >= ends_us[place] - 1e-6).all()
            clashes += int(later.sum())
    return clashes


@pytest.mark.parametrize("first", FIFTIES)
@pytest.mark.parametrize("policy", ["gb", "lb", "graphturbo"])
def test_addresses_that_one_writes_are_no_other_ones_meanwhile(first: int, policy: str) -> None:
    clashes = [count_clashes(schedule) for schedule in schedules(first, policy)]
    assert len(clashes) == 50 or (policy == "gb" and len(clashes) > 25)
    assert min(clashes) > 0
