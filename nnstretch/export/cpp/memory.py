"""The arena: where every tensor lies, so that calls that may run at once never share memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nnstretch.export.cpp.program import CallGroup, OperatorCall, TensorBuffer, TensorView

ALIGNMENT = 16
"""Elements; 64 bytes."""


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """Offsets of tensors in the working memory of one inference, in elements."""

    offsets: Mapping[str, int]
    size: int
    peak_alive: int
    """Most elements alive at once where calls run one after the other."""


def plan_arena(groups: Sequence[CallGroup]) -> ArenaPlan:
    """Place tensors, the largest first, each at the lowest offset that those alive with it leave.

    Two tensors may share memory where all calls on one precede all calls on the other in the
    partial order of tasks, whatever runs at once (greedy by size, Pisarchyk and Lee, 2020).
    """
    users = buffer_users(groups)
    ancestors = call_ancestors(groups)
    buffers = sorted(users, key=lambda buffer: (-buffer.elements, users[buffer][0], buffer.name))
    placed: list[tuple[TensorBuffer, int]] = []
    offsets: dict[str, int] = {}
    size = 0
    for buffer in buffers:
        taken = [
            (offset, offset + padded(neighbour))
            for neighbour, offset in placed
            if not apart(users[buffer], users[neighbour], ancestors)
        ]
        offset = lowest_gap(sorted(taken), padded(buffer))
        placed.append((buffer, offset))
        offsets[buffer.name] = offset
        size = max(size, offset + padded(buffer))
    return ArenaPlan(offsets, size, peak_alive(users))


def padded(buffer: TensorBuffer) -> int:
    """Return the elements of a buffer with its alignment."""
    return -(-buffer.elements // ALIGNMENT) * ALIGNMENT


def lowest_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """Return the lowest offset at which `size` elements fit between sorted intervals."""
    at = 0
    for start, end in taken:
        if start - at >= size:
            return at
        at = max(at, end)
    return at


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


def apart(a: Sequence[int], b: Sequence[int], ancestors: Sequence[int]) -> bool:
    """Return whether all users of one tensor precede all users of the other."""
    return precedes(a, b, ancestors) or precedes(b, a, ancestors)


def precedes(a: Sequence[int], b: Sequence[int], ancestors: Sequence[int]) -> bool:
    """Return whether every call of `a` is an ancestor of every call of `b`."""
    mask = 0
    for number in a:
        mask |= 1 << number
    return all(ancestors[number] & mask == mask for number in b)


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
