"""Peak: bytes that a group of operators needs at once, by liveness in execution order.

Inputs count from first to last read, weights do not; an element-wise operator writes over its input
where that dies (B7 of the published algorithm, in the reading that reproduces its splits).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnstretch.accelerate.chip_graph import IN_PLACE, ChipGraph


@dataclass(frozen=True, slots=True)
class Lifetime:
    """From which to which operator of a group a tensor is live."""

    tensor: str
    first: int
    last: int
    size_bytes: int


def group_peak(chip: ChipGraph, operators: Sequence[str]) -> int:
    """Return the bytes that are live at the worst operator of a group."""
    changes = [0] * (len(operators) + 1)
    for lifetime in lifetimes(chip, operators):
        changes[lifetime.first] += lifetime.size_bytes
        changes[lifetime.last + 1] -= lifetime.size_bytes
    peak = live = 0
    for change in changes:
        live += change
        peak = max(peak, live)
    return peak


def lifetimes(chip: ChipGraph, operators: Sequence[str]) -> list[Lifetime]:
    """Return when each tensor of a group is live; in-place results continue their input."""
    places = {name: place for place, name in enumerate(operators)}
    last_read = last_places(chip, operators, places)
    first: dict[str, int] = {}
    over: dict[str, str] = {}
    for place, name in enumerate(operators):
        for source in chip.reads[name]:
            first.setdefault(source, place)
        replaced = overwritten(chip, name, place, last_read)
        if replaced is None:
            first[name] = place
        else:
            over[replaced] = name
            first[name] = first.pop(replaced)
    # An in-place result took its input's entry, so every entry is one place in memory.
    return [
        Lifetime(name, start, last_read.get(name, start), chip.bytes_of(name))
        for name, start in first.items()
    ]


def last_places(
    chip: ChipGraph, operators: Sequence[str], places: dict[str, int]
) -> dict[str, int]:
    """Return the last operator of a group that needs each tensor; outputs stay to the end."""
    last: dict[str, int] = {}
    for place, name in enumerate(operators):
        for source in chip.reads[name]:
            last[source] = place
    for place, name in enumerate(operators):
        last.setdefault(name, place)
        if leaves(chip, name, places):
            last[name] = len(operators) - 1
    return last


def leaves(chip: ChipGraph, name: str, places: dict[str, int]) -> bool:
    """Return whether a tensor is read outside of the operators of a group."""
    return name in chip.outputs or any(user not in places for user in chip.readers.get(name, ()))


def overwritten(chip: ChipGraph, name: str, place: int, last_read: dict[str, int]) -> str | None:
    """Return the input over which an element-wise operator may write, None where there is none."""
    node = chip.nodes[name]
    if node.kind not in IN_PLACE:
        return None
    for source in node.inputs:
        dies = last_read.get(source) == place and chip.roots[source] == source
        if dies and source not in chip.weights and chip.same_elements(source, name):
            return source
    return None
