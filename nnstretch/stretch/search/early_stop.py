"""What ends a search early: its time limit, or an interrupt."""

from __future__ import annotations

import time

from nnstretch.stretch.search.branch_and_bound import Progress


class OutOfTime(Exception):
    """The time limit of a search has passed."""


STOPS = (KeyboardInterrupt, OutOfTime)
"""What ends a search early."""


def until(deadline_s: float, progress: Progress | None) -> Progress:
    """Return a progress that raises OutOfTime once `time.perf_counter` is past the deadline."""

    def tell(what: str, done: int, of: int) -> None:
        if time.perf_counter() > deadline_s:
            raise OutOfTime
        if progress is not None:
            progress(what, done, of)

    return tell


def stop_name(stop: type[BaseException]) -> str:
    """Return what ended a search, in words."""
    return "interrupted" if stop is KeyboardInterrupt else "out of time"
