"""Instructions of a chip schedule that touch one address, of which one writes it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from nnstretch.accelerate.engines.simulate import end_times_us
from nnstretch.accelerate.policies import ClusterSchedule


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
