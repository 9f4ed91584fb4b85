"""What pictures of a schedule show is the schedule; the page says it and refuses what is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nnstretch.cli import run_verb
from nnstretch.report.chips.chip_page import sweep_chapter
from nnstretch.report.chips.chip_view import ChipSweep, ChipSweepRow

NET = """
from torch import nn
def net():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
"""


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    (tmp_path / "nets.py").write_text(NET, encoding="utf-8")
    small = ("--assume", "local_buffer.size=2KiB", "--batch", "4", "--per-cluster", "4")
    command = [f"{tmp_path / 'nets.py'}:net", "--accelerator", "stcp920", *small]
    outputs = ("--out", str(tmp_path), "--trace", str(tmp_path / "trace.json"))
    sweep = ("--sweep", "ddr.bandwidth=1GB/s:4GB/s", "--input", "1,3,16,16")
    assert run_verb("accelerate", [*command, *outputs, *sweep, "--json"]) == 0, (
        capsys.readouterr().err
    )
    capsys.readouterr()
    return tmp_path


def test_the_page_shows_groups_tensors_engines_and_the_knee(folder: Path) -> None:
    document = json.loads((folder / "chip.json").read_text(encoding="utf-8"))
    parts = sum(group["parts"] for group in document["groups"])
    assert len(document["kernels"]) == parts > 1
    assert max(kernel["end_us"] for kernel in document["kernels"]) == pytest.approx(
        document["latency_us"]
    )
    assert run_verb("report", [str(folder / "chip.json"), "--out", str(folder / "p.html")]) == 0
    page = (folder / "p.html").read_text(encoding="utf-8")
    shown = [tensor["name"] for buffer in document["buffers"] for tensor in buffer["tensors"]]
    for words in (*shown, "dma_in", "Roofline", f"knee: {document['sweep']['knee']}"):
        assert words in page
    assert ">ddr.bandwidth, GB/s<" in page
    trace = json.loads((folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {e["name"] for e in trace if e["ph"] == "C"} == {"local buffer", "global buffer"}


@pytest.mark.parametrize(
    ("value", "axis"),
    [
        ("32lane", "field, lane"),
        ("1.5e3element", "field, element"),
        ("2e-1MAC/cycle", "field, MAC/cycle"),
        (".5", "field"),
        ("1.2.3", "field"),
    ],
)
def test_the_axis_of_a_sweep_has_the_whole_unit(value: str, axis: str) -> None:
    rows = (ChipSweepRow(value, 1.0), ChipSweepRow(value.replace("2", "4"), 2.0))
    assert f">{axis}<" in sweep_chapter(ChipSweep("field", rows))


def test_a_wrong_field_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads((folder / "chip.json").read_text(encoding="utf-8"))
    document["buffers"][0]["tensors"][0]["end_us"] = -1
    (folder / "wrong.json").write_text(json.dumps(document), encoding="utf-8")
    assert run_verb("report", [str(folder / "wrong.json"), "--out", str(folder / "p.html")]) == 1
    assert "buffers[0].tensors[0].end_us" in capsys.readouterr().err


def test_a_chip_json_without_a_chip_is_no_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "chip.json").write_text("{}", encoding="utf-8")
    for source in (tmp_path, tmp_path / "chip.json"):
        assert run_verb("report", [str(source), "--out", str(tmp_path / "p.html")]) == 1
        assert f"no chip, {tmp_path / 'chip.json'}" in capsys.readouterr().err


def test_no_page_takes_the_place_of_what_it_is_made_of(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / "chip.json").read_bytes()
    assert run_verb("report", [str(folder), "--out", str(folder / "chip.json")]) == 1
    assert "it is the command's own input" in capsys.readouterr().err
    assert (folder / "chip.json").read_bytes() == before


def changed(key: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda document: document.update({key: value})


def with_value(value: str) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["sweep"]["rows"][0].update(value=value)


def with_group(
    macs: float, ddr_bytes: float, taken_us: float
) -> Callable[[dict[str, Any]], object]:
    numbers = {"macs": macs, "ddr_bytes": ddr_bytes, "taken_us": taken_us}
    return lambda document: document["groups"][0].update(numbers)


def with_engines(document: dict[str, Any]) -> None:
    spans = document["engines"]
    document["engines"] = [spans[0] | {"engine": f"e{n}"} for n in range(1001)]


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (changed("ddr_bytes_per_us", 0), "ddr_bytes_per_us, 0"),
        (changed("peak_macs_per_us", 0), "peak_macs_per_us, 0"),
        (lambda document: document["groups"][0].update(macs=1e308), "groups[0].macs"),
        (with_engines, "1001 engines, a cluster has at most 1000"),
        (with_value("1.2.3"), None),
        (with_value("0"), None),
        (with_value("1e999"), None),
        (
            lambda document: document["sweep"]["rows"][0].update(throughput_per_s=5e-324),
            "sweep.rows[0].throughput_per_s, 5e-324, needed is 0 or at least 1e-30",
        ),
        (lambda document: document["groups"][0].update(taken_us=5e-324), "groups[0].taken_us"),
        (with_group(1e18, 1e-290, 1), "groups[0].ddr_bytes"),
        (with_group(1e18, 1e-30, 1e-30), None),
        (with_group(1e-30, 1e18, 1e18), None),
    ],
)
def test_extreme_numbers_are_drawn_or_refused_in_one_line(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], object],
    refused: str | None,
) -> None:
    document = json.loads((folder / "chip.json").read_text(encoding="utf-8"))
    change(document)
    (folder / "chip.json").write_text(json.dumps(document), encoding="utf-8")
    page = folder / "page.html"
    status = run_verb("report", [str(folder / "chip.json"), "--out", str(page)])
    told = capsys.readouterr().err
    assert (status, told.count("\n"), page.exists()) == (
        (0, 0, True) if refused is None else (1, 1, False)
    ), told
    assert refused is None or refused in told
