"""Measured energy where the platform gives it.

Intel RAPL for the processor packages, NVML for one GPU. Elsewhere None, never a guess.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nnstretch.errors import BrokenFile

POWERCAP = Path("/sys/class/powercap")


class EnergyMeter(Protocol):
    """A counter of energy that only grows."""

    @property
    def source(self) -> str:
        """Return the name of the device and of its counter."""
        ...

    def joules(self) -> float:
        """Return joules since some moment in the past; only differences mean something."""
        ...


def open_energy_meter(root: Path = POWERCAP, gpu_uuid: str = "") -> EnergyMeter | None:
    """Open the counters of all packages, or those of one GPU (`GPU-...`, as NVML names it).

    None where there is no counter that may be read.
    """
    return open_nvml(gpu_uuid) if gpu_uuid else open_rapl(root)


@dataclass
class RaplPackage:
    """A RAPL zone and its readings so far."""

    folder: Path
    range_uj: int
    """Where its counter starts again from zero."""
    last_uj: int
    total_uj: int = 0

    def advance(self) -> int:
        """Return microjoules since the meter was opened.

        Right while it is read at least once per wrap-around: tens of minutes at full load.
        """
        now_uj = read_counter(self.folder / "energy_uj")
        self.total_uj += now_uj - self.last_uj + (self.range_uj if now_uj < self.last_uj else 0)
        self.last_uj = now_uj
        return self.total_uj


@dataclass(frozen=True)
class Rapl:
    """All processor packages of the machine together."""

    source: str
    packages: tuple[RaplPackage, ...] = field(repr=False)

    def joules(self) -> float:
        """Return joules since some moment in the past. Raises BrokenFile where a counter can no
        longer be read.
        """
        return sum(package.advance() for package in self.packages) / 1e6


@dataclass(frozen=True)
class Nvml:
    """One GPU with its memory."""

    source: str
    library: Any = field(repr=False)
    handle: Any = field(repr=False)

    def joules(self) -> float:
        """Return the energy since the device started, J."""
        return float(self.library.nvmlDeviceGetTotalEnergyConsumption(self.handle)) / 1e3


def open_rapl(root: Path) -> Rapl | None:
    """Open RAPL, None where a single package cannot be read: a sum over some of them would be too
    small.

    Zones in zones (cores, memory) are part of their package; `psys` counts the whole platform
    again.
    """
    counters = []
    try:
        for folder in sorted(root.glob("intel-rapl:*")):
            if folder.name.count(":") == 1 and (folder / "name").read_text(
                encoding="ascii"
            ).startswith("package"):
                counters.append(
                    RaplPackage(
                        folder,
                        read_counter(folder / "max_energy_range_uj"),
                        read_counter(folder / "energy_uj"),
                    )
                )
    except (OSError, ValueError, BrokenFile):
        return None
    return (
        Rapl(f"RAPL, {len(counters)} package{'s' * (len(counters) > 1)}", tuple(counters))
        if counters
        else None
    )


def read_counter(path: Path) -> int:
    """Read a counter of microjoules. Raises BrokenFile where there is none."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise BrokenFile(f"cannot read {path}, energy counter, {type(error).__name__}") from error
    if not text.isdecimal():
        raise BrokenFile(
            f"cannot read {path}, energy counter, {text[:20]!r} is no number of microjoules"
        )
    return int(text)


def open_nvml(uuid: str) -> Nvml | None:
    """Open NVML, None without its Python binding, its driver, this GPU, or a counter in it (before
    Volta).
    """
    try:
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        name = pynvml.nvmlDeviceGetName(handle)
        meter = Nvml(f"NVML, {name.decode() if isinstance(name, bytes) else name}", pynvml, handle)
        meter.joules()
    except pynvml.NVMLError:
        return None
    return meter
