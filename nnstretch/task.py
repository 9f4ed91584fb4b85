"""Task: one sub-graph for one input, and what it needs first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

WorkKey = str | tuple[str, str]
"""What a task computes: a sub-graph, with its plan before it where there are several plans."""
TaskTimes = Mapping[tuple[WorkKey, str], float]
"""Microseconds by (what is computed, processor)."""


@dataclass(frozen=True, slots=True)
class Task:
    """One sub-graph for one input, and what it needs first."""

    name: str
    """Unique among the tasks of a schedule; for `needs` and messages, nothing is read out of it."""
    subgraph: str
    needs: frozenset[str] = frozenset()
    """Names of the tasks that must end before it starts."""
    processor: str | None = None
    """Where its plan placed it; None leaves the choice to the policy."""
    request: int = 0
    """Which input it belongs to."""
    plan: str = ""
    """Which of several plans it belongs to; empty where there is one."""
    priority: int = 0
    """Of several that wait, the greater goes first under a policy of priority classes."""
    deadline_us: float = inf
    """When its request has to have ended."""

    @property
    def work(self) -> WorkKey:
        """Return the key of its costs."""
        return (self.plan, self.subgraph) if self.plan else self.subgraph


def work_key(subgraph: str, plan: str = "") -> WorkKey:
    """Return the key of a sub-graph's costs."""
    return (plan, subgraph) if plan else subgraph


def task_name(subgraph: str, request: int, plan: str = "") -> str:
    """Return the name of a task: `SUBGRAPH#REQUEST`, its plan before it where there are several."""
    return f"{plan}/{subgraph}#{request}" if plan else f"{subgraph}#{request}"
