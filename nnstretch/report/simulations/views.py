"""What results of simulations and journals of sweeps say, as far as pages need it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from nnstretch.files.decode import tolerant
from nnstretch.files.limits import Length, Range
from nnstretch.plan import Name
from nnstretch.report.load.pipeline_data import Size

Count = Annotated[int, Range(0)]


@tolerant
@dataclass(frozen=True, slots=True)
class LatencyView:
    """Latencies of instances, ms; None where none ended."""

    mean: Size | None = None
    p50: Size | None = None
    p95: Size | None = None
    p99: Size | None = None


@tolerant
@dataclass(frozen=True, slots=True)
class OverTimeView:
    """Means over steps of one length."""

    step_ms: Size
    mean: Annotated[tuple[Size, ...], Length(0, 10_000)]


@tolerant
@dataclass(frozen=True, slots=True)
class OpenView:
    """Open instances: mean, most, and over time."""

    mean: Size
    most: Size
    over_time: OverTimeView | None = None


@tolerant
@dataclass(frozen=True, slots=True)
class ApplicationView:
    """One application."""

    name: Name
    arrived: Count
    ended: Count
    deadline_misses: Count
    latency_ms: LatencyView
    execution_ms: Size
    slowdown: Size | None = None
    """None where none ended."""
    refused: Count | None = None
    dropped: Count | None = None


@tolerant
@dataclass(frozen=True, slots=True)
class RoundView:
    """Rounds of decisions in which about so many tasks waited."""

    waiting: Size
    rounds: Count
    round_us: Size


@tolerant
@dataclass(frozen=True, slots=True)
class SimulationView:
    """Result of one simulation."""

    policy: Name
    seed: Count
    apps: Annotated[tuple[ApplicationView, ...], Length(1)]
    makespan_ms: Size
    app_latency_ms: LatencyView
    throughput_per_s: Size
    utilisation: dict[Name, Size]
    open: OpenView
    replications: Annotated[int, Range(1)] = 1
    """Runs whose means these are; what is over time is of the first."""
    workload: Name | None = None
    soc: Name | None = None
    calibrated: bool | None = None
    provenance: str | None = None
    rounds: tuple[RoundView, ...] = ()


@tolerant
@dataclass(frozen=True, slots=True)
class SweepRow:
    """One line of a sweep's journal: a result, or why there is none."""

    policy: Name
    rate: Annotated[float, Range(1e-18, 1e18)]
    trial: Count
    pool: dict[Name, Count] | None = None
    result: SimulationView | None = None
    error: str | None = None


@tolerant
@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One line of a sweep's decision times."""

    policy: Name
    rounds: tuple[RoundView, ...]


@tolerant
@dataclass(frozen=True, slots=True)
class SweepHead:
    """First line of a sweep's journal."""

    sweep: Name
    """Tells sweeps apart."""
    calibrated: bool | None = None
    provenance: str | None = None
