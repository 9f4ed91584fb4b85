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
    """Threads that may sleep until something moves, a counter or the room of a server.

    Lost-wakeup guard: who moves it does so first, then looks at `asleep`; who waits adds its bell
    to `asleep`, then looks at what it waits for. At least one sees the other's store. Ringing takes
    bells out, so what an interrupted thread left behind is rung once and gone.
    """

    asleep: deque[Bell] = field(default_factory=deque)
    """A bell for each thread that sleeps, the longest asleep first."""
    spare: list[Bell] = field(default_factory=list)

    def wait(self, is_ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Sleep until `is_ready` holds; return False where it did not in time."""
        until_s = None if timeout_s is None else perf_counter() + timeout_s
        bell = self.spare.pop() if self.spare else queue.SimpleQueue()
        self.asleep.append(bell)
        try:
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
        finally:
            try:  # noqa: SIM105 (`suppress` takes longer than all else here)
                self.asleep.remove(bell)
            except ValueError:  # it was rung meanwhile; its next user looks once more than needed
                pass
            self.spare.append(bell)
        return True

    def ring(self) -> None:
        """Wake all threads that sleep."""
        for _ in range(len(self.asleep)):
            self.ring_first()

    def ring_first(self) -> None:
        """Wake the thread that has slept longest; who has no use for it rings on."""
        try:  # noqa: SIM105
            self.asleep.popleft().put(None)
        except IndexError:  # somebody else has rung it
            pass
