"""What became of the requests of an application."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from nnstretch.files.workload.service_record import ENDS, RecordedRequest
from nnstretch.schedule.simulation.latencies import Latencies


@dataclass(slots=True)
class ApplicationStatistics:
    """Counts and times of requests that have ended; times in microseconds of the server's clock."""

    accepted: int = 0
    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDS, 0))
    """By how they ended."""
    latencies: Latencies = field(default_factory=Latencies)
    """Of answered requests, from arrival to end."""
    failed_us: float = 0.0
    """Sum of the times of requests that ended without an answer, refused ones left out."""
    queue_us: float = 0.0
    """Sum over answered requests of the time in which none of their tasks ran: before the first,
    between tasks, behind the last.
    """
    compute_us: float = 0.0
    """Sum over answered requests of the time in which tasks of theirs ran, once for those that ran
    at the same time, so that both sums together are the latencies.
    """
    last_s: float = 0.0
    """When the last one was answered, by the system's clock."""

    @property
    def answered(self) -> int:
        """Return how many requests were answered."""
        return self.ends["answered"]

    @property
    def failed(self) -> int:
        """Return how many ended with an error."""
        return self.ends["missed"] + self.ends["dropped"] + self.ends["failed"]

    @property
    def accepted_and_unanswered(self) -> int:
        """Return how many requests were accepted and ended without an answer."""
        return self.failed + self.ends["cancelled"]

    @property
    def lost(self) -> int:
        """Return how many have not ended; 0 once the server is closed."""
        return self.accepted - self.answered - self.accepted_and_unanswered

    def add(self, request: RecordedRequest) -> None:
        """Hear of a request that has ended."""
        self.ends[request.end] += 1
        if request.end == "refused":
            return
        latency_us = request.ended_us - request.arrived_us
        if request.end != "answered":
            self.failed_us += latency_us
            return
        self.last_s = time.time()
        self.latencies.add(latency_us)
        running_us = request.running_us
        self.compute_us += running_us
        self.queue_us += latency_us - running_us
