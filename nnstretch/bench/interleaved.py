"""Who competes takes turns, round after round.

Whatever the machine does in a while, it does to all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from time import perf_counter, process_time, sleep
from typing import TypeVar

Turn = Callable[[], float]
"""Runs once and says how long it took, in microseconds."""
Tell = Callable[[int, int], object]
LEAST = 6
"""Rounds from which on an interval of order statistics holds the median with 95%."""
LOOK_S, QUIET, LONGEST_S = 4e-3, 0.1, 0.5
"""How long the process is looked at, the share of a core that counts as none, and how long nobody
waits for it at most.
"""
WARM_S = 0.05
"""How long at least every turn runs before the run that counts."""
Name = TypeVar("Name", bound=Hashable)


def wait_until_idle() -> None:
    """Wait until no thread of this process computes any more.

    ONNX Runtime's threads inside operators look for work for 25 ms after a call, on a core that the
    next contender needs: small networks were measured at half their speed. Twice quiet, since on a
    busy machine who looks for work may wait for a core.
    """
    quiet, end_s = 0, perf_counter() + LONGEST_S
    while quiet < 2 and perf_counter() < end_s:
        before_s, begin_s = process_time(), perf_counter()
        sleep(LOOK_S)
        quiet = quiet + 1 if process_time() - before_s < QUIET * (perf_counter() - begin_s) else 0


def warm_up(turn: Turn, warm_s: float = WARM_S) -> None:
    """Run once, and again for a while.

    The first finds another's weights in the caches and cores that have slept, and threads that wake
    on one core need some 10 ms until the system gives each its own.
    """
    until_s = perf_counter() + warm_s
    turn()
    while perf_counter() < until_s:
        turn()


def run_interleaved(
    turns: Mapping[Name, Turn],
    rounds: int,
    seconds: float | None = None,
    tell: Tell = lambda done, total: None,
    pause: Callable[[], object] = wait_until_idle,
    warm_s: float = WARM_S,
) -> dict[Name, list[float]]:
    """Time every turn in every round, after one round that is not counted; microseconds.

    Every turn waits for `rest`, is made warm, runs once more, and that counts. With `seconds`
    rounds go on until they are over, for `LEAST` rounds at any rate; `rounds` is not asked then.
    """
    times_by_turn: dict[Name, list[float]] = {name: [] for name in turns}
    begin_s, done, total = perf_counter(), 0, rounds
    for turn in turns.values():
        turn()
    while done < total:
        for name, turn in turns.items():
            pause()
            warm_up(turn, warm_s)
            times_by_turn[name].append(turn())
        done += 1
        if seconds is not None:
            passed_s = perf_counter() - begin_s
            total = max(
                LEAST,
                done if passed_s >= seconds else max(done + 1, int(done * seconds / passed_s)),
            )
        tell(done, total)
    return times_by_turn
