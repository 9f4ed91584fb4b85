"""A plan with every number predicted, and why one is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from nnstretch.plan import Plan
from nnstretch.predictor import Estimate

AlternativeEstimates = Mapping[str, Estimate]
"""By processor, copies included.

Those that cannot run it, or that nobody measured doing so, are absent.
"""


@dataclass(frozen=True, slots=True)
class BranchCost:
    """The terms of one branch, in microseconds, contention included."""

    processor: str
    transfer_in_us: float
    compute_us: float
    transfer_out_us: float
    error_us: float
    macs: int
    params: int

    @property
    def latency_us(self) -> float:
        """Return the latency: copies and compute of a branch.

        The slowest branch, synchronisation and merge of a segment; the sum of a plan's segments.
        """
        return self.transfer_in_us + self.compute_us + self.transfer_out_us


@dataclass(frozen=True, slots=True)
class SegmentCost:
    """max over branches (transfer in + compute + transfer out) + synchronise + merge."""

    start: str
    end: str
    branches: tuple[BranchCost, ...]
    sync_us: float
    merge_us: float
    original_us: float
    """The original layers of this segment on the fastest of the plan's processors."""
    original_macs: int

    @property
    def latency_us(self) -> float:
        """Return the latency: copies and compute of a branch.

        The slowest branch, synchronisation and merge of a segment; the sum of a plan's segments.
        """
        return max(branch.latency_us for branch in self.branches) + self.sync_us + self.merge_us

    @property
    def communication_us(self) -> float:
        """Return what meeting costs: everything but compute, on the branch that pays most."""
        copies = max(branch.transfer_in_us + branch.transfer_out_us for branch in self.branches)
        return copies + self.sync_us + self.merge_us


@dataclass(frozen=True, slots=True)
class Trial:
    """A plan and what it is predicted to cost."""

    plan: Plan
    segments: tuple[SegmentCost, ...]
    macs: int
    params: int
    alternatives: tuple[tuple[AlternativeEstimates, ...], ...] = field(
        default=(), repr=False, compare=False
    )
    """By segment and branch, and the merge last where branches meet.

    What it would take on other processors. Empty where nobody asked.
    """

    @property
    def latency_us(self) -> float:
        """Return the latency: copies and compute of a branch.

        The slowest branch, synchronisation and merge of a segment; the sum of a plan's segments.
        """
        return sum(segment.latency_us for segment in self.segments)

    def weight_bytes(self, element_bytes: int) -> dict[str, int]:
        """Return the bytes of weights that each processor holds: those of its branches."""
        size_bytes: dict[str, int] = {}
        for segment in self.segments:
            for branch in segment.branches:
                before = size_bytes.get(branch.processor, 0)
                size_bytes[branch.processor] = before + branch.params * element_bytes
        return size_bytes


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a trial is refused, in numbers that a reader can check."""

    rule: str
    where: str
    demand: float
    limit: float
    unit: str
    sense: Literal["at most", "at least"] = "at most"
    """Whether the limit is an upper or a lower one."""

    def __str__(self) -> str:
        demand, limit = f"{self.demand:.4g} {self.unit}", f"{self.limit:.4g} {self.unit}"
        if self.sense == "at least":
            return f"{self.rule}: {self.where} has {demand}, limit at least {limit}"
        return f"{self.rule}: {self.where} needs {demand}, limit {limit}"
