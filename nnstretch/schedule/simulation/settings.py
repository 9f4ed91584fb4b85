"""Everything that one simulation depends on, and the clock that it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nnstretch.protocols import Executor
from nnstretch.schedule.disturbances import Disturbances
from nnstretch.schedule.executors.contended import ContendedExecutor, Slowing
from nnstretch.schedule.executors.virtual import DurationOf, VirtualExecutor
from nnstretch.schedule.loop.arrivals import Transfers
from nnstretch.schedule.simulation.application import Application
from nnstretch.schedule.simulation.durations import (
    DrawnDurations,
    DurationSource,
    MeasuredTimes,
    RecordedDurations,
    SampledDurations,
)
from nnstretch.soc import Processor
from nnstretch.task import Task, TaskTimes


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """Everything that one simulation depends on."""

    applications: tuple[Application, ...]
    processors: tuple[Processor, ...]
    times_us: TaskTimes
    """True times, by work (application and sub-graph) and processor."""
    policy: str
    transfers_us: Transfers = field(default_factory=dict)
    queueing: bool = True
    seed: int = 0
    durations: str = "exact"
    """exact, spread, exponential or measured."""
    spread: float = 0.0
    correction: bool = True
    wrong_costs: float = 1.0
    handover_us: float = 0.0
    disturbances: Disturbances = Disturbances()  # noqa: RUF009 (frozen)
    """What else happens to ideal processors; a measured host has none."""
    measured: MeasuredTimes | None = None
    """What `measured` durations are drawn from; its host costs count for recorded ones, too."""
    recorded_us: Mapping[str, Sequence[Mapping[str, float]]] | None = None
    """What tasks took, by application and sub-graph, for each instance; goes before durations."""
    ends_at_deadline: bool = False
    """Whether instances are given up when their deadline is over, as on a server, or end late."""

    @property
    def is_exact(self) -> bool:
        """Return whether every task takes what it is expected to."""
        return self.recorded_us is None and self.durations == "exact"


def durations_of(settings: SimulationSettings) -> DurationSource | None:
    """Return what says how long tasks take; None where they take what they are expected to."""
    if settings.is_exact:
        return None
    if settings.recorded_us is not None:
        return RecordedDurations(settings.recorded_us, settings.seed)
    if settings.durations == "measured":
        return SampledDurations(settings.measured or MeasuredTimes({}), settings.seed)
    return DrawnDurations(settings.times_us, settings.seed, settings.durations, settings.spread)


def clock_of(
    settings: SimulationSettings,
    duration_us: DurationOf,
    is_wanted: Callable[[Task], bool],
    under_way: Callable[[], int],
) -> Executor:
    """Return the clock: that of a measured host, where one was, else of ideal processors.

    A host passes over tasks that are not wanted any more when they come to start, and its tasks
    take the longer, the more instances are `under_way`.
    """
    measured = settings.measured
    if measured is not None and not settings.is_exact:

        def switched(task: Task, processor: str) -> float:
            return measured.switched_factor(task, processor, under_way())

        pace = measured.pace.from_seed(settings.seed)
        slowing = Slowing(measured.beside_factor, switched, pace)
        if settings.recorded_us is not None:
            slowing = Slowing()  # What a record says was slowed by all that already.
        return ContendedExecutor(
            *(settings.processors, duration_us, slowing, measured.host, is_wanted)
        )
    handovers_us = {}
    if settings.handover_us:
        handovers_us = dict.fromkeys(settings.times_us, settings.handover_us)
    return VirtualExecutor(
        settings.processors,
        duration_us,
        disturbances=settings.disturbances,
        handovers_us=handovers_us,
    )
