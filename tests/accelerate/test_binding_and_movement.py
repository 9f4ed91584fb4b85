"""B5 and B6: the published bindings, and the example of a concatenation."""

from __future__ import annotations

import pytest

from nnstretch.accelerate.steps.binding import BoundInstance, plain_factors
from nnstretch.accelerate.steps.movement import moves_of
from nnstretch.chip.instances import LOCAL, SHARED, Binding


@pytest.mark.parametrize(
    ("sizes", "binding"),
    [
        ((2, 56, 56, 256), "[2, 4]"),
        ((4, 28, 28, 512), "[4, 2]"),
        ((8, 14, 14, 1024), "[8]"),
        ((16, 7, 7, 2048), "[8]"),
        ((8, 128, 768), "[8]"),
        ((2, 512, 768), "[2, 4]"),
    ],
)
def test_plain_bindings_are_the_published_ones(sizes: tuple[int, ...], binding: str) -> None:
    factors = plain_factors(sizes, 8)
    assert str(Binding(factors, tuple(range(len(sizes))))) == binding


def test_a_binding_never_takes_more_cores_than_there_are() -> None:
    assert plain_factors((3, 5, 7), 8) == (1, 1, 1)
    assert plain_factors((6, 4), 12) == (6, 2)


def test_the_published_concatenation_copies_one_piece_and_redistributes_the_other() -> None:
    axes = (0, 1, 2, 3)
    pieces = [
        BoundInstance(Binding((2, 2, 1, 1), axes), SHARED),
        BoundInstance(Binding((2, 4, 1, 1), axes), LOCAL),
    ]
    moves = moves_of(pieces, Binding((4, 2, 1, 1), axes), LOCAL)
    assert moves == (("copy global->local",), ("redistribute [2, 2]",))
