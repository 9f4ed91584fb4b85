"""B4: in which order instances run.

Depth first computes a consumer as soon as it can, so that few outputs wait; breadth first computes
group by group. The one with fewer pending bytes is taken, depth first where they are equal (Alg. 3
of GraphTurbo).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

Order = tuple[str, ...]
Needs = Mapping[str, Sequence[str]]


def depth_first(names: Sequence[str], needs: Needs) -> Order:
    """Return the depth-first order: always the last instance that became ready."""
    unmet = {name: len(needs[name]) for name in names}
    readers = readers_of(names, needs)
    visit = {name: None for name in names if unmet[name]}
    ready = [name for name in names if not unmet[name]]
    order: list[str] = []
    while ready:
        name = ready.pop(last_ready(ready, unmet))
        order.append(name)
        for reader in readers[name]:
            unmet[reader] -= 1
            if reader in visit:
                del visit[reader]
                ready.append(reader)
    return tuple(order)


def last_ready(ready: Sequence[str], unmet: Mapping[str, int]) -> int:
    """Return the place of the last instance all of whose needs are met."""
    for place in range(len(ready) - 1, -1, -1):
        if not unmet[ready[place]]:
            return place
    raise AssertionError("needs of instances close a cycle")


def lowest_first(names: Sequence[str], needs: Needs) -> Order:
    """Return the depth-first order that starts with the lowest index: the mirror image."""
    return depth_first(tuple(reversed(names)), needs)


def breadth_first(names: Sequence[str], needs: Needs) -> Order:
    """Return the order in which instances become ready."""
    unmet = {name: len(needs[name]) for name in names}
    readers = readers_of(names, needs)
    ready = deque(name for name in names if not unmet[name])
    order: list[str] = []
    while ready:
        name = ready.popleft()
        order.append(name)
        for reader in readers[name]:
            unmet[reader] -= 1
            if not unmet[reader]:
                ready.append(reader)
    return tuple(order)


def readers_of(names: Sequence[str], needs: Needs) -> dict[str, list[str]]:
    """Return the instances that read each instance."""
    readers: dict[str, list[str]] = {name: [] for name in names}
    for name in names:
        for need in needs[name]:
            readers[need].append(name)
    return readers


def pending_before_each(order: Order, needs: Needs, sizes: Mapping[str, int]) -> list[int]:
    """Return the size of outputs that wait for a reader when each instance starts."""
    readers = readers_of(order, needs)
    waiting = {name: len(readers[name]) for name in order}
    pending: list[int] = []
    live = 0
    for name in order:
        pending.append(live)
        for need in needs[name]:
            waiting[need] -= 1
            if not waiting[need]:
                live -= sizes[need]
        if readers[name]:
            live += sizes[name]
    return pending


def best_order(names: Sequence[str], needs: Needs, sizes: Mapping[str, int]) -> Order:
    """Return the order of fewer pending bytes, depth first where both are equal."""
    deep, broad = depth_first(names, needs), breadth_first(names, needs)
    deep_peak = max(pending_before_each(deep, needs, sizes), default=0)
    broad_peak = max(pending_before_each(broad, needs, sizes), default=0)
    return deep if deep_peak <= broad_peak else broad
