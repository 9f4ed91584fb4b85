"""An arena that watches when each tensor is written, read and freed while a schedule runs."""

from __future__ import annotations

from collections import Counter

import pytest

import nnstretch.accelerate.execute
from nnstretch.accelerate.engines.placed_program import PlacedProgram
from nnstretch.accelerate.engines.program import ChipStep
from nnstretch.accelerate.execute import Arena


class LoggedArena(Arena):
    """Arena that refuses reads before a write and after a free, and counts the frees."""

    def __init__(self, placed: PlacedProgram, cores: int) -> None:
        super().__init__(placed, cores)
        self.written = {name for name in placed.program.storages if name.startswith("in/")}
        self.reads = 0
        self.frees: Counter[str] = Counter()

    def take(self, step: ChipStep) -> None:
        for reading in step.readings:
            assert reading.storage in self.written, (
                f"{reading.storage} is read before it is written"
            )
            assert not self.frees[reading.storage], f"{reading.storage} is read after it is freed"
        self.reads += len(step.readings)
        assert not self.frees[step.writes], f"{step.writes} is written after it is freed"
        super().take(step)
        self.written.add(step.writes)

    def release(self, step: ChipStep) -> None:
        self.frees.update(self.dying.get(step.number, ()))
        super().release(step)

    def require_one_free_each(self) -> None:
        """Check that what is no end of the network was written and freed once, and no end ever."""
        storages = self.placed.program.storages.values()
        assert self.written == {storage.name for storage in storages}
        assert self.frees == Counter(s.name for s in storages if not s.fixed)


def log_arenas(monkeypatch: pytest.MonkeyPatch) -> list[LoggedArena]:
    """Let `execute` make logged arenas; return the list that they are added to."""
    made: list[LoggedArena] = []

    def logged(placed: PlacedProgram, cores: int) -> LoggedArena:
        made.append(LoggedArena(placed, cores))
        return made[-1]

    monkeypatch.setattr(nnstretch.accelerate.execute, "Arena", logged)
    return made
