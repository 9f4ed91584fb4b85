"""The machine at hand: its cores, which of them are equal, and who runs on which."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nnstretch.errors import BadInput

CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Cores that are equal: one of them stands for all."""

    cores: tuple[int, ...]
    max_khz: int | None
    """Highest clock that the system names; None where it names none."""


@dataclass(frozen=True, slots=True)
class Place:
    """A processor of the predictor to be, and the core that its one thread is pinned to."""

    name: str
    core: int
    cluster: int
    """Places of one cluster share their measurements."""


def allowed_cores() -> tuple[int, ...]:
    """What this process may run on, which a container may have cut down."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def clusters(root: Path = CPUS, cores: tuple[int, ...] | None = None) -> tuple[Cluster, ...]:
    """Cores grouped by capacity and highest clock, the fastest group first."""
    groups: dict[tuple[int, int], list[int]] = {}
    for core in allowed_cores() if cores is None else cores:
        folder = root / f"cpu{core}"
        key = (number(folder / "cpu_capacity"), number(folder / "cpufreq" / "cpuinfo_max_freq"))
        groups.setdefault(key, []).append(core)
    order = sorted(groups, key=lambda key: (-key[0], -key[1], groups[key]))
    return tuple(Cluster(tuple(groups[key]), key[1] or None) for key in order)


def number(path: Path) -> int:
    """0 where the system does not say."""
    try:
        return int(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return 0


def places(spec: str | None, found: tuple[Cluster, ...]) -> tuple[Place, ...]:
    """`big=4,little=0` names cores; without it the first two equal cores, or one core of each cluster.

    Raises BadInput for a core that is not there or a name that comes twice.
    """
    owner = {core: index for index, cluster in enumerate(found) for core in cluster.cores}
    if spec is None:
        if len(found) > 1:
            return tuple(Place(f"cpu{i}", cluster.cores[0], i) for i, cluster in enumerate(found))
        return tuple(Place(f"cpu{i}", core, 0) for i, core in enumerate(found[0].cores[:2]))
    chosen = []
    for part in spec.split(","):
        name, _, core = part.strip().partition("=")
        if not name or not core.isdigit() or int(core) not in owner:
            known = ", ".join(map(str, sorted(owner)))
            raise BadInput(f"--processors is {spec!r}, command line, write NAME=CORE,... with cores among {known}")
        chosen.append(Place(name, int(core), owner[int(core)]))
    if len({p.name for p in chosen}) < len(chosen) or len({p.core for p in chosen}) < len(chosen):
        raise BadInput(f"--processors is {spec!r}, command line, every name and every core may come once")
    return tuple(chosen)


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """This process on one core; libraries that start threads inside find one core only. Where the system cannot, nothing happens."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def description(root: Path = Path("/proc/cpuinfo")) -> str:
    """Name of the processor, as far as the system tells."""
    try:
        lines = root.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.lower().startswith(("model name", "hardware"))]
    return names[0] if names else platform.processor() or platform.machine()
