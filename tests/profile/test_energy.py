"""Energy is what a counter counted, or None.

Over wrap-arounds, and never a sum that lacks a package.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from nnstretch.errors import BrokenFile
from nnstretch.profile.energy import EnergyMeter, open_energy_meter

RANGE_UJ = 262_143_328_850


def zone(
    root: Path, folder: str, name: str, energy_uj: object, range_uj: object = RANGE_UJ
) -> Path:
    path = root / folder
    path.mkdir(parents=True)
    for file, value in (
        ("name", name),
        ("energy_uj", energy_uj),
        ("max_energy_range_uj", range_uj),
    ):
        (path / file).write_text(f"{value}\n", encoding="ascii")
    return path / "energy_uj"


def found(root: Path) -> EnergyMeter:
    meter = open_energy_meter(root)
    assert meter is not None
    return meter


def test_packages_are_summed_and_zones_in_them_are_not_counted_twice(tmp_path: Path) -> None:
    first, second = (
        zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000),
        zone(tmp_path, "intel-rapl:1", "package-1", 5),
    )
    others = [
        zone(tmp_path, "intel-rapl:0:0", "core", 0),
        zone(tmp_path, "intel-rapl:2", "psys", 0),
        zone(tmp_path, "intel-rapl", "", 0),
    ]
    meter = found(tmp_path)
    before = meter.joules()
    first.write_text("1500000\n")
    second.write_text("2000005\n")
    for other in others:
        other.write_text("77000000\n")
    assert meter.joules() - before == pytest.approx(2.5)
    assert meter.source == "RAPL, 2 packages"


def test_a_counter_that_starts_again_goes_on_counting(tmp_path: Path) -> None:
    counter = zone(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 1_000_000)
    meter = found(tmp_path)
    read = [meter.joules()]
    for value in (RANGE_UJ - 500_000, 250_000, 250_000, 100_000):
        counter.write_text(f"{value}\n")
        read.append(meter.joules())
    steps = [after - before for before, after in pairwise(read)]
    assert steps == pytest.approx([0.5, 0.75, 0.0, (RANGE_UJ - 150_000) / 1e6])


@pytest.mark.parametrize("text", ["", "many", "-5", "1.5", "0x10"])
@pytest.mark.parametrize("file", ["energy_uj", "max_energy_range_uj"])
def test_one_malformed_package_leaves_no_meter(tmp_path: Path, file: str, text: str) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 1)
    zone(tmp_path, "intel-rapl:1", "package-1", 1)
    assert open_energy_meter(tmp_path) is not None
    (tmp_path / "intel-rapl:1" / file).write_text(text)
    assert open_energy_meter(tmp_path) is None


@pytest.mark.parametrize("file", ["energy_uj", "max_energy_range_uj", "name"])
def test_an_unreadable_package_leaves_no_meter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 1)
    read_text = Path.read_text

    def refused(path: Path, *args: object, **kwargs: object) -> str:
        if path.name == file:
            raise PermissionError(13, "Permission denied")
        return read_text(path, *args, **kwargs)  # type: ignore[arg-type]

    assert open_energy_meter(tmp_path) is not None
    monkeypatch.setattr(Path, "read_text", refused)
    assert open_energy_meter(tmp_path) is None


def test_without_counters_there_is_no_meter(tmp_path: Path) -> None:
    assert open_energy_meter(tmp_path) is None
    assert open_energy_meter(tmp_path / "absent") is None
    zone(tmp_path, "intel-rapl:0", "psys", 1)
    assert open_energy_meter(tmp_path) is None


def test_a_counter_that_vanishes_is_reported_and_not_counted_as_zero(tmp_path: Path) -> None:
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 1)
    meter = found(tmp_path)
    counter.unlink()
    with pytest.raises(BrokenFile, match="energy_uj, energy counter, FileNotFoundError"):
        meter.joules()


class FakeError(Exception):
    pass


def fake_nvml(spent_mj: list[int], known: str = "GPU-1") -> ModuleType:
    """NVML's binding with one GPU; a driver that refuses is a missing UUID."""
    module = ModuleType("pynvml")

    def handle(uuid: str) -> SimpleNamespace:
        if uuid != known:
            raise FakeError("not found")
        return SimpleNamespace(uuid=uuid)

    module.__dict__.update(
        NVMLError=FakeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=handle,
        nvmlDeviceGetName=lambda handle: b"Tesla",
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: spent_mj[-1],
    )
    return module


def test_a_gpu_counts_millijoules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spent_mj = [1000]
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(spent_mj))
    meter = open_energy_meter(tmp_path, gpu_uuid="GPU-1")
    assert meter is not None
    assert meter.source == "NVML, Tesla"
    before = meter.joules()
    spent_mj.append(3500)
    assert meter.joules() - before == pytest.approx(2.5)


def test_no_gpu_no_binding_no_meter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 1)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([1]))
    assert open_energy_meter(tmp_path, gpu_uuid="GPU-2") is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_energy_meter(tmp_path, gpu_uuid="GPU-1") is None
