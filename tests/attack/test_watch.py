"""The watch itself: what it calls a finding, and what it does not."""

from __future__ import annotations

from mmap import mmap

from attack.watch import GROWTH_BYTES, watch

MORE = GROWTH_BYTES + (16 << 20)
"""More than malloc ever keeps to use again: it is new memory, and leaves with what it held."""


def touched(size: int) -> mmap:
    """Return memory of the system's own, none that this process freed before."""
    memory = mmap(-1, size)
    memory.write(b"1" * size)
    return memory


def test_memory_that_every_run_adds_is_found() -> None:
    kept: list[mmap] = []

    def case() -> list[str]:
        kept.append(touched(MORE))
        return []

    [finding] = watch(case, "a leak")
    assert "MiB more in every run" in finding.what


def test_memory_that_comes_once_is_no_finding() -> None:
    cache: dict[str, mmap] = {}

    def case() -> list[str]:
        cache.setdefault("library", touched(MORE))
        return []

    assert watch(case, "a cache") == []
    assert len(cache) == 1
