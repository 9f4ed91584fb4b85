"""What one worker of a pipeline has done, and what it is called."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

RECENT = 1024
"""Service times that are kept of every worker."""


@dataclass(slots=True)
class WorkerRecord:
    """What one worker has done so far; written by its thread alone while it has items."""

    items: int = 0
    failed: int = 0
    late: int = 0
    """Items whose numbers took longer than their time, where stages are emulated."""
    busy_s: float = 0.0
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    spans: deque[tuple[float, float, int]] = field(default_factory=deque)
    """Start, end and item of the last ones."""

    def restart(self) -> None:
        """Count from now on; the spans are kept."""
        self.items = self.failed = self.late = 0
        self.busy_s = 0.0
        self.recent_s.clear()


def worker_name(processors: tuple[str, ...]) -> str:
    """Return the name of a worker in traces and statistics: its processors, joined."""
    return "+".join(processors)
