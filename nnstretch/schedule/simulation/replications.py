"""Several simulations of one workload, with 95% intervals over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.schedule.simulation.simulate import Simulation, SimulationResult

STUDENT_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Two-sided 95% quantile by degrees of freedom, from 1 on."""
NORMAL = 1.959964
"""The same of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A mean over replications."""

    mean: float
    half_width: float | None
    """Of its 95% interval; None for one replication."""


def measured(values: Sequence[float]) -> Measured:
    """Return the mean of a number over replications, with Student's interval."""
    if len(values) < 2:
        return Measured(values[0], None)
    quantile = student_t(len(values) - 1)
    return Measured(fmean(values), quantile * stdev(values) / len(values) ** 0.5)


def student_t(freedom: int) -> float:
    """Return the two-sided 95% quantile of Student's distribution.

    Beyond the table by its expansion at the normal one (Abramowitz and Stegun, 26.7.5).
    """
    if freedom <= len(STUDENT_T):
        return STUDENT_T[freedom - 1]
    z = NORMAL
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def replicate(
    settings: SimulationSettings,
    replications: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
    first: Simulation | None = None,
) -> list[SimulationResult]:
    """Return results of simulations whose seeds follow the first one's, which may be `first`."""
    results: list[SimulationResult] = []
    for number in range(replications):
        if number == 0 and first is not None:
            simulation = first
        else:
            simulation = Simulation(replace(settings, seed=settings.seed + number))
        results.append(simulation.run())
        progress(number + 1, replications)
    return results
