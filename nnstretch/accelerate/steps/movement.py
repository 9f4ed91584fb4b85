"""B6: what must move between instances.

An instance that reads several pieces of one tensor reads their concatenation; a piece in another
scope is copied, one that is bound to cores otherwise is redistributed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nnstretch.accelerate.steps.binding import BoundInstance
from nnstretch.accelerate.steps.slicing import Writers
from nnstretch.chip.boxes import Box
from nnstretch.chip.instances import Binding, Instance


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor that one instance left."""

    writer: str
    tensor: str
    box: Box


@dataclass(frozen=True, slots=True)
class Concatenation:
    """Pieces of a tensor made one for a reader."""

    reader: str
    tensor: str
    box: Box
    pieces: tuple[Piece, ...]

    def __str__(self) -> str:
        return f"cat:{self.reader}"


def concatenations(
    order: Sequence[Instance],
) -> dict[str, tuple[Concatenation, ...]]:
    """Return the concatenations that must come before each instance."""
    writers = Writers(order)
    before: dict[str, tuple[Concatenation, ...]] = {}
    for instance in order:
        needed: list[Concatenation] = []
        for name, box in instance.reads.items():
            parts = sources_of(name, box, writers)
            if len(parts) > 1:
                needed.append(Concatenation(instance.name, name, box, parts))
        before[instance.name] = tuple(needed)
    return before


def sources_of(tensor: str, box: Box, writers: Writers) -> tuple[Piece, ...]:
    """Return the pieces of a tensor that overlap a part of it."""
    near = writers.overlapping(tensor, box)
    return tuple(Piece(writer.name, tensor, writer.writes[tensor]) for writer in near)


def moves_of(
    pieces: Sequence[BoundInstance], target: Binding, scope: str
) -> tuple[tuple[str, ...], ...]:
    """Return the copies and redistributions of each piece of a concatenation.

    A redistribution goes to the smaller factor of both bindings in each dimension.
    """
    moves: list[tuple[str, ...]] = []
    for piece in pieces:
        steps: list[str] = []
        if piece.scope != scope:
            steps.append(f"copy {piece.scope}->{scope}")
        common = common_binding(piece.binding, target)
        if common.factors != piece.binding.factors:
            steps.append(f"redistribute {common}")
        moves.append(tuple(steps))
    return tuple(moves)


def common_binding(first: Binding, second: Binding) -> Binding:
    """Return the smaller factor of two bindings in each dimension."""
    factors = tuple(min(a, b) for a, b in zip(first.factors, second.factors, strict=True))
    return Binding(factors, first.axes)


def with_concatenations(
    order: Sequence[str], before: Mapping[str, Sequence[object]]
) -> tuple[str, ...]:
    """Return the printed form of an order: each concatenation before its reader."""
    lines: list[str] = []
    for name in order:
        lines += [str(step) for step in before[name]]
        lines.append(name)
    return tuple(lines)
