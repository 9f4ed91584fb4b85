"""What else the machine did: waits for a core, interruptions, stolen time, cores that were busy.

Two readings of counters that the system keeps anyway; nothing runs beside what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

try:
    import resource
except ImportError:  # a system without POSIX
    resource = None  # type: ignore[assignment]

PROC = Path("/proc")
TICK_S = 0.01
"""The unit of /proc/stat."""
CORE_COLUMNS = 8
"""user, nice, system, idle, iowait, irq, softirq, steal."""


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """Seconds of one core since it was started."""

    busy_s: float
    stolen_s: float
    """Seconds that the machine below ran somebody else."""


@dataclass(frozen=True, slots=True)
class ActivityReading:
    """Counters of the system and of this process at one moment."""

    wall_s: float
    cpu_s: float
    """Processor time of this process."""
    waited_s: float | None
    """Time that its threads were ready to run and did not; None where the system does not tell."""
    interruptions: int
    """How often one of them had to leave its core."""
    cores: Mapping[int, CoreTimes]
    """Empty where the system does not tell."""


@dataclass(frozen=True, slots=True)
class OtherWork:
    """What others did to a measurement, and beside it."""

    wall_s: float = 0.0
    waited_s: float = 0.0
    interruptions: int = 0
    stolen_s: float = 0.0
    """On any core that was looked at."""
    beside_s: float = 0.0
    """Processor time that others took, all cores together."""

    @property
    def waited_share(self) -> float:
        """Return the share of the time in which this process waited for its core."""
        return self.waited_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def stolen_share(self) -> float:
        """Return the share of the time that the machine below took."""
        return self.stolen_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def beside(self) -> float:
        """Return the number of cores that others kept busy, at the mean."""
        return self.beside_s / self.wall_s if self.wall_s > 0 else 0.0

    def __add__(self, more: OtherWork) -> OtherWork:
        return OtherWork(
            self.wall_s + more.wall_s,
            self.waited_s + more.waited_s,
            self.interruptions + more.interruptions,
            self.stolen_s + more.stolen_s,
            self.beside_s + more.beside_s,
        )


ActivityReader = Callable[[], ActivityReading]


def read_activity(proc: Path = PROC) -> ActivityReading:
    """Read the counters; what the system does not tell is left out."""
    usage = resource.getrusage(resource.RUSAGE_SELF) if resource else None
    return ActivityReading(
        perf_counter(),
        process_time(),
        waited_s(proc),
        usage.ru_nivcsw if usage else 0,
        core_times(proc),
    )


def waited_s(proc: Path) -> float | None:
    """Return how long threads of this process waited for a core; None where nobody counts."""
    waits = [run_delay_ns(task) for task in (proc / "self" / "task").glob("*/schedstat")]
    return sum(waits) / 1e9 if waits else None


def run_delay_ns(schedstat: Path) -> int:
    """Return the wait of one thread; 0 for a thread that has just ended."""
    try:
        return int(schedstat.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def core_times(proc: Path) -> dict[int, CoreTimes]:
    """Return the times of each core by its number."""
    try:
        lines = (proc / "stat").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return {}
    return dict(core_rows(lines))


def core_rows(lines: Iterable[str]) -> Iterable[tuple[int, CoreTimes]]:
    """Yield each core of the lines of /proc/stat."""
    for line in lines:
        name, *columns = line.split() or [""]
        number = name.removeprefix("cpu")
        if name == number or not number.isdecimal() or len(columns) < CORE_COLUMNS:
            continue
        user, nice, system, _, _, irq, softirq, steal = map(int, columns[:CORE_COLUMNS])
        busy = user + nice + system + irq + softirq
        yield int(number), CoreTimes(busy * TICK_S, steal * TICK_S)


def interference_between(before: ActivityReading, after: ActivityReading) -> OtherWork:
    """Return what others did between two readings.

    Without a count of waits, time without processor counts as waited where a core was taken away.
    """
    wall = after.wall_s - before.wall_s
    cpu = after.cpu_s - before.cpu_s
    interruptions = max(0, after.interruptions - before.interruptions)
    if before.waited_s is None or after.waited_s is None:
        waited = wall - cpu if interruptions else 0.0
    else:
        waited = after.waited_s - before.waited_s
    shared = before.cores.keys() & after.cores.keys()
    busy = sum(after.cores[core].busy_s - before.cores[core].busy_s for core in shared)
    stolen = sum(after.cores[core].stolen_s - before.cores[core].stolen_s for core in shared)
    return OtherWork(
        wall,
        max(0.0, waited),
        interruptions,
        max(0.0, stolen),
        max(0.0, busy - cpu),
    )
