"""Costs of one branch of a segment option, and of combinations of branches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from nnstretch.stretch.cost.cost_arrays import Array


class OptionCosts(NamedTuple):
    """Costs of one branch that reads one tensor, flat over (depth, width).

    Or of its first unit, over its output widths.
    """

    us: Array
    """Infinite where a depth and a width do not go together."""
    macs: Array
    params: Array


@dataclass(frozen=True)
class BranchCombinations:
    """Combinations of branches of one segment option that reads one width."""

    latency_us: Array
    macs: Array
    params: Array
    width: Array
    """Merged width."""
    params_held: Array
    """Parameters on processors with a memory limit: `[combination, processor]`."""
    options: tuple[Array, ...]
    """For every branch, the number of its (depth, width)."""

    def __len__(self) -> int:
        return len(self.latency_us)

    def take(self, rows: Array) -> BranchCombinations:
        """Return the chosen rows."""
        return BranchCombinations(
            self.latency_us[rows],
            self.macs[rows],
            self.params[rows],
            self.width[rows],
            self.params_held[rows],
            tuple(option[rows] for option in self.options),
        )
