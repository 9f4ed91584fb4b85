"""The arena: where every tensor lies, so that calls that may run at once never share memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nnstretch.export.cpp.program import CallGroup, OperatorCall, TensorBuffer, TensorView
from nnstretch.export.cpp.shared_memory import least_memory, tensors_before
from nnstretch.structure.address_ranges import lowest_gap, smallest_gap

ALIGNMENT = 16
"""Elements; 64 bytes."""


MOST_ORDERS = 40
"""Orders in which tensors are placed, until one reaches what no arena can be smaller than."""


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """Offsets of tensors in the working memory of one inference, in elements."""

    offsets: Mapping[str, int]
    size: int
    peak_alive: int
    """Most elements alive at once where calls run one after the other."""
    least_size: int
    """Elements of tensors of which no two may share memory, whatever runs at once, at most."""


def plan_arena(groups: Sequence[CallGroup]) -> ArenaPlan:
    """Place tensors so that those that may be alive at once, whatever runs at once, lie apart.

    Two tensors may share memory where all calls on one precede all calls on the other in the
    partial order of tasks. They are placed the largest first, each in the smallest gap or the
    lowest that those alive with it leave (Pisarchyk and Lee, 2020); then whichever reached
    highest goes first. The smallest arena is kept.
    """
    users = buffer_users(groups)
    buffers = sorted(users, key=lambda buffer: (users[buffer][0], buffer.name))
    sizes = [padded(buffer) for buffer in buffers]
    before = tensors_before([users[buffer] for buffer in buffers], call_ancestors(groups))
    least = least_memory(sizes, before)
    offsets = best_offsets(sizes, neighbours(before), least)
    return ArenaPlan(
        dict(zip((buffer.name for buffer in buffers), offsets, strict=True)),
        end_of(sizes, offsets),
        peak_alive(users),
        least,
    )


def neighbours(before: Sequence[int]) -> list[list[int]]:
    """Return, for each tensor, the tensors that must not share memory with it."""
    apart = list(before)
    for index, mask in enumerate(before):
        while mask:
            previous = mask.bit_length() - 1
            apart[previous] |= 1 << index
            mask ^= 1 << previous
    count = len(before)
    return [[j for j in range(count) if j != i and not apart[i] >> j & 1] for i in range(count)]


def best_offsets(
    sizes: Sequence[int], neighbours_of: Sequence[Sequence[int]], least: int
) -> list[int]:
    """Return the offsets of the smallest arena over some orders of placing tensors."""
    order = sorted(range(len(sizes)), key=lambda index: (-sizes[index], index))
    best: list[int] = []
    for _ in range(MOST_ORDERS):
        for fit in (lowest_gap, smallest_gap):
            offsets = placed(order, sizes, neighbours_of, fit)
            if not best or end_of(sizes, offsets) < end_of(sizes, best):
                best = offsets
            if end_of(sizes, best) <= least:
                return best
        highest = max(order, key=lambda index: offsets[index] + sizes[index])
        order = [highest, *(index for index in order if index != highest)]
    return best


def placed(
    order: Sequence[int],
    sizes: Sequence[int],
    neighbours_of: Sequence[Sequence[int]],
    fit: Callable[[Sequence[tuple[int, int]], int], int],
) -> list[int]:
    """Return the offsets of tensors that are placed one after the other."""
    offsets = [-1] * len(sizes)
    for index in order:
        taken: list[tuple[int, int]] = []
        for neighbour in neighbours_of[index]:
            start = offsets[neighbour]
            if start >= 0:
                taken.append((start, start + sizes[neighbour]))
        offsets[index] = fit(sorted(taken), sizes[index])
    return offsets


def end_of(sizes: Sequence[int], offsets: Sequence[int]) -> int:
    """Return the size of the memory that placed tensors take."""
    return max((offset + size for offset, size in zip(offsets, sizes, strict=True)), default=0)


def padded(buffer: TensorBuffer) -> int:
    """Return the elements of a buffer with its alignment."""
    return -(-buffer.elements // ALIGNMENT) * ALIGNMENT


def buffer_users(groups: Sequence[CallGroup]) -> dict[TensorBuffer, list[int]]:
    """Return the numbers of the calls that touch each tensor of the arena, in order."""
    users: dict[TensorBuffer, list[int]] = {}
    number = 0
    for group in groups:
        for call in group.calls:
            for view in call.views:
                numbers = users.setdefault(view.buffer, [])
                if view.buffer.storage == "arena" and number not in numbers:
                    numbers.append(number)
            number += 1
    return {buffer: numbers for buffer, numbers in users.items() if numbers}


def call_ancestors(groups: Sequence[CallGroup]) -> list[int]:
    """Return for each call the set of calls that surely end before it starts, as bits."""
    ancestors: list[int] = []
    writers: dict[TensorBuffer, list[tuple[int, TensorView]]] = {}
    readers: dict[TensorBuffer, list[tuple[int, TensorView]]] = {}
    for group in groups:
        first = len(ancestors)
        needs = group_needs(group.calls, writers, readers)
        before = 0
        for need in needs:
            before |= ancestors[need] | 1 << need
        # A task begins when every need of any of its calls has ended.
        for call in group.calls:
            number = len(ancestors)
            ancestors.append(before | bits(first, number))
            writers.setdefault(call.write.buffer, []).append((number, call.write))
            for view in call.reads:
                if view is not None:
                    readers.setdefault(view.buffer, []).append((number, view))
    return close_tasks(groups, ancestors)


def close_tasks(groups: Sequence[CallGroup], ancestors: list[int]) -> list[int]:
    """Return ancestors with whole tasks in place of their last needed calls.

    Whoever needs one call of a task waits for the end of the task.
    """
    members: list[int] = []
    number = 0
    for group in groups:
        mask = bits(number, number + len(group.calls))
        members += [mask] * len(group.calls)
        number += len(group.calls)
    closed: list[int] = []
    for number, before in enumerate(ancestors):
        outside = before & ~members[number]
        whole = 0
        remaining = outside
        while remaining:
            last = remaining.bit_length() - 1
            whole |= members[last] | closed[last] & ~members[last]
            remaining &= ~(members[last] | closed[last])
        closed.append(whole | before & members[number])
    return closed


def bits(first: int, end: int) -> int:
    """Return a number whose bits from `first` to below `end` are set."""
    return (1 << end) - (1 << first)


def group_needs(
    calls: Sequence[OperatorCall],
    writers: Mapping[TensorBuffer, list[tuple[int, TensorView]]],
    readers: Mapping[TensorBuffer, list[tuple[int, TensorView]]],
) -> set[int]:
    """Return the earlier calls whose memory a task reads or overwrites."""
    needs: set[int] = set()
    for call in calls:
        for view in call.views:
            needs |= overlapping(view, writers.get(view.buffer, ()))
        needs |= overlapping(call.write, readers.get(call.write.buffer, ()))
    return needs


def overlapping(view: TensorView, others: Sequence[tuple[int, TensorView]]) -> set[int]:
    """Return the calls whose view shares elements with this one."""
    first, end = view.interval
    shared: set[int] = set()
    for number, other in others:
        other_first, other_end = other.interval
        if first < other_end and other_first < end:
            shared.add(number)
    return shared


def peak_alive(users: Mapping[TensorBuffer, Sequence[int]]) -> int:
    """Return the most elements alive at once where calls run in order."""
    changes: dict[int, int] = {}
    for buffer, numbers in users.items():
        changes[numbers[0]] = changes.get(numbers[0], 0) + buffer.elements
        changes[numbers[-1] + 1] = changes.get(numbers[-1] + 1, 0) - buffer.elements
    alive = peak = 0
    for number in sorted(changes):
        alive += changes[number]
        peak = max(peak, alive)
    return peak
