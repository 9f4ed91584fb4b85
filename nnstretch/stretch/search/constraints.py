"""The five rules of a branched segment, memory, and the limits of a whole network.

One definition for everything that asks: a trial (`constraints_of`), the arrays of a search
(`SegmentBounds`), the explanation of a refusal (`first_violation`) and a
study's distances (`SegmentBounds.checks`). Scalars are arrays of no axes.

Sources: the rules are NN-Stretch's (MobiSys'23 slides: cost-amortised meeting points, no
stragglers; its public script: capacity 0.4 and 0.8, latency 0.8). Its paper's alpha and beta were
never published, so they are settings here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from nnstretch.errors import BadInput
from nnstretch.files.checked import check_settings
from nnstretch.soc import Soc
from nnstretch.trial import SegmentCost, Trial, Violation

Quantity = Any
"""A number, or an array with one entry for each combination of branches."""


@dataclass(frozen=True, slots=True)
class SegmentRule:
    """Limit of one quantity of a branched segment."""

    name: str
    unit: str
    sense: Literal["at most", "at least"]

    def holds(self, demand: Quantity, limit: float) -> Quantity:
        """Return whether a quantity keeps its limit, entry by entry."""
        return demand <= limit if self.sense == "at most" else demand >= limit


COST_AMORTISED = SegmentRule("cost_amortised", "us", "at most")
"""A meeting point must cost little beside the layers it parallelizes."""
NO_STRAGGLERS = SegmentRule("no_stragglers", "us", "at most")
"""A branch that takes as long as the original segment makes concurrency pointless."""
MAIN_BRANCH = SegmentRule("main_branch", "MACs", "at least")
"""Accuracy needs one branch that is a network of its own."""
CAPACITY = SegmentRule("capacity", "MACs", "at least")
"""Accuracy needs enough work in all branches together."""
MAX_FORK = SegmentRule("max_fork", "MACs", "at most")
"""Branches that run apart for long never see what the others computed."""
SEGMENT_RULES = (COST_AMORTISED, NO_STRAGGLERS, MAIN_BRANCH, CAPACITY, MAX_FORK)


@dataclass(frozen=True, slots=True)
class SegmentDemand:
    """What a branched segment asks for, in the order of `SEGMENT_RULES`; us and MACs."""

    communication_us: Quantity
    slowest_us: Quantity
    largest_macs: Quantity
    macs: Quantity
    original_macs: Quantity


@dataclass(frozen=True, slots=True)
class SegmentBounds:
    """Limits of one branched segment, in the order of `SEGMENT_RULES`; us and MACs."""

    communication_us: float
    branch_us: float
    main_macs: float
    macs: float
    original_macs: float

    def amortises(self, communication_us: Quantity) -> Quantity:
        """Return where a meeting point costs little enough."""
        return COST_AMORTISED.holds(communication_us, self.communication_us)

    def keeps_pace(self, latency_us: Quantity) -> Quantity:
        """Return where a branch does not straggle."""
        return NO_STRAGGLERS.holds(latency_us, self.branch_us)

    def has_capacity(self, largest_macs: Quantity, macs: Quantity) -> Quantity:
        """Return where the largest branch and all together have the MACs they need."""
        return CAPACITY.holds(macs, self.macs) & MAIN_BRANCH.holds(largest_macs, self.main_macs)

    def may_fork(self, original_macs: Quantity) -> Quantity:
        """Return where branches may stay apart over so much of the original."""
        return MAX_FORK.holds(original_macs, self.original_macs)

    def useful_macs(self, largest_macs: Quantity, macs: Quantity) -> tuple[Quantity, Quantity]:
        """Return MACs up to their limits; what exceeds a limit makes no combination better."""
        return np.minimum(largest_macs, self.main_macs), np.minimum(macs, self.macs)

    def checks(self, demand: SegmentDemand) -> Iterator[tuple[SegmentRule, Quantity, float]]:
        """Yield each rule with what the segment asks for and the limit."""
        yield COST_AMORTISED, demand.communication_us, self.communication_us
        yield NO_STRAGGLERS, demand.slowest_us, self.branch_us
        yield MAIN_BRANCH, demand.largest_macs, self.main_macs
        yield CAPACITY, demand.macs, self.macs
        yield MAX_FORK, demand.original_macs, self.original_macs

    def violations(self, where: str, demand: SegmentDemand) -> Iterator[Violation]:
        """Yield the rules that a segment breaks, in the order of `SEGMENT_RULES`."""
        for rule, quantity, limit in self.checks(demand):
            if not rule.holds(quantity, limit):
                yield Violation(rule.name, where, quantity, limit, rule.unit, rule.sense)


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """Shares of the original segment that every branched segment must keep to."""

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
    max_fork: float = 1.0
    """Highest share of the original network's MACs between two meeting points."""

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("alpha", "beta", "max_fork"):
            value = getattr(self, name)
            if not value > 0:
                raise BadInput(f"{name} is {value}, search settings, it must be above 0")
        highest = {"min_depth": 1, "min_width": 1, "main_macs": 4, "segment_macs": 4, "max_fork": 1}
        for name, most in highest.items():
            value = getattr(self, name)
            if not 0 <= value <= most:
                raise BadInput(
                    f"{name} is {value}, search settings, it must be a share between 0 and {most}"
                )

    def bounds(
        self, original_us: float, original_macs: float, network_macs: float
    ) -> SegmentBounds:
        """Return the limits of a segment whose original layers take this long and do this work."""
        return SegmentBounds(
            self.alpha * original_us,
            self.beta * original_us,
            self.main_macs * original_macs,
            self.segment_macs * original_macs,
            self.max_fork * network_macs,
        )


