"""Views by strides are PyTorch's views; tensors that may be alive at once never share memory."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from nnstretch.export.cpp import view_algebra
from nnstretch.export.cpp.memory import (
    buffer_users,
    call_ancestors,
    padded,
    plan_arena,
)
from nnstretch.export.cpp.program import (
    CallGroup,
    OperatorCall,
    TensorBuffer,
    TensorView,
    whole_view,
)


def elements(view: TensorView) -> np.ndarray:
    """Return the elements that a view names, of memory that counts up from 0."""
    memory = np.arange(view.buffer.elements)
    strides = [stride * memory.itemsize for stride in view.stride]
    return np.lib.stride_tricks.as_strided(memory[view.offset :], view.shape, strides)


@given(st.data())
def test_reshape_gives_the_same_elements_in_the_same_order_or_none(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    view = whole_view(TensorBuffer("x", "arena", shape))
    axes = data.draw(st.permutations(range(len(shape))))
    view = view_algebra.permute(view, tuple(axes))
    if view.shape[0] > 1 and data.draw(st.booleans()):
        view = view_algebra.narrow(view, 0, 1, view.shape[0] - 1)
    target = data.draw(st.permutations(view.shape))
    joined = (int(np.prod(target[:2])), *target[2:])
    reshaped = view_algebra.reshape(view, joined)
    if reshaped is not None:
        assert reshaped.shape == joined
        np.testing.assert_array_equal(elements(reshaped), elements(view).reshape(joined))
    elif view.is_dense:
        pytest.fail("a dense view can have any shape")


@given(st.integers(1, 5), st.integers(1, 5), st.data())
def test_narrow_select_flip_and_broadcast_are_those_of_arrays(
    rows: int, columns: int, data: st.DataObject
) -> None:
    view = whole_view(TensorBuffer("x", "arena", (rows, columns)))
    array = elements(view)
    start = data.draw(st.integers(0, columns - 1))
    length = data.draw(st.integers(1, columns - start))
    part = view_algebra.narrow(view, 1, start, length)
    np.testing.assert_array_equal(elements(part), array[:, start : start + length])
    np.testing.assert_array_equal(elements(view_algebra.select(view, 1, start)), array[:, start])
    wide = view_algebra.broadcast(part, (3, rows, length))
    np.testing.assert_array_equal(elements(wide), np.broadcast_to(elements(part), wide.shape))
    flipped = view_algebra.flip(view, 1)
    assert flipped.interval == view.interval


@st.composite
def programs(draw: st.DrawFn) -> tuple[CallGroup, ...]:
    """Draw tasks of one or two calls that read one or two earlier values."""
    source = whole_view(TensorBuffer("x", "input", (4,)))
    values = [source]
    groups: list[CallGroup] = []
    for number in range(draw(st.integers(1, 9))):
        calls: list[OperatorCall] = []
        for part in range(draw(st.integers(1, 2))):
            size = draw(st.sampled_from((1, 16, 40, 100)))
            reads = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2))
            written = whole_view(TensorBuffer(f"v{number}_{part}", "arena", (size,)))
            calls.append(OperatorCall("Copy", written.buffer.name, tuple(reads), written))
            values.append(written)
        groups.append(CallGroup(f"t{number}", "", tuple(calls)))
    return tuple(groups)


@pytest.mark.slow
@given(programs())
def test_tensors_share_memory_only_where_tasks_surely_follow_each_other(
    groups: tuple[CallGroup, ...],
) -> None:
    arena = plan_arena(groups)
    users, ancestors = buffer_users(groups), call_ancestors(groups)
    buffers = [buffer for buffer in users if buffer.storage == "arena"]
    for first in buffers:
        for second in buffers:
            a, b = arena.offsets[first.name], arena.offsets[second.name]
            shared = a < b + second.elements and b < a + first.elements
            if first is second or not shared:
                continue
            before = all(ancestors[j] >> i & 1 for i in users[first] for j in users[second])
            after = all(ancestors[i] >> j & 1 for i in users[first] for j in users[second])
            assert before or after
    assert arena.size >= max(buffer.elements for buffer in buffers)


@settings(max_examples=40)
@given(programs())
def test_no_arena_is_smaller_than_tensors_that_may_share_nothing(
    groups: tuple[CallGroup, ...],
) -> None:
    arena = plan_arena(groups)
    users, ancestors = buffer_users(groups), call_ancestors(groups)
    buffers = list(users)[:8]

    def follows(pair: tuple[TensorBuffer, TensorBuffer]) -> bool:
        uses = itertools.product(users[pair[0]], users[pair[1]])
        return all(ancestors[later] >> earlier & 1 for earlier, later in uses)

    ordered = {pair for pair in itertools.permutations(buffers, 2) if follows(pair)}
    largest = 0
    for chosen in itertools.product((False, True), repeat=len(buffers)):
        together = list(itertools.compress(buffers, chosen))
        if ordered.isdisjoint(itertools.permutations(together, 2)):
            largest = max(largest, sum(padded(buffer) for buffer in together))
    assert largest <= arena.least_size <= arena.size
    if len(buffers) == len(users):
        assert arena.least_size == largest


@pytest.mark.slow
@given(programs())
def test_ancestors_are_what_tasks_must_wait_for(groups: tuple[CallGroup, ...]) -> None:
    ancestors = call_ancestors(groups)
    owner = [number for number, group in enumerate(groups) for _ in group.calls]
    writers: dict[str, int] = {}
    waits: list[set[int]] = []
    number = 0
    for task, group in enumerate(groups):
        needs: set[int] = set()
        for call in group.calls:
            for view in call.views[:-1]:
                if view.buffer.name in writers:
                    needs.add(writers[view.buffer.name])
        needs.discard(task)
        reached = set(needs)
        for need in needs:
            reached |= waits[need]
        waits.append(reached)
        for call in group.calls:
            writers[call.write.buffer.name] = task
            expected = {other for other, home in enumerate(owner) if home in reached}
            inside = {other for other, home in enumerate(owner) if home == task and other < number}
            actual = {other for other in range(len(owner)) if ancestors[number] >> other & 1}
            assert actual == expected | inside
            number += 1


def test_a_view_with_another_buffer_is_another_view() -> None:
    view = whole_view(TensorBuffer("x", "arena", (2, 3)))
    assert replace(view, offset=1) != view
    assert not view_algebra.transpose(view, 0, 1).is_dense
    assert view_algebra.reshape(view_algebra.transpose(view, 0, 1), (6,)) is None
