"""Sweeps as YAML: pools x policies x rates x trials of one workload.

workload: workload.yaml           # beside the sweep
pools: [{cpu: 1}, {cpu: 3, fft: 1}]
policies: [rr, met, eft]
rates: [0.5, 1, 2]                # arrivals come so many times as fast
trials: 5                         # of seed, seed + 1, ...
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from nnstretch.errors import BadInput
from nnstretch.files.decode import decode
from nnstretch.files.limits import Length, Range
from nnstretch.files.read import as_path, read_text
from nnstretch.files.strict_yaml import parse_yaml
from nnstretch.files.workload.workload import ArrivalSettings, WorkloadFile
from nnstretch.plan import Name

MOST_BYTES = 1 << 20
MOST_CONFIGURATIONS = 1_000_000
Counts = Annotated[dict[Name, Annotated[int, Range(1, 64)]], Length(1, 64)]


@dataclass(frozen=True, slots=True)
class Configuration:
    """One simulation of a sweep."""

    pool: dict[str, int] | None
    policy: str
    rate: float
    trial: int
    absent: tuple[str, ...] = ()
    """Types that other pools of the sweep have and this one has not."""


@dataclass(frozen=True, slots=True)
class SweepFile:
    """What is varied; what is absent stays as the workload has it."""

    workload: Name
    pools: Annotated[tuple[Counts, ...], Length(1, 1000)] | None = None
    policies: Annotated[tuple[Name, ...], Length(1, 100)] | None = None
    rates: Annotated[tuple[Annotated[float, Range(1e-6, 1e6)], ...], Length(1, 1000)] = (1.0,)
    trials: Annotated[int, Range(1, 1000)] = 1

    def __post_init__(self) -> None:
        count = self.trials
        for name in ("pools", "policies", "rates"):
            entries: tuple[object, ...] = getattr(self, name) or (None,)
            count *= len(entries)
            repeated = [entry for entry in entries if entries.count(entry) > 1]
            if repeated:
                raise ValueError(
                    f"{name} has {repeated[0]} twice, its trials would count as independent ones"
                )
        if count > MOST_CONFIGURATIONS:
            raise ValueError(
                f"{count} configurations, needed are at most {MOST_CONFIGURATIONS}: vary less"
            )

    def configurations(self, workload: WorkloadFile) -> Iterator[Configuration]:
        """Yield every configuration in order."""
        kinds: set[str] = set()
        for counts in self.pools or ():
            kinds |= counts.keys()
        for pool in self.pools or (workload.pool,):
            absent = tuple(sorted(kinds - pool.keys())) if pool else ()
            for policy in self.policies or (workload.policy,):
                for rate in self.rates:
                    for trial in range(self.trials):
                        yield Configuration(pool, policy, rate, trial, absent)


def configured(workload: WorkloadFile, configuration: Configuration) -> WorkloadFile:
    """Return the workload of one configuration.

    Raises BadInput for arrivals in a CSV file whose rate is changed, and for too many arrivals.
    """
    try:
        return reconfigured(workload, configuration)
    except ValueError as error:
        raise BadInput(f"rate {configuration.rate:g}, sweep, {error}") from None


def reconfigured(workload: WorkloadFile, configuration: Configuration) -> WorkloadFile:
    """Return the workload of one configuration. Raises as `configured`, or ValueError."""
    applications = []
    for application in workload.applications:
        arrivals = application.arrivals
        if arrivals is not None:
            arrivals = faster(arrivals, configuration.rate, application.name)
        costs_ms = application.costs_ms
        if costs_ms is not None:
            costs_ms = {k: ms for k, ms in costs_ms.items() if k not in configuration.absent}
        applications.append(replace(application, arrivals=arrivals, costs_ms=costs_ms))
    return replace(
        workload,
        applications=tuple(applications),
        pool=configuration.pool,
        policy=configuration.policy,
        seed=workload.seed + configuration.trial,
    )


def faster(arrivals: ArrivalSettings, rate: float, name: str) -> ArrivalSettings:
    """Return arrivals that come `rate` times as fast."""
    if rate == 1:
        return arrivals
    if arrivals.csv is not None:
        raise BadInput(f"rate {rate:g} of application {name}, sweep, times of a CSV file are fixed")
    if arrivals.times_ms is not None:
        times_ms = [time_ms / rate for time_ms in arrivals.times_ms]
        return replace(arrivals, times_ms=tuple(times_ms))
    if arrivals.period_ms is not None:
        return replace(arrivals, period_ms=arrivals.period_ms / rate)
    assert arrivals.mean_gap_ms is not None
    return replace(arrivals, mean_gap_ms=arrivals.mean_gap_ms / rate)


def read_sweep(path: str | Path) -> SweepFile:
    """Read a sweep file. Raises as `read_workload` does."""
    path = as_path(path, "sweep")
    data = parse_yaml(read_text(path, "sweep", MOST_BYTES), f"sweep {path}")
    try:
        sweep: SweepFile = decode(SweepFile, data, "sweep")
    except ValueError as error:
        raise BadInput(f"{path}, {error}") from None
    return sweep
