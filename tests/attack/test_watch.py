"""The watch itself: what it calls a finding, and what it does not."""

from __future__ import annotations

import signal
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path

import pytest
from attack.watch import GROWTH_BYTES, watch, watch_command

MORE = GROWTH_BYTES + (128 << 20)
"""More than what tests of before may still give back meanwhile."""


def touched(size: int) -> mmap:
    """Return memory of the system's own, none that this process freed before."""
    memory = mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS)
    memory.write(b"1" * size)
    return memory


@pytest.mark.slow
def test_memory_that_every_run_adds_is_found() -> None:
    kept: list[mmap] = []

    def case() -> list[str]:
        kept.append(touched(MORE))
        return []

    [finding] = watch(case, "a leak")
    assert "MiB more in every run" in finding.what


@pytest.mark.slow
def test_memory_that_comes_once_is_no_finding() -> None:
    cache: dict[str, mmap] = {}

    def case() -> list[str]:
        cache.setdefault("library", touched(MORE))
        return []

    assert watch(case, "a cache") == []
    assert len(cache) == 1


def test_what_serves_leaves_the_signals_of_this_process_as_they_were(tmp_path: Path) -> None:
    def serves(_: list[str]) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        return 0

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert watch_command(serves, ["serve"], tmp_path) == []
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
