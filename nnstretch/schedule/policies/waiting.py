"""Waiting tasks in an order, so that nothing waits behind a task that cannot run now.

Tasks are kept apart by the set of processors that can run them: of these sets there are few,
however many tasks wait.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from operator import itemgetter
from typing import Any

from nnstretch.protocols import ProcessorState
from nnstretch.schedule.costs.cost_rows import CostRows, Kind, Row
from nnstretch.task import Task

MOST_STALE = 64
"""Outdated entries that may stay in a queue, beside as many as are valid."""


def open_mask(processors: Sequence[ProcessorState]) -> int:
    """Return which processors may be given work now: bit N for number N."""
    mask = 0
    for state in processors:
        if state.open:
            mask |= 1 << state.index
    return mask


@dataclass(slots=True, eq=False)
class WithdrawnEntries:
    """Entries of queues whose tasks were withdrawn: they stay until they come to a head, or
    outnumber the others.

    An entry ends with the number under which its task was added, and the task.
    """

    count: int = 0
    """Of those that are still in a queue."""
    _last: dict[str, int] = field(default_factory=dict)
    """Last number under which a task was withdrawn, by its name."""

    def add(self, task: Task, number: int) -> None:
        """Hear that a task was withdrawn: all its entries up to a number are stale."""
        self._last[task.name] = number
        self.count += 1

    def holds(self, entry: tuple[Any, ...]) -> bool:
        """Return whether an entry is stale."""
        return bool(entry[-2] <= self._last.get(entry[-1].name, 0))

    def leave_head(self) -> None:
        """Hear that a stale entry has left its queue."""
        self.count -= 1
        if not self.count:
            self._last.clear()

    def outnumber(self, queues: Iterable[Sized]) -> bool:
        """Return whether it is time to look for them in all queues."""
        return self.count > MOST_STALE and 2 * self.count > sum(map(len, queues))

    def clear(self) -> None:
        """Hear that all have left."""
        self._last.clear()
        self.count = 0


class FirstInFirstOut:
    """Waiting tasks in the order in which they came; `mask_of` says where each may go.

    A policy of this order derives from it, and says in `pick` where the task it takes goes.
    """

    def __init__(self, mask_of: Callable[[Task], int]) -> None:
        self._mask_of = mask_of
        self._groups: dict[int, deque[tuple[int, Task]]] = {}
        """By mask of processors."""
        self._added = 0
        self._withdrawn = WithdrawnEntries()

    def add(self, task: Task, /) -> None:
        """Let a task wait behind all others."""
        mask = self._mask_of(task)
        group = self._groups.get(mask)
        if group is None:
            group = self._groups[mask] = deque()
        self._added += 1
        group.append((self._added, task))

    def withdraw(self, task: Task, /) -> None:
        """Forget a task."""
        withdrawn, groups = self._withdrawn, self._groups
        withdrawn.add(task, self._added)
        if withdrawn.outnumber(groups.values()):
            for mask, group in groups.items():
                groups[mask] = deque(entry for entry in group if not withdrawn.holds(entry))
            withdrawn.clear()

    def sort_anew(self) -> None:
        """Ask again where each waiting task may go."""
        entries = list(chain.from_iterable(self._groups.values()))
        self._groups.clear()
        for entry in sorted(entries, key=itemgetter(0)):
            if not self._withdrawn.holds(entry):
                self._groups.setdefault(self._mask_of(entry[1]), deque()).append(entry)
        self._withdrawn.clear()

    def take(self, processors: Sequence[ProcessorState]) -> tuple[Task, int] | None:
        """Remove the first task that an open processor can run; return it with its mask."""
        first: deque[tuple[int, Task]] | None = None
        head_mask, withdrawn = 0, self._withdrawn
        for mask, group in self._groups.items():
            if withdrawn.count:
                while group and withdrawn.holds(group[0]):
                    group.popleft()
                    withdrawn.leave_head()
            if not group or (first is not None and group[0][0] > first[0][0]):
                continue
            for state in processors:
                if state.open and mask >> state.index & 1:
                    first, head_mask = group, mask
                    break
        return None if first is None else (first.popleft()[1], head_mask)


class LeastKeyFirst:
    """Waiting tasks, the one of least key first, and of equal keys the one that came first."""

    def __init__(self) -> None:
        self._groups: dict[int, list[tuple[float, int, Task]]] = {}
        """By mask of processors, a heap."""
        self._added = 0
        self._withdrawn = WithdrawnEntries()

    def add(self, task: Task, key: float, mask: int) -> None:
        """Add a task that the processors of a mask can run."""
        group = self._groups.get(mask)
        if group is None:
            group = self._groups[mask] = []
        self._added += 1
        heapq.heappush(group, (key, self._added, task))

    def withdraw(self, task: Task) -> None:
        """Forget a task."""
        withdrawn, groups = self._withdrawn, self._groups
        withdrawn.add(task, self._added)
        if withdrawn.outnumber(groups.values()):
            for mask, group in groups.items():
                groups[mask] = [entry for entry in group if not withdrawn.holds(entry)]
                heapq.heapify(groups[mask])
            withdrawn.clear()

    def take(self, processors: Sequence[ProcessorState]) -> Task | None:
        """Remove and return the first task that an open processor can run."""
        best: list[tuple[float, int, Task]] | None = None
        withdrawn = self._withdrawn
        for mask, group in self._groups.items():
            if withdrawn.count:
                while group and withdrawn.holds(group[0]):
                    heapq.heappop(group)
                    withdrawn.leave_head()
            if not group or (best is not None and group[0] > best[0]):
                continue
            for state in processors:
                if state.open and mask >> state.index & 1:
                    best = group
                    break
        return None if best is None else heapq.heappop(best)[2]


@dataclass(slots=True, eq=False)
class KindQueue:
    """Waiting tasks of one kind in the order in which they came."""

    row: Row
    """What they cost now."""
    tasks: OrderedDict[str, tuple[int, Task]] = field(default_factory=OrderedDict)
    """Number and task, by name."""
    head: int = 0
    """Number of the first; 0 where none waits."""


class CheapestFirst:
    """Waiting tasks by kind, and on each processor the one that costs least.

    Tasks of a kind cost the same, so only the first of each kind stands in the heaps, one per
    processor. Entries that are no longer true leave when they come to the top.
    """

    def __init__(self, costs: CostRows) -> None:
        self._costs = costs
        self._kinds: dict[object, KindQueue] = {}
        self._heaps: list[list[tuple[float, int, KindQueue]]] = [[] for _ in costs.processors]
        self._added = 0
        costs.watch(self._cost_changed)

    def add(self, task: Task) -> None:
        """Add a task behind those of its kind."""
        queue = self._kinds.get(self._costs.kind(task))
        if queue is None:
            queue = self._kinds[self._costs.kind(task)] = KindQueue(self._costs.row(task))
        self._added += 1
        queue.tasks[task.name] = (self._added, task)
        if not queue.head:
            queue.head = self._added
            self._push(queue)

    def remove(self, task: Task) -> None:
        """Forget a task that was withdrawn; the next of its kind takes its place."""
        queue = self._kinds[self._costs.kind(task)]
        number, _ = queue.tasks.pop(task.name)
        if number == queue.head:
            self._next_head(queue)

    def take(self, queue: KindQueue) -> Task:
        """Remove and return the first task of a kind."""
        task = queue.tasks.popitem(last=False)[1][1]
        self._next_head(queue)
        return task

    def cheapest(self, index: int) -> tuple[float, int, KindQueue] | None:
        """Return cost, number and kind of the cheapest on a processor, the first of equals."""
        heap = self._heaps[index]
        while heap:
            cost_us, number, queue = entry = heap[0]
            if queue.head == number and queue.row[index] == cost_us:
                return entry
            heapq.heappop(heap)
        return None

    def heads(self) -> list[tuple[int, Task]]:
        """Return number and task of the first of every kind, or of all where data are copied."""
        entries: list[tuple[int, Task]] = []
        for queue in self._kinds.values():
            if queue.head and self._costs.arrivals is None:
                entries.append(next(iter(queue.tasks.values())))
            else:
                entries += queue.tasks.values()
        entries.sort(key=itemgetter(0))
        return entries

    def _next_head(self, queue: KindQueue) -> None:
        if queue.tasks:
            queue.head = next(iter(queue.tasks.values()))[0]
            self._push(queue)
        else:
            queue.head = 0

    def _push(self, queue: KindQueue) -> None:
        most = 2 * len(self._kinds) + MOST_STALE
        for index, cost_us in enumerate(queue.row):
            if cost_us < inf:
                heap = self._heaps[index]
                heapq.heappush(heap, (cost_us, queue.head, queue))
                if len(heap) > most:
                    self._rebuild(index)

    def _rebuild(self, index: int) -> None:
        """Keep one entry for each kind of which a task waits."""
        waiting = [queue for queue in self._kinds.values() if queue.head]
        entries = [(queue.row[index], queue.head, queue) for queue in waiting]
        self._heaps[index] = [entry for entry in entries if entry[0] < inf]
        heapq.heapify(self._heaps[index])

    def _cost_changed(self, kind: Kind) -> None:
        queue = self._kinds.get(kind)
        if queue is not None:
            queue.row = self._costs.row_of(kind)
            if queue.head:
                self._push(queue)
