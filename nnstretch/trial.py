"""A plan with every number predicted, and why one is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain
from typing import Literal

from nnstretch.plan import Plan
from nnstretch.predictor import Estimate

AlternativeEstimates = Mapping[str, Estimate]
"""Estimates by processor, transfers and synchronization included; those that cannot run it are
absent.
"""


@dataclass(frozen=True, slots=True)
class BranchCost:
    """Predicted terms of one branch, contention included."""

    processor: str
    transfer_in_us: float
    compute_us: float
    transfer_out_us: float
    error_us: float
    macs: int
    params: int

    @property
    def latency_us(self) -> float:
        """Return the time of copies and compute."""
        return self.transfer_in_us + self.compute_us + self.transfer_out_us


@dataclass(frozen=True, slots=True)
class SegmentCost:
    """Predicted terms of a segment: the slowest branch, then synchronization and merge."""

    start: str
    end: str
    branches: tuple[BranchCost, ...]
    sync_us: float
    merge_us: float
    original_us: float
    """Latency of the segment's original layers on the fastest of the plan's processors."""
    original_macs: int

    @property
    def processors(self) -> tuple[str, ...]:
        """Return the processor of each branch."""
        return tuple(branch.processor for branch in self.branches)

    @property
    def latency_us(self) -> float:
        """Return the time of the slowest branch, synchronization and merge."""
        return max(branch.latency_us for branch in self.branches) + self.sync_us + self.merge_us

    @property
    def communication_us(self) -> float:
        """Return everything but compute: the largest transfers, synchronization and merge."""
        copies = max(branch.transfer_in_us + branch.transfer_out_us for branch in self.branches)
        return copies + self.sync_us + self.merge_us


@dataclass(frozen=True, slots=True)
class Trial:
    """A plan with its predicted cost."""

    plan: Plan
    segments: tuple[SegmentCost, ...]
    macs: int
    params: int
    alternatives: tuple[tuple[AlternativeEstimates, ...], ...] = field(
        default=(), repr=False, compare=False
    )
    """Cost on other processors: `[segment][branch]`, the merge last; empty where not asked for."""
    soc: str = field(default="", repr=False, compare=False)
    """Chip that it is predicted on; empty where nobody said."""

    @property
    def latency_us(self) -> float:
        """Return the sum of the segments' latencies."""
        return sum(segment.latency_us for segment in self.segments)

    @property
    def compute_us(self) -> float:
        """Return what the branches compute one after another, copies left out."""
        branches = chain.from_iterable(segment.branches for segment in self.segments)
        return sum(branch.compute_us for branch in branches)

    def weight_bytes(self, element_bytes: int) -> dict[str, int]:
        """Return the bytes of the branches' weights by processor."""
        size_bytes: dict[str, int] = {}
        for segment in self.segments:
            for branch in segment.branches:
                before = size_bytes.get(branch.processor, 0)
                size_bytes[branch.processor] = before + branch.params * element_bytes
        return size_bytes

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        html: str = import_module("nnstretch.report.notebook").trial_html(self)
        return html


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
