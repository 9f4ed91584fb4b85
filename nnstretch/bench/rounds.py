"""Who competes takes turns, round after round: whatever the machine does in a while, it does to all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from time import perf_counter
from typing import TypeVar

Turn = Callable[[], float]
"""Runs once and says how long it took, in microseconds."""
Tell = Callable[[int, int], object]
LEAST = 5
Name = TypeVar("Name", bound=Hashable)


def in_rounds(
    turns: Mapping[Name, Turn], rounds: int, seconds: float | None = None, tell: Tell = lambda done, total: None
) -> dict[Name, list[float]]:
    """Microseconds of every turn in every round, after one round that is not counted.

    Every turn runs twice and the second time counts: the first finds another's weights in the caches and may find another's threads
    awake. With `seconds` rounds go on until they are over, for `LEAST` rounds at any rate; `rounds` is not asked then.
    """
    found: dict[Name, list[float]] = {name: [] for name in turns}
    begin_s, done, total = perf_counter(), 0, rounds
    for turn in turns.values():
        turn()
    while done < total:
        for name, turn in turns.items():
            turn()
            found[name].append(turn())
        done += 1
        if seconds is not None:
            passed_s = perf_counter() - begin_s
            total = max(LEAST, done if passed_s >= seconds else max(done + 1, int(done * seconds / passed_s)))
        tell(done, total)
    return found
