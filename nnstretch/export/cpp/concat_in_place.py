"""Joins without a copy: whoever computes a part writes it where the join wants it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nnstretch.export.cpp.program import OperatorCall, TensorBuffer, TensorView

Interval = tuple[int, int]
"""The first element, and one past the last."""


def write_parts_in_place(calls: tuple[OperatorCall, ...]) -> tuple[OperatorCall, ...]:
    """Drop copies of whole tensors into dense parts of others, and move their writers there.

    A tensor moves once. A second join that reads it copies it from its new place, unless the second
    join takes the whole first join as one part, as dense blocks do. Parts are dense where the
    joined axis is the first of more than one position, as channels are at batch 1.
    """
    remaining = list(calls)
    while True:
        copies = movable_copies(remaining)
        if not copies:
            return tuple(remaining)
        first = remaining[copies[0]]
        source = first.reads[0]
        assert source is not None
        shift = first.write.offset - source.offset
        for number in reversed(copies):
            del remaining[number]
        for number, call in enumerate(remaining):
            if any(view.buffer == source.buffer for view in call.views):
                remaining[number] = move_call(call, source.buffer, first.write.buffer, shift)


def movable_copies(calls: Sequence[OperatorCall]) -> list[int]:
    """Return the numbers of the copies that put one tensor as a whole into another, [] if none."""
    copies: dict[tuple[TensorBuffer, TensorBuffer, int], list[int]] = {}
    for number, call in enumerate(calls):
        if is_dense_copy(call):
            source = call.reads[0]
            assert source is not None
            shift = call.write.offset - source.offset
            copies.setdefault((source.buffer, call.write.buffer, shift), []).append(number)
    for (moved, target, shift), numbers in copies.items():
        copied = sum(calls[number].write.elements for number in numbers)
        place = (shift, shift + moved.elements)
        if copied == moved.elements and not is_written(calls, numbers, target, place):
            return numbers
    return []


def is_written(
    calls: Sequence[OperatorCall], copies: Sequence[int], target: TensorBuffer, place: Interval
) -> bool:
    """Return whether others than some copies write where these do, as whoever fills a border."""
    for number, call in enumerate(calls):
        if number not in copies and call.write.buffer == target:
            first, end = call.write.interval
            if first < place[1] and place[0] < end:
                return True
    return False


def is_dense_copy(call: OperatorCall) -> bool:
    """Return whether a call copies a dense part of an arena tensor to a dense part of another."""
    if call.operation != "Copy" or call.activation is not None:
        return False
    source = call.reads[0]
    assert source is not None
    return (
        source.buffer.storage == "arena"
        and source.buffer != call.write.buffer
        and source.is_dense
        and call.write.is_dense
    )


def move_call(call: OperatorCall, old: TensorBuffer, new: TensorBuffer, shift: int) -> OperatorCall:
    """Return a call that reads and writes a moved tensor at its new place."""

    def moved(view: TensorView) -> TensorView:
        if view.buffer != old:
            return view
        return replace(view, buffer=new, offset=view.offset + shift)

    reads = tuple(None if view is None else moved(view) for view in call.reads)
    return replace(call, reads=reads, write=moved(call.write))
