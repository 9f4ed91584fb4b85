"""The machine at hand: its cores, which of them are equal, and who runs on which."""

from __future__ import annotations

import os
import platform
import re
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
class PinnedProcessor:
    """A processor of the predictor to be, and the core that its one thread is pinned to."""

    name: str
    core: int
    cluster: int
    """Places of one cluster share their measurements.

    Every accelerator is one of its own, counted from `ACCELERATORS`.
    """
    device: str = "cpu"
    """`cpu`, or `cuda:N` fed from that core."""

    @property
    def where(self) -> str:
        """Return what computes, for messages."""
        return f"core {self.core}" if self.device == "cpu" else self.device


def allowed_cores() -> tuple[int, ...]:
    """Return what this process may run on, which a container may have cut down."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def clusters(root: Path = CPUS, cores: tuple[int, ...] | None = None) -> tuple[Cluster, ...]:
    """Return cores grouped by capacity and highest clock, the fastest group first."""
    groups: dict[tuple[int, int], list[int]] = {}
    for core in allowed_cores() if cores is None else cores:
        folder = root / f"cpu{core}"
        key = (
            read_number(folder / "cpu_capacity"),
            read_number(folder / "cpufreq" / "cpuinfo_max_freq"),
        )
        groups.setdefault(key, []).append(core)
    order = sorted(groups, key=lambda key: (-key[0], -key[1], groups[key]))
    return tuple(Cluster(tuple(groups[key]), key[1] or None) for key in order)


def read_number(path: Path) -> int:
    """Read a number of the system, 0 where it does not say."""
    try:
        return int(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return 0


ACCELERATORS = 1000
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,30}")
"""A processor's name becomes the name of its file; `soc` is taken."""


def parse_processors(
    spec: str | None, core_clusters: tuple[Cluster, ...], cuda: int = 0
) -> tuple[PinnedProcessor, ...]:
    """Parse processors: `big=4,little=0` names cores and `gpu=cuda:0` a CUDA device.

    Without it the first two equal cores, or one core of each cluster, and every CUDA device.
    Raises BadInput for a core or device that is not there or a name that comes twice.
    """
    if spec is None:
        return default_processors(core_clusters, cuda)
    chosen = tuple(
        parse_processor(part.strip(), spec, core_clusters, cuda) for part in spec.split(",")
    )
    cores = [p.core for p in chosen if p.device == "cpu"]
    devices = [p.device for p in chosen if p.device != "cpu"]
    if any(len(set(column)) < len(column) for column in ([p.name for p in chosen], cores, devices)):
        raise BadInput(
            f"processors is {spec!r}, profile, every name, core and device may come once"
        )
    if not cores:
        raise BadInput(
            f"processors is {spec!r}, profile, at least one must be a core: it feeds the others"
        )
    return tuple(sorted(chosen, key=lambda p: p.device != "cpu"))


def default_processors(
    core_clusters: tuple[Cluster, ...], cuda: int
) -> tuple[PinnedProcessor, ...]:
    """Return a core of each cluster, or two of the only one, and every CUDA device."""
    places = [(core, 0) for core in core_clusters[0].cores[:2]]
    if len(core_clusters) > 1:
        places = [(cluster.cores[0], index) for index, cluster in enumerate(core_clusters)]
    processors: list[PinnedProcessor] = []
    for number, (core, cluster_index) in enumerate(places):
        processors.append(PinnedProcessor(f"cpu{number}", core, cluster_index))
    for device in range(cuda):
        name = f"gpu{device}" if cuda > 1 else "gpu"
        processors.append(accelerator(name, device, core_clusters))
    return tuple(processors)


def parse_processor(part: str, spec: str, cores: tuple[Cluster, ...], cuda: int) -> PinnedProcessor:
    """Return one `NAME=CORE` or `NAME=cuda:N`.

    Raises BadInput when the text names no core of this machine.
    """
    owner: dict[int, int] = {}
    for number, cluster in enumerate(cores):
        owner |= dict.fromkeys(cluster.cores, number)
    name, _, where = part.partition("=")
    _, _, index = where.partition(":")
    if (
        NAME.fullmatch(name)
        and name != "soc"
        and re.fullmatch(r"cuda(:[0-9]{1,3})?", where)
        and int(index or 0) < cuda
    ):
        return accelerator(name, int(index or 0), cores)
    if (
        not NAME.fullmatch(name)
        or name == "soc"
        or not (where.isascii() and where.isdecimal() and int(where) in owner)
    ):
        known = ", ".join(map(str, sorted(owner))) + (
            f" and devices cuda:0 to cuda:{cuda - 1}" if cuda else "; no CUDA device is at hand"
        )
        raise BadInput(
            f"processors is {spec!r}, profile, write NAME=CORE,... with cores among {known}"
        )
    return PinnedProcessor(name, int(where), owner[int(where)])


def accelerator(name: str, index: int, cores: tuple[Cluster, ...]) -> PinnedProcessor:
    """Return an accelerator beside the core that feeds it."""
    return PinnedProcessor(name, cores[0].cores[0], ACCELERATORS + index, f"cuda:{index}")


@contextmanager
def pin_process(core: int) -> Iterator[None]:
    """Pin this process to one core; libraries that start threads inside find one core only.

    Where the system cannot, nothing happens.
    """
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
    for line in lines:
        if line.lower().startswith(("model name", "hardware")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
