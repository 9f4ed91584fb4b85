"""Task: one sub-graph for one input, and what it needs first."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """One sub-graph for one input, and what it needs first."""

    name: str
    subgraph: str
    needs: frozenset[str] = frozenset()
    """Names of the tasks that must end before it starts."""
    processor: str | None = None
    """Where its plan placed it; None leaves the choice to the policy."""
    request: int = 0
    """Which input it belongs to."""
