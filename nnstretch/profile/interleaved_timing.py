"""Timing by taking turns.

Between two runs of one chain every other runs, so that its weights leave the near caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns

WARM_UP = 2
LEAST_US = 0.05
"""A run that costs less than the harness around it varies."""


def wall_us(run: Callable[[], object]) -> float:
    """Return the wall time of a run, us."""
    start = perf_counter_ns()
    run()
    return (perf_counter_ns() - start) / 1000


def time_interleaved(
    runs: Sequence[Callable[[], object] | None],
    fresh: Sequence[Callable[[], object]],
    rounds: int,
    framing_us: float = 0.0,
    clock_us: Callable[[Callable[[], object]], float] = wall_us,
) -> list[tuple[float, ...]]:
    """Time every run in every round, without `framing_us`, which the harness adds; us.

    () where there is no run.

    `fresh[i]` writes what `runs[i]` reads: a kernel in a network finds its inputs in the near
    caches. It is not timed.
    """
    times: list[list[float]] = [[] for _ in runs]
    for turn in range(WARM_UP + rounds):
        for run, prepare, time in zip(runs, fresh, times, strict=True):
            if run is not None:
                prepare()
                taken_us = clock_us(run)
                if turn >= WARM_UP:
                    time.append(max(LEAST_US, taken_us - framing_us))
    return [tuple(time) for time in times]