@dataclass(frozen=True, slots=True)
class NetworkLimits:
    """Limits of the whole network, in absolute counts."""

    min_macs: float = 0.0
    max_macs: float = np.inf
    min_params: float = 0.0
    max_held: tuple[float, ...] = ()
    """Parameters that each of `SearchSpace.holders` may hold; empty: no limit."""
    min_meetings: int = 0
    """Branched segments, each of which ends where its branches meet."""

    @property
    def any(self) -> bool:
        """Return whether anything limits the whole network."""
        return (
            self.min_macs > 0
            or self.min_params > 0
            or self.max_macs < np.inf
            or bool(self.max_held)
            or self.min_meetings > 0
        )

    def keeps(
        self,
        macs: np.ndarray,
        params: np.ndarray,
        meetings: np.ndarray,
        params_held: np.ndarray,
    ) -> np.ndarray:
        """Return which plans keep the limits; `params_held`: `[plan, limited processor]`."""
        is_within = (macs >= self.min_macs) & (macs <= self.max_macs)
        is_within &= (params >= self.min_params) & (meetings >= self.min_meetings)
        return is_within & self.fits(params_held)

    def allow(self, trial: Trial) -> bool:
        """Return whether a plan keeps the limits, those on memory apart."""
        is_within = self.min_macs <= trial.macs <= self.max_macs
        meetings = len(branched_segments(trial))
        return is_within and trial.params >= self.min_params and meetings >= self.min_meetings

    def fits(self, params_held: np.ndarray) -> np.ndarray:
        """Return which plans keep the limits on memory."""
        if not self.max_held:
            return np.ones(len(params_held), dtype=bool)
        return np.asarray((params_held <= self.max_held).all(axis=1))


def branched_segments(trial: Trial) -> tuple[SegmentCost, ...]:
    """Return the segments of more than one branch."""
    return tuple(segment for segment in trial.segments if len(segment.branches) > 1)


def segment_demand(segment: SegmentCost) -> SegmentDemand:
    """Return what a predicted segment asks for."""
    macs = [branch.macs for branch in segment.branches]
    slowest_us = max(branch.latency_us for branch in segment.branches)
    return SegmentDemand(
        segment.communication_us, slowest_us, max(macs), sum(macs), segment.original_macs
    )


def original_macs(trial: Trial) -> int:
    """Return the MACs of the original network of a trial."""
    return sum(segment.original_macs for segment in trial.segments)


@dataclass(frozen=True, slots=True)
class SegmentConstraint:
    """Rules that every branched segment of a trial must keep."""

    limits: SegmentLimits
    rules: tuple[SegmentRule, ...]

    def __call__(self, trial: Trial) -> Violation | None:
        """Return the first violation of a trial, None where it keeps the rules."""
        names = {rule.name for rule in self.rules}
        network_macs = original_macs(trial)
        for segment in branched_segments(trial):
            bounds = self.limits.bounds(segment.original_us, segment.original_macs, network_macs)
            where = f"segment {segment.start} -> {segment.end}"
            for violation in bounds.violations(where, segment_demand(segment)):
                if violation.rule in names:
                    return violation
        return None


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Weights of all branches must fit a processor that has a limit."""

    soc: Soc

    def __call__(self, trial: Trial) -> Violation | None:
        """Return the first violation of a trial, None where it keeps the rule."""
        return self.violation(trial.weight_bytes(self.soc.element_bytes))

    def violation(self, weight_bytes: Mapping[str, int]) -> Violation | None:
        """Return the first processor of which the weights exceed the limit, None without one."""
        for name, size_bytes in weight_bytes.items():
            limit = self.soc.processor(name).memory_bytes
            if limit is not None and size_bytes > limit:
                return Violation("memory", f"processor {name}", size_bytes, limit, "bytes")
        return None


def constraints_of(limits: SegmentLimits, soc: Soc) -> tuple[SegmentConstraint | MemoryLimit, ...]:
    """Return the constraints that a search with these limits keeps."""
    return (
        SegmentConstraint(limits, (COST_AMORTISED,)),
        SegmentConstraint(limits, (NO_STRAGGLERS,)),
        SegmentConstraint(limits, (MAIN_BRANCH, CAPACITY)),
        SegmentConstraint(limits, (MAX_FORK,)),
        MemoryLimit(soc),
    )
