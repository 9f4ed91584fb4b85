"""What a workload says: applications with their arrivals, the pool of processors, the policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from nnstretch.files.limits import Length, OneOf, Range, file_key
from nnstretch.plan import Name

MOST_APPLICATIONS = 1000
Milliseconds = Annotated[float, Range(0, 1e12)]
Positive = Annotated[float, Range(above=0, most=1e12)]
LEAST_GAP_MS = 1e-9
"""Less than a computer can tell apart, and far from where divisions overflow."""
MOST_INSTANCES = 1_000_000_000
Instances = Annotated[int, Range(1, MOST_INSTANCES)]
Cut = Literal["whole", "segments", "layers"] | Annotated[int, Range(1, 1000)]


@dataclass(frozen=True, slots=True)
class ArrivalSettings:
    """When instances of an application arrive: one way of four."""

    period_ms: Positive | None = None
    """Fixed: the first at once, or after a period where `first` says so."""
    mean_gap_ms: Positive | None = field(default=None, metadata=file_key("exponential_ms"))
    """Gaps of an exponential distribution with this mean."""
    times_ms: Annotated[tuple[Milliseconds, ...], Length(1, 1_000_000)] | None = None
    csv: Name | None = None
    """A file with a time in ms in the first column of each line, beside the workload."""
    first: Annotated[str, OneOf(("now", "gap", "period"))] | None = None
    """When the first one arrives: at 0, after a gap, or after a period or mean gap as in CEDR.

    Where absent, at 0 of a period and after a gap of an exponential distribution.
    """

    def __post_init__(self) -> None:
        ways = {
            "period_ms": self.period_ms,
            "exponential_ms": self.mean_gap_ms,
            "times_ms": self.times_ms,
            "csv": self.csv,
        }
        named = [name for name, value in ways.items() if value is not None]
        if len(named) != 1:
            listed = " and ".join(named) or "nothing"
            raise ValueError(f"{listed}, arrivals are one of {', '.join(ways)}")
        gap_ms = self.period_ms if self.period_ms is not None else self.mean_gap_ms
        if gap_ms is not None and gap_ms < LEAST_GAP_MS:
            raise ValueError(f"arrivals every {gap_ms:.4g} ms, needed are at least {LEAST_GAP_MS}")
        if self.first is not None and gap_ms is None:
            raise ValueError(
                f"first is {self.first} beside {named[0]}, these say when the first one arrives"
            )
        if self.times_ms is not None:
            check_order(self.times_ms)


@dataclass(frozen=True, slots=True)
class ApplicationSettings:
    """One application of a workload."""

    name: Name
    arrivals: ArrivalSettings | None = None
    """None where clients bring their requests."""
    model: Name | None = None
    """A network, a plan, a bundle, or a task graph (.json, .stg)."""
    costs_ms: Annotated[dict[Name, Milliseconds], Length(1, 1000)] | None = None
    """Instead of a model: one task, with its time by processor or type."""
    cut: Cut = "whole"
    """How finely a network is cut into tasks."""
    placement: Annotated[str, OneOf(("free", "kept"))] = "free"
    """Whether the places that a plan or bundle gives its sub-graphs, or their copies, are kept."""
    instances: Instances | None = None
    """At most as many as the arrivals list, where they do; the first ones then arrive."""
    duration_ms: Positive | None = None
    """Arrivals up to then; where neither is given, as many as the arrivals list."""
    deadline_ms: Positive | None = None
    """From each arrival."""
    priority: Annotated[int, Range(-1_000_000, 1_000_000)] = 0
    """Of several that wait, the greater goes first."""
    queue_limit: Instances | None = None
    """Open instances; one more is refused."""

    def __post_init__(self) -> None:
        if (self.model is None) == (self.costs_ms is None):
            both = "neither model nor" if self.model is None else "both model and"
            raise ValueError(f"{both} costs_ms, application {self.name} has one of them")
        if self.arrivals is None:
            return
        listed = self.arrivals.times_ms is not None or self.arrivals.csv is not None
        if not listed and self.instances is None and self.duration_ms is None:
            raise ValueError(
                f"neither instances nor duration_ms, application {self.name} would never end"
            )
        gap_ms = self.arrivals.period_ms or self.arrivals.mean_gap_ms
        if gap_ms and self.instances is None and (self.duration_ms or 0) / gap_ms > MOST_INSTANCES:
            raise ValueError(
                f"arrivals every {gap_ms:.4g} ms for {self.duration_ms:.4g} ms, application"
                f" {self.name} would have more than {MOST_INSTANCES} instances"
            )


@dataclass(frozen=True, slots=True)
class Durations:
    """How long tasks take, beside what their costs say."""

    kind: Annotated[str, OneOf(("exact", "spread", "exponential", "measured"))] = "exact"
    """measured: drawn from the samples of `costs`, slower beside other work."""
    spread: Annotated[float, Range(0, 10)] = 0.0
    """Standard deviation of a log-normal factor of mean 1."""

    def __post_init__(self) -> None:
        if self.spread and self.kind != "spread":
            raise ValueError(
                f"spread is {self.spread:g} beside kind: {self.kind}, write kind: spread"
            )


@dataclass(frozen=True, slots=True)
class WorkloadFile:
    """Applications that arrive on a pool of processors."""

    applications: Annotated[tuple[ApplicationSettings, ...], Length(1, MOST_APPLICATIONS)]
    format: Annotated[int, Range(1, 1)] = 1
    soc: Name | None = None
    pool: Annotated[dict[Name, Annotated[int, Range(1, 64)]], Length(1, 64)] | None = None
    """How many of each processor; all of the chip's, one each, where absent."""
    policy: Name = "eft"
    queueing: bool = True
    """Whether busy processors may be given work; without, only idle ones get any."""
    seed: Annotated[int, Range(0, (1 << 63) - 1)] = 0
    durations: Durations = Durations()
    costs: Name | Annotated[tuple[Name, ...], Length(1, MOST_APPLICATIONS)] | None = None
    """Tables that `simulate measure` or a C++ runner wrote, beside the workload; they go before
    what is predicted.
    """
    correction: bool = True
    """Whether costs are corrected by what tasks took."""
    wrong_costs: Annotated[float, Range(1, 1000)] = 1.0
    """Every cost that the policy knows is off by a random factor up to this, either way."""
    handover_ms: Milliseconds = 0.0
    """How long the host takes to hand a task over."""
    factors: Annotated[dict[Name, Annotated[float, Range(1, 1000)]], Length(0, 64)] | None = None
    """Where requests are served: cores of this host that are so many times slower."""
    provenance: Name | None = None
    """Where the costs in this file and its graphs come from; printed with every result."""
    calibrated: bool | None = None
    """False: on the processors that it describes, nobody measured them."""

    def __post_init__(self) -> None:
        names: set[str] = set()
        for application in self.applications:
            if application.name in names:
                raise ValueError(f"two applications {application.name}, each needs its own name")
            names.add(application.name)
        if self.durations.kind == "measured" and self.costs is None:
            raise ValueError("no costs, measured durations are drawn from a table of these")


def check_order(times_ms: tuple[float, ...]) -> None:
    """Check that times do not go back. Raises ValueError naming the first that does."""
    for number in range(1, len(times_ms)):
        before_ms, time_ms = times_ms[number - 1], times_ms[number]
        if time_ms < before_ms:
            raise ValueError(f"time {number + 1} is {time_ms:g} ms, the one before {before_ms:g}")
