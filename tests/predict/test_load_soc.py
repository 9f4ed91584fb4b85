"""Chips load strictly: a broken description names file and field."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.files.package_data import package_data
from nnstretch.predict import load_soc
from nnstretch.predict.soc_file import soc_document
from nnstretch.soc import Link, Processor, Soc


def test_mi9_is_a_chip_of_three_processors() -> None:
    soc = load_soc("mi9")
    assert [p.name for p in soc.processors] == ["cpu", "gpu", "dsp"]
    assert soc.element_bytes == 1
    assert soc.calibrated
    assert soc.contention_factor(frozenset(("cpu", "gpu", "dsp"))) == 1
    assert soc.price_key("cpu", ("cpu", "gpu", "dsp")) == "cpu beside dsp"
    assert soc.processor_among("cpu", ("cpu", "gpu")).copy_in.us_per_kib > 0
    assert soc.processor("cpu").copy_in == Link()


def test_processors_of_one_name_are_no_chip() -> None:
    with pytest.raises(BadInput, match=r"2 processors are called 'npu', SoC twin, name each"):
        Soc("twin", (Processor("npu", "npu", 1), Processor("npu", "dsp", 2)), "int8", {})


def test_a_folder_of_the_same_form_is_a_chip(tmp_path: Path) -> None:
    shutil.copytree(package_data("latency_predictors") / "mi9", tmp_path / "mine")
    assert load_soc(tmp_path / "mine") == load_soc("mi9") == load_soc(str(tmp_path / "mine"))


def test_a_processor_without_a_limit_of_memory_need_not_say_so(tmp_path: Path) -> None:
    shutil.copytree(package_data("latency_predictors") / "mi9", tmp_path / "mine")
    path = tmp_path / "mine" / "soc.json"
    document = json.loads(path.read_text())
    for processor in document["processors"]:
        processor.pop("memory_bytes", None)
    path.write_text(json.dumps(document))
    soc = load_soc(tmp_path / "mine")
    assert {processor.memory_bytes for processor in soc.processors} == {None}
    assert all("memory_bytes" in row for row in soc_document(soc)["processors"])


def test_a_path_is_the_folder_and_a_name_the_chip_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mi9", "latency_predictors/mine"):
        folder = shutil.copytree(package_data("latency_predictors") / "mi9", tmp_path / name)
        data = json.loads((folder / "soc.json").read_text())
        (folder / "soc.json").write_text(json.dumps(data | {"name": "changed"}))
    (tmp_path / "mine").mkdir()
    assert [load_soc(name).name for name in ("mi9", "./mi9", "mi9/", "mine")] == [
        "mi9",
        *3 * ["changed"],
    ]


def test_an_unknown_chip_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"unknown SoC 'mi99'.*known are .*mi9"):
        load_soc("mi99")


def drop(key: str) -> Callable[[Any], Any]:
    return lambda data: {k: v for k, v in data.items() if k != key}


def put(value: Any, *path: str | int) -> Callable[[Any], Any]:
    def change(data: Any) -> Any:
        place = data
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        return data

    return change


def leaves(data: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value that is no table or list."""
    if not isinstance(data, dict | list):
        yield path
        return
    for key in data if isinstance(data, dict) else range(len(data)):
        yield from leaves(data[key], *path, key)


MAY_BE_NULL = {"memory_bytes", "power_w", "copies_beside"}


"""Of a processor: null says that it is not known."""


@pytest.mark.parametrize("file", ["soc.json", "gpu.json"])
def test_null_in_a_chip_or_predictor_is_refused_by_its_dotted_name(
    file: str, tmp_path: Path
) -> None:
    source = package_data("latency_predictors") / "mi9"
    data = json.loads((source / file).read_text())
    paths = [path for path in leaves(data) if path[-1] not in MAY_BE_NULL | {"format"}]
    assert len(paths) > 10
    for path in paths:
        folder = tmp_path / "chip"
        shutil.copytree(source, folder, dirs_exist_ok=True)
        changed = put(None, *path)(json.loads((source / file).read_text()))
        (folder / file).write_text(json.dumps(changed))
        with pytest.raises(BrokenFile) as refusal:
            load_soc(folder)
        dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        assert f"{dotted}, " in str(refusal.value)
        assert "NoneType" in str(refusal.value)


