"""Which core a thread runs on, and how it waits there for a moment or for another thread."""

from __future__ import annotations

import os
import select
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from time import perf_counter, sleep
from zlib import crc32

COARSE_S = 250e-6
"""How early the sleep before a deadline ends: the kernel wakes a thread 50 to 200 us late."""
LOOK_S = 40e-6
"""How long a thread that waits leaves Python's lock alone.

Whoever wants the lock while another has it sleeps, and to wake costs 20 to 50 us where cores are
virtual. Who ends a sub-graph and begins the next holds it for about as long, as neither its words
nor the runtime's are left in the core's caches: shorter looks collide more often, longer ones see
the end later.
"""
IDLE_BYTES, LEAST_BYTES, MOST_BYTES = 64 << 10, 8 << 10, 1 << 20
"""What is tried first, and bounds; a checksum of 5 KB and less does not let go of the lock."""


@cache
def spin_buffer() -> bytes:
    """Return bytes whose checksum takes this machine `LOOK_S`.

    It keeps a core awake, and without Python's lock.
    """
    tried, times_s = bytes(IDLE_BYTES), []
    for _ in range(5):
        begin_s = perf_counter()
        crc32(tried)
        times_s.append(perf_counter() - begin_s)
    return bytes(
        min(MOST_BYTES, max(LEAST_BYTES, round(IDLE_BYTES * LOOK_S / max(min(times_s), 1e-9))))
    )


def sleep_until(deadline_s: float) -> None:
    """Sleep to shortly before an absolute deadline, then hand the interpreter to others until it
    has come.
    """
    if (left_s := deadline_s - perf_counter()) > COARSE_S:
        sleep(left_s - COARSE_S)
    while perf_counter() < deadline_s:
        yield_gil()


def yield_gil() -> None:
    """Release the interpreter lock for about a microsecond; `sleep(0)` would take 80 on Linux."""
    if os.name == "posix":
        select.select((), (), (), 0)
    else:
        sleep(0)


def core_per_thread(count: int) -> list[set[int] | None]:
    """Return a core for each thread.

    None where the system does not let us choose or has fewer cores than threads.
    """
    allowed = sorted(affinity() or ())
    return [{core} for core in allowed[:count]] if len(allowed) >= count else [None] * count


def affinity() -> set[int] | None:
    """Return the cores that the calling thread may use; None where the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def pin(allowed: Collection[int] | None) -> None:
    """Keep the calling thread on these cores, so that two branches never share one.

    A refusal is no error.
    """
    if allowed is not None:
        with suppress(OSError):
            os.sched_setaffinity(0, allowed)
