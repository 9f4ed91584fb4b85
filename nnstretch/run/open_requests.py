"""What a server keeps of requests, and what its clients tell the scheduling thread."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf
from typing import Any

from nnstretch.run.loaded_network import Values


class Reply(Future[Any]):
    """The answer to come, and how it came about, which is known once it is there."""

    plan: str | None = None
    """By which plan it was computed, or begun; None where it was never begun."""
    replaced: int = 0
    """Tasks of it that ran elsewhere than planned."""
    latency_ms: float | None = None
    """From its arrival at the loop to its end, on the server's clock."""


@dataclass(slots=True)
class OpenRequest:
    """A request, until it is answered."""

    values: Values
    reply: Reply
    deadline_us: float = inf


@dataclass(slots=True)
class ServerCounters:
    """Counts of all requests since the server began."""

    submitted: int = 0
    answered: int = 0
    failed: int = 0
    """Ended with an error: a missed deadline, a processor or a task that failed, the end of the
    server.
    """
    cancelled: int = 0
    replaced: int = 0
    """Tasks that ran elsewhere than planned."""
    plans: Counter[str] = field(default_factory=Counter)
    """Requests begun, by plan."""

    @property
    def lost(self) -> int:
        """Return how many requests never ended; 0 once the server is closed."""
        return self.submitted - self.answered - self.failed - self.cancelled


@dataclass(frozen=True, slots=True)
class SubmitMessage:
    """A request that a client's thread hands to the scheduling thread."""

    request: int


@dataclass(frozen=True, slots=True)
class CancelMessage:
    """Asks the scheduling thread to cancel a request."""

    request: int


@dataclass(frozen=True, slots=True)
class CloseMessage:
    """Asks the scheduling thread to end."""


@dataclass(slots=True)
class OpenRequests:
    """Requests that have no answer yet, by number; written by clients and the scheduling thread."""

    entries: dict[int, OpenRequest] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
