"""A machine on which nobody else works, or on which others do what a test says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise

from nnstretch.profile.activity.activity_watch import ActivityWatch
from nnstretch.profile.activity.machine_activity import (
    ActivityReading,
    CoreTimes,
    OtherWork,
)


def quiet_watch() -> ActivityWatch:
    """A watch that sees nothing and never waits."""
    reading = ActivityReading(0.0, 0.0, 0.0, 0, {})
    return ActivityWatch(lambda: reading, pause=lambda seconds: None)


def watch_of(seen: Sequence[OtherWork]) -> ActivityWatch:
    """A watch that sees these in turn, one for each measurement, and then nothing."""
    totals = map(reading_of, accumulate(seen, initial=OtherWork()))
    moments = chain.from_iterable(pairwise(totals))
    quiet = ActivityReading(0.0, 0.0, 0.0, 0, {})
    return ActivityWatch(lambda: next(moments, quiet), pause=lambda seconds: None)


def reading_of(total: OtherWork) -> ActivityReading:
    cores = {0: CoreTimes(total.beside_s, total.stolen_s)}
    return ActivityReading(total.wall_s, 0.0, total.waited_s, total.interruptions, cores)
