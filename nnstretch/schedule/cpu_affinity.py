"""Pinning of threads to cores, and how a pinned thread waits: spinning or precise sleep."""

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
"""How long a spinning thread leaves Python's lock alone between two looks.

A thread that wants the lock while another has it sleeps, and waking costs 20 to 50 us on virtual
cores. A thread between two sub-graphs holds the lock for about as long, with cold caches: shorter
looks collide more often, longer ones see the end later.
"""
IDLE_BYTES, LEAST_BYTES, MOST_BYTES = 64 << 10, 8 << 10, 1 << 20
"""First size and bounds of the spin buffer; `crc32` of 5 KB and less keeps the lock."""


@cache
def spin_buffer() -> bytes:
    """Return bytes whose checksum takes `LOOK_S` here: it keeps a core awake without the lock."""
    probe = bytes(IDLE_BYTES)
    times_s = []
    for _ in range(5):
        begin_s = perf_counter()
        crc32(probe)
        times_s.append(perf_counter() - begin_s)
    size_bytes = round(IDLE_BYTES * LOOK_S / max(min(times_s), 1e-9))
    return bytes(min(MOST_BYTES, max(LEAST_BYTES, size_bytes)))


def sleep_until(deadline_s: float) -> None:
    """Sleep until shortly before a deadline of `perf_counter`, then yield the GIL until it."""
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
    """Return a core for each thread; None where the system has too few or does not say."""
    allowed = sorted(affinity() or ())
    return [{core} for core in allowed[:count]] if len(allowed) >= count else [None] * count


def affinity() -> set[int] | None:
    """Return the cores that the calling thread may use; None where the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def describe_cores(cores: Collection[int]) -> str:
    """Return cores as a refusal lists them: `core 0`, `cores 0, 2`."""
    return f"core{'s' if len(cores) > 1 else ''} {', '.join(map(str, sorted(cores)))}"


def pin(allowed: Collection[int] | None) -> None:
    """Pin the calling thread to these cores; a refusal of the system is no error."""
    if allowed is not None:
        with suppress(OSError):
            os.sched_setaffinity(0, allowed)
