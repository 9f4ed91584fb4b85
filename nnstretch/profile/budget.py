"""Seconds that a profile may take, all phases together, and what did not fit into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

FITTING = 0.10
SURROUNDINGS = 0.06
VALIDATION = 0.30
"""Shares of the budget; that of validation at most. The rest is sampling, probing included."""
CONTENTION_S = 4.0
"""What starting a second process and measuring beside it takes."""
NETWORK_S = 5.0
"""What a network takes to be captured, deployed and measured, until one was."""
CONVERTED_S = {"litert": 20.0}
"""The same by backends that convert networks for longer."""
GROW_FAMILY_S = 0.9
GROW_SAMPLE_S = 0.002
"""What trees of a family take to grow and be compared, and what each of its samples adds."""
Clock = Callable[[], float]


@dataclass
class Budget:
    """One budget while it is spent; what a phase leaves goes to those behind it."""

    total_s: float
    shares: Mapping[str, float]
    """By phase, in their order."""
    clock: Clock = perf_counter
    started_s: float = field(default=-1.0)
    """By the clock; now, where it is negative."""
    taken_s: dict[str, float] = field(default_factory=dict)
    """By phase."""
    skipped: list[str] = field(default_factory=list)
    """Measurements that the budget had no time for."""

    def __post_init__(self) -> None:
        if self.started_s < 0:
            self.started_s = self.clock()

    @property
    def planned_s(self) -> dict[str, float]:
        """Return the seconds planned for each phase."""
        return {phase: share * self.total_s for phase, share in self.shares.items()}

    @property
    def elapsed_s(self) -> float:
        """Return the seconds that are spent."""
        return self.clock() - self.started_s

    def left_s(self, phase: str) -> float:
        """Return the seconds until a phase must end; not below zero."""
        end_s = 0.0
        for name, planned_s in self.planned_s.items():
            end_s += planned_s
            if name == phase:
                break
        return max(0.0, end_s - self.elapsed_s)

    @contextmanager
    def spend(self, phase: str) -> Iterator[None]:
        """Count the time of a block for a phase."""
        started_s = self.clock()
        try:
            yield
        finally:
            spent_s = self.clock() - started_s
            self.taken_s[phase] = self.taken_s.get(phase, 0.0) + spent_s

    def allows(self, phase: str, expected_s: float, what: str) -> bool:
        """Return whether something still fits into a phase; it is noted where it does not."""
        if self.left_s(phase) >= expected_s:
            return True
        self.skipped.append(what)
        return False


def network_s(backend: str) -> float:
    """Return the seconds that a backend is expected to take for a network."""
    return CONVERTED_S.get(backend, NETWORK_S)


def plan_budget(
    total_s: float, networks: int, clock: Clock, started_s: float, backend: str = ""
) -> Budget:
    """Return a budget with time to validate on so many networks, as far as their share goes.

    None where it does not go as far as one; half of what that leaves may go to contention.
    """
    most_s, each_s = VALIDATION * total_s, network_s(backend)
    validation = min(most_s, each_s * networks) / total_s if most_s >= each_s else 0.0
    contention = 0.0 if validation else min(VALIDATION / 2, CONTENTION_S / total_s)
    surroundings = max(SURROUNDINGS, contention)
    shares = {
        "sampling": 1 - FITTING - surroundings - validation,
        "fitting": FITTING,
        "surroundings": surroundings,
        "validation": validation,
    }
    return Budget(total_s, shares, clock, started_s)
