"""How long decisions take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DecisionTimes:
    """How long the policy has taken to decide, on this host."""

    rounds: int = 0
    tasks: int = 0
    """Tasks that were chosen."""
    total_s: float = 0.0
