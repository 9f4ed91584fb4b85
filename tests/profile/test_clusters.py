"""Processors of a machine: clusters of cores, and CUDA devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnstretch.errors import BadInput
from nnstretch.profile.machine import PinnedProcessor, clusters, parse_processors


def core(root: Path, index: int, capacity: str = "", khz: str = "") -> None:
    folder = root / f"cpu{index}" / "cpufreq"
    folder.mkdir(parents=True)
    if capacity:
        (folder.parent / "cpu_capacity").write_text(capacity)
    if khz:
        (folder / "cpuinfo_max_freq").write_text(khz)


def test_equal_cores_are_one_cluster_and_the_fastest_comes_first(tmp_path: Path) -> None:
    for index, (capacity, khz) in enumerate([("160", "1800000")] * 4 + [("1024", "2841600")] * 2):
        core(tmp_path, index, capacity, khz)
    big, little = clusters(tmp_path, (0, 1, 2, 3, 4, 5))
    assert (big.cores, big.max_khz) == ((4, 5), 2841600)
    assert little.cores == (0, 1, 2, 3)
    assert parse_processors(None, (big, little)) == (
        PinnedProcessor("cpu0", 4, 0),
        PinnedProcessor("cpu1", 0, 1),
    )
    assert parse_processors("big=5,small=2", (big, little)) == (
        PinnedProcessor("big", 5, 0),
        PinnedProcessor("small", 2, 1),
    )


def test_a_machine_that_tells_nothing_has_one_cluster(tmp_path: Path) -> None:
    core(tmp_path, 0)
    core(tmp_path, 1, "garbage", "?")
    (only,) = clusters(tmp_path, (0, 1))
    assert (only.cores, only.max_khz) == ((0, 1), None)
    assert [p.name for p in parse_processors(None, (only,))] == ["cpu0", "cpu1"]


def test_a_cuda_device_is_a_processor_where_there_is_one(tmp_path: Path) -> None:
    core(tmp_path, 0)
    (only,) = clusters(tmp_path, (0,))
    assert parse_processors(None, (only,), cuda=1) == (
        PinnedProcessor("cpu0", 0, 0),
        PinnedProcessor("gpu", 0, 1000, "cuda:0"),
    )
    assert parse_processors("fast=cuda:1,host=0", (only,), cuda=2) == (
        PinnedProcessor("host", 0, 0),
        PinnedProcessor("fast", 0, 1001, "cuda:1"),
    )
    with pytest.raises(BadInput, match=r"cores among 0; no CUDA device is at hand$"):
        parse_processors("cpu0=0,gpu=cuda", (only,))
    with pytest.raises(BadInput, match=r"at least one must be a core: it feeds the others$"):
        parse_processors("gpu=cuda", (only,), cuda=1)


@pytest.mark.parametrize(
    "spec",
    [
        "a=9",
        "a",
        "a=0,a=1",
        "a=0,b=0",
        "=0",
        "a=-1",
        "",
        "a=\u00b2",
        "soc=0",
        "../x=0",
        "a/b=0",
        "a=cuda",
    ],
)
def test_processors_that_are_not_there_are_refused(tmp_path: Path, spec: str) -> None:
    core(tmp_path, 0)
    core(tmp_path, 1)
    with pytest.raises(BadInput, match=r"^processors is .*, profile, "):
        parse_processors(spec, clusters(tmp_path, (0, 1)))
