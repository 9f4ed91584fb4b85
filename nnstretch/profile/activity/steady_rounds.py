"""Which rounds of a measurement nobody disturbed, told from what others did meanwhile.

An interruption takes the core away for some milliseconds, and the rounds of a kernel that it hit
stand out. A kernel much shorter than the time between two interruptions has rounds that nobody hit,
however busy the machine is, and its fastest rounds are those; a kernel that is longer has none.
Thresholds were chosen on 2,448 latencies of 108 medleys on two cores that one or two others used:
with fewer than 6 of 12 rounds expected clean, 39% to 57% were off by over 10%; with more, 0% to
11%, kernels shorter than a turn on a crowded core apart (19%); three attempts together, 5% to 8%.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.profile.activity.machine_activity import TICK_S, OtherWork

QUIET = 0.02
"""Share of the time waited for a core, or stolen, that changes no kernel by more than itself."""
CROWDED = 0.35
"""Share beyond which short kernels miss their caches as well, so that more rounds are needed."""
LEAST_CLEAN = 6
"""Undisturbed rounds to expect where a latency is believed."""
INTERRUPTED = 1.5
"""Factor beyond which the slowest of the faster half of rounds was interrupted."""
Times = tuple[float, ...]
"""Of one chain in every round, us; empty where the backend refused it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One measurement of a medley, its reference kernel first."""

    times_us: Sequence[Times]
    interference: OtherWork

    @property
    def reference_us(self) -> float:
        """Return what the reference kernel took in undisturbed rounds; 0 without any round."""
        times_us = keep_steady(self.times_us[0], self.interference).times_us
        return faster_half_us(times_us) if times_us else 0.0


@dataclass(frozen=True, slots=True)
class SteadyRounds:
    """Rounds of one chain that are likely undisturbed."""

    times_us: Times
    steady: bool
    """Whether there are enough of them to believe their latency."""


def faster_half_us(times_us: Sequence[float]) -> float:
    """Return the mean of the faster half, us."""
    return float(np.mean(sorted(times_us)[: (len(times_us) + 1) // 2]))


def is_quiet(interference: OtherWork) -> bool:
    """Return whether others took so little of a measurement that no round need be doubted."""
    return interference.waited_share <= QUIET and interference.stolen_share <= QUIET


def clean_rounds(latency_us: float, rounds: int, interference: OtherWork) -> float:
    """Return how many of some rounds of a kernel nobody interrupted, as far as one can expect.

    Stolen time comes in unknown pieces, at most as many as the clock has ticks for.
    """
    running_s = interference.wall_s - interference.waited_s
    if is_quiet(interference) or running_s <= 0:
        return float(rounds) if is_quiet(interference) else 0.0
    interruptions = interference.interruptions + interference.stolen_s / TICK_S
    return rounds * max(0.0, 1.0 - interruptions / running_s * latency_us / 1e6)


def merge_attempts(attempts: Sequence[Attempt]) -> Attempt:
    """Return the attempt to judge by: the quiet one with the fastest reference, else all in one."""
    quiet = [attempt for attempt in attempts if is_quiet(attempt.interference)]
    if quiet:
        return min(quiet, key=lambda attempt: attempt.reference_us)
    columns = zip(*(attempt.times_us for attempt in attempts), strict=True)
    pooled = [sum(column, ()) for column in columns]
    total = sum((attempt.interference for attempt in attempts), OtherWork())
    return Attempt(pooled, total)


def steady_rounds(attempt: Attempt) -> list[SteadyRounds]:
    """Return the fastest rounds of every chain, as many as are likely undisturbed."""
    return [keep_steady(times_us, attempt.interference) for times_us in attempt.times_us]


def keep_steady(times_us: Times, interference: OtherWork) -> SteadyRounds:
    """Return the rounds of a chain to keep; all of them where there were too few to choose."""
    if not times_us or is_quiet(interference):
        return SteadyRounds(times_us, steady=True)
    fastest_us = faster_half_us(sorted(times_us)[: 2 * LEAST_CLEAN])
    clean = clean_rounds(fastest_us, len(times_us), interference)
    if clean < LEAST_CLEAN:
        return SteadyRounds(times_us, steady=False)
    kept = tuple(sorted(times_us)[: round(clean)])
    if kept[(len(kept) - 1) // 2] > INTERRUPTED * kept[0]:  # fewer were clean than one can expect
        return SteadyRounds(times_us, steady=False)
    return SteadyRounds(kept, steady=True)


def may_stop(attempts: Sequence[Attempt], most: int) -> bool:
    """Return whether the last attempt, or all together, tell enough of every chain.

    Chains too long to become steady by `most` attempts are not waited for.
    """
    if is_quiet(attempts[-1].interference):
        return True
    merged = merge_attempts(attempts)
    if len(attempts) == 1 and merged.interference.waited_share > CROWDED:
        return False
    longer = [
        (times_us * most)[: len(times_us) * most // len(attempts)] for times_us in merged.times_us
    ]
    hopeful = steady_rounds(Attempt(longer, merged.interference))
    pairs = zip(steady_rounds(merged), hopeful, strict=True)
    return all(rounds.steady or not later.steady for rounds, later in pairs)
