"""C3: spills by longest liveness, and addresses that never overlap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nnstretch.accelerate.steps.memory import (
    Block,
    assign_addresses,
    longest_lived,
    overflows,
)
from nnstretch.structure.address_ranges import free_gaps

# Tasks ct1..ct7 are steps 1..7; out1 is read outside, too; out3 takes in1's space.
FIGURE_12 = (
    Block("out1", 1, 1, 7),
    Block("out2", 1, 2, 6),
    Block("in1/out3", 1, 1, 4),
    Block("out4", 1, 4, 6),
    Block("out5", 1, 5, 7),
    Block("out6", 1, 6, 7),
    Block("out7", 1, 7, 7),
)


def test_the_published_example_spills_out1_the_longest_lived() -> None:
    (overflow,) = overflows(FIGURE_12[-3:] + FIGURE_12[:1], 3)
    assert (overflow.block.name, overflow.step, overflow.live_bytes) == ("out1", 7, 4)
    assert next(overflows(FIGURE_12, 3)).block.name == "out1"


def test_the_longest_lived_goes_and_not_the_largest() -> None:
    blocks = (Block("large", 8, 3, 3), Block("long", 2, 0, 9))
    assert [overflow.block.name for overflow in overflows(blocks, 9)] == ["long"]


blocks = st.builds(
    lambda number, size, first, span: Block(f"b{number}", size, first, first + span),
    st.integers(0, 10**6),
    st.integers(1, 50),
    st.integers(0, 12),
    st.integers(0, 6),
)


@given(st.lists(blocks, max_size=14, unique_by=lambda block: block.name), st.integers(50, 200))
def test_addresses_of_live_blocks_never_overlap(listed: list[Block], capacity: int) -> None:
    staying = list(listed)
    for overflow in overflows(listed, capacity):
        live = [b for b in staying if b.first_step <= overflow.step <= b.last_step]
        assert overflow.block == longest_lived(live)
        assert overflow.live_bytes == sum(b.size_bytes for b in live) > capacity
        staying.remove(overflow.block)
    for step in range(20):
        live = [b for b in staying if b.first_step <= step <= b.last_step]
        assert sum(b.size_bytes for b in live) <= capacity
    addresses = assign_addresses(staying)
    for first in staying:
        for second in staying:
            apart = first.last_step < second.first_step or second.last_step < first.first_step
            if first is second or apart:
                continue
            ends = addresses[first.name] + first.size_bytes
            assert ends <= addresses[second.name] or (
                addresses[second.name] + second.size_bytes <= addresses[first.name]
            )


def test_free_gaps_are_what_lies_between() -> None:
    assert free_gaps([(4, 6), (0, 2)], 10) == [(2, 4), (6, 10)]
    assert free_gaps([], 3) == [(0, 3)]
