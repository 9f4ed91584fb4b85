"""How long a policy takes to decide on this host, by how many tasks wait."""

from __future__ import annotations

from typing import Any


class RoundTimes:
    """Mean time of a round, in classes of waiting tasks: 1, 2 to 3, 4 to 7, and so on."""

    def __init__(self) -> None:
        self._classes: dict[int, list[float]] = {}
        """Rounds, waiting tasks and seconds, by the binary digits of how many waited."""

    def on_round(self, waited: int, began_s: float, ended_s: float) -> None:
        """Hear of a round."""
        counts = self._classes.setdefault(waited.bit_length(), [0, 0, 0.0])
        counts[0] += 1
        counts[1] += waited
        counts[2] += ended_s - began_s

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each class, from few waiting tasks to many."""
        rows: list[dict[str, Any]] = []
        for _, (rounds, waited, total_s) in sorted(self._classes.items()):
            mean_us = total_s * 1e6 / rounds
            rows.append({"waiting": waited / rounds, "rounds": rounds, "round_us": mean_us})
        return rows
