"""How threads sleep until something moves, and how they are woken."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter

Bell = queue.SimpleQueue[None]


@dataclass(slots=True, eq=False)
class Wakeup:
    """Threads that sleep until a counter moves or a server has room.

    Lost-wakeup guard: the thread that changes the state stores it, then reads `asleep`; a waiting
    thread adds its bell to `asleep`, then reads the state. At least one sees the other's store. A
    Ctrl-C at any place removes the bell of the thread that waited, and no other.
    """

    asleep: deque[Bell] = field(default_factory=deque)
    """A bell for each thread that sleeps, the longest asleep first."""
    spare: list[Bell] = field(default_factory=list)

    def wait(self, is_ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Sleep until `is_ready` holds; return False where it did not in time."""
        until_s = None if timeout_s is None else perf_counter() + timeout_s
        bell = self.spare.pop() if self.spare else queue.SimpleQueue()
        try:
            self.asleep.append(bell)
            is_there = self._sleep(bell, is_ready, until_s)
            self._remove(bell)
            self.spare.append(bell)  # rung meanwhile, it has its next user look once more
        except BaseException:
            self._remove(bell)
            raise
        return is_there

    def ring(self) -> None:
        """Wake all threads that sleep; until they have looked, nobody rings them once more."""
        for bell in tuple(self.asleep):
            try:
                self._remove(bell)
                bell.put(None)
            except BaseException:  # Ctrl-C between the two: rung twice is better than never
                bell.put(None)
                raise

    def ring_first(self) -> None:
        """Wake the thread that has slept longest, which has to `ring` where it has no use for it.

        For one thread, which no Ctrl-C reaches: it would lose the bell.
        """
        if self.asleep:
            with suppress(IndexError):  # its thread has just left
                self.asleep.popleft().put(None)

    def _sleep(self, bell: Bell, is_ready: Callable[[], bool], until_s: float | None) -> bool:
        while not is_ready():
            if until_s is None:
                bell.get()
            elif (left_s := until_s - perf_counter()) > 0:
                with suppress(queue.Empty):
                    bell.get(timeout=left_s)
            else:
                return False
            if bell not in self.asleep:
                self.asleep.append(bell)
        return True

    def _remove(self, bell: Bell) -> None:
        if bell in self.asleep:
            try:  # noqa: SIM105 (`suppress` takes longer than all else here)
                self.asleep.remove(bell)
            except ValueError:  # it was rung just now
                pass