BROKEN = [
    ("soc.json", drop("merge"), "soc.json, soc, key 'merge' is missing"),
    ("soc.json", put(1, "colour"), "soc.json, soc, unknown key 'colour'"),
    ("soc.json", put(2, "format"), "unknown format 2.*reads format 1"),
    ("soc.json", put("int7", "dtype"), "unknown dtype 'int7'"),
    (
        "soc.json",
        put(-1, "processors", 1, "sync_us"),
        r"soc\.processors\[1\]\.sync_us, -1\.0 is out of range, needed is at least 0",
    ),
    (
        "soc.json",
        put(600, "processors", 1, "handover_us"),
        r"processors\[1\], .*handover_us 600 of sync_us 3",
    ),
    (
        "soc.json",
        put(True, "processors", 1, "blocks_host"),
        r"processors\[1\], .*blocks_host True, a queue does not block",
    ),
    (
        "soc.json",
        put("yes", "processors", 1, "copies_beside"),
        r"processors\[1\]\.copies_beside, 'yes' is str, expected bool or None",
    ),
    (
        "soc.json",
        put("fast", "processors", 2, "copy_in", "fixed_us"),
        r"processors\[2\]\.copy_in\.fixed_us, 'fast' is str, expected float",
    ),
    (
        "soc.json",
        put([{"processors": ["cpu", "npu"], "factor": 1.5}], "contention"),
        r"contention\[0\] is of .*known are",
    ),
    (
        "soc.json",
        put(
            [
                {"processors": ["cpu", "dsp"], "factor": 1.0},
                {"processors": ["dsp", "cpu"], "factor": 50.0},
            ],
            "contention",
        ),
        r"contention\[1\] is of .*each set of them once",
    ),
    (
        "soc.json",
        put([{"processors": ["cpu", "cpu"], "factor": 1.5}], "contention"),
        r"contention\[0\] is of .*processors that differ",
    ),
    (
        "soc.json",
        put(1.9, "processors", 1, "queue_depth"),
        r"queue_depth, 1\.9, needed is a whole number",
    ),
    (
        "soc.json",
        put(1.9, "processors", 1, "memory_bytes"),
        r"memory_bytes, 1\.9, needed is a whole number",
    ),
    ("soc.json", put("a\x1bb", "name"), r"soc\.name, .* needed is a name"),
    ("cpu.json", put(1e300, "relative_error"), r"relative_error, 1e\+300 is out of range"),
    ("soc.json", put("gpu", "processors", 0, "name"), "each named once"),
    ("gpu.json", put("dsp", "processor"), "processor 'dsp'.*gpu.json.*expects 'gpu'"),
    (
        "gpu.json",
        put(float("nan"), "rates", "launch_us"),
        "not JSON, .*gpu.json, NaN is not a number",
    ),
    ("gpu.json", put(0, "rates", "bytes_per_us"), r"rates\.bytes_per_us, 0\.0 is out of range"),
    ("gpu.json", put([], "rates"), r"gpu.json, predictor\.rates, '\[\]' is list"),
    ("dsp.json", put("forest", "form"), "unknown form 'forest'.*analytic"),
]


@pytest.mark.parametrize(
    ("file", "change", "message"), BROKEN, ids=[message for _, _, message in BROKEN]
)
def test_a_broken_chip_names_file_and_field(
    tmp_path: Path, file: str, change: Callable[[Any], Any], message: str
) -> None:
    folder = shutil.copytree(package_data("latency_predictors") / "mi9", tmp_path / "chip")
    path = folder / file
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(BrokenFile, match=message):
        load_soc(folder)


def test_a_truncated_file_names_the_place(tmp_path: Path) -> None:
    folder = shutil.copytree(package_data("latency_predictors") / "mi9", tmp_path / "chip")
    path = folder / "cpu.json"
    path.write_text(path.read_text()[:120])
    with pytest.raises(BrokenFile, match=r"not JSON, .*cpu.json, .*line \d+ column \d+"):
        load_soc(folder)
    path.unlink()
    with pytest.raises(BrokenFile, match=r"missing, .*cpu.json"):
        load_soc(folder)
