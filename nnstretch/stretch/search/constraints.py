"""Why a segment is refused.

Pure questions about a trial, and the same limits for whole arrays of them.

Sources: the rules are NN-Stretch's (MobiSys'23 slides: cost-amortised meeting points, no
stragglers; its public script: capacity 0.4 and 0.8, latency 0.8). Its paper's alpha and beta were
never published, so they are settings here.
"""

from __future__ import annotations

from dataclasses import dataclass

from nnstretch.errors import BadInput
from nnstretch.soc import Soc
from nnstretch.trial import SegmentCost, Trial, Violation


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """What every branched segment must keep to."""

    alpha: float = 0.5
    """Communication may cost this share of the original segment's latency."""
    beta: float = 0.8
    """A branch may take this share of the original segment's latency on the fastest processor."""
    min_depth: float = 0.3
    """Lowest share of blocks a branch keeps."""
    min_width: float = 0.2
    """Lowest share of channels a branch keeps."""
    main_macs: float = 0.4
    """Lowest share of the original segment's MACs in the largest branch."""
    segment_macs: float = 0.8
    """Lowest share of the original segment's MACs in all branches together."""

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            if not getattr(self, name) > 0:
                raise BadInput(
                    f"{name} is {getattr(self, name)}, search settings, it must be above 0"
                )
        for name, most in (
            ("min_depth", 1),
            ("min_width", 1),
            ("main_macs", 4),
            ("segment_macs", 4),
        ):
            if not 0 <= getattr(self, name) <= most:
                raise BadInput(
                    f"{name} is {getattr(self, name)}, search settings, it must be a share between"
                    f" 0 and {most}"
                )


def branched_segments(trial: Trial) -> tuple[SegmentCost, ...]:
    """Return the segments of more than one branch."""
    return tuple(segment for segment in trial.segments if len(segment.branches) > 1)


def segment_name(segment: SegmentCost) -> str:
    """Return how messages name a segment."""
    return f"segment {segment.start} -> {segment.end}"


@dataclass(frozen=True, slots=True)
class CostAmortised:
    """A meeting point must cost little beside the layers it parallelises."""

    alpha: float

    def __call__(self, trial: Trial) -> Violation | None:
        """Return the first violation of a trial, None where it keeps the rule."""
        for segment in branched_segments(trial):
            limit_us = self.alpha * segment.original_us
            if segment.communication_us > limit_us:
                return Violation(
                    "cost_amortised",
                    segment_name(segment),
                    segment.communication_us,
                    limit_us,
                    "us",
                )
        return None


@dataclass(frozen=True, slots=True)
class NoStragglers:
    """A branch that takes as long as the original segment makes concurrency pointless."""

    beta: float

    def __call__(self, trial: Trial) -> Violation | None:
        """Return the first violation of a trial, None where it keeps the rule."""
        for segment in branched_segments(trial):
            slowest = max(branch.latency_us for branch in segment.branches)
            if slowest > self.beta * segment.original_us:
                return Violation(
                    "no_stragglers",
                    segment_name(segment),
                    slowest,
                    self.beta * segment.original_us,
                    "us",
                )
        return None


@dataclass(frozen=True, slots=True)
class CapacityLimit:
    """Accuracy needs one branch that is a network of its own, and enough work in all of them."""

    main_macs: float
    segment_macs: float

    def __call__(self, trial: Trial) -> Violation | None:
        """Return the first violation of a trial, None where it keeps the rule."""
        for segment in branched_segments(trial):
            macs = [branch.macs for branch in segment.branches]
            if max(macs) < self.main_macs * segment.original_macs:
                return Violation(
                    "main_branch",
                    segment_name(segment),
                    max(macs),
                    self.main_macs * segment.original_macs,
                    "MACs",
                    "at least",
                )
            if sum(macs) < self.segment_macs * segment.original_macs:
                return Violation(
                    "capacity",
                    segment_name(segment),
                    sum(macs),
                    self.segment_macs * segment.original_macs,
                    "MACs",
                    "at least",
                )
        return None


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Weights of all branches must fit a processor that has a limit."""

    soc: Soc

    def __call__(self, trial: Trial) -> Violation | None:
        """Return the first violation of a trial, None where it keeps the rule."""
        bytes_held: dict[str, float] = {}
        for segment in trial.segments:
            for branch in segment.branches:
                bytes_held[branch.processor] = (
                    bytes_held.get(branch.processor, 0) + branch.params * self.soc.element_bytes
                )
        for name, size in bytes_held.items():
            limit = self.soc.processor(name).memory_bytes
            if limit is not None and size > limit:
                return Violation("memory", f"processor {name}", size, limit, "bytes")
        return None


def constraints_of(
    limits: SegmentLimits, soc: Soc
) -> tuple[CostAmortised | NoStragglers | CapacityLimit | MemoryLimit, ...]:
    """Return the constraints that a search with these limits keeps."""
    return (
        CostAmortised(limits.alpha),
        NoStragglers(limits.beta),
        CapacityLimit(limits.main_macs, limits.segment_macs),
        MemoryLimit(soc),
    )
