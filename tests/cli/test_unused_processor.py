"""A fast processor that is dear to reach: limits of segments are taken from it, and users are told.

The chip is mi9's cpu and dsp, and an npu three times as fast whose copies cost a millisecond.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli.test_cli import NET, called

from nnstretch.predict import load_soc
from nnstretch.predict.save_soc import save_soc
from nnstretch.soc import Link

SEARCH = ("--width-steps", "3", "--json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network and the chip."""
    folder = tmp_path_factory.mktemp("dear")
    (folder / "net.py").write_text(NET)
    mi9 = load_soc("mi9")
    cpu, dsp = mi9.processor("cpu"), mi9.processor("dsp")
    npu = replace(dsp, name="npu", kind="npu", copy_in=Link(700.0, 0.4), copy_out=Link(300.0, 0.4))
    predictor: Any = mi9.predictors["dsp"]
    rates = predictor.rates
    faster = {name: 3 * getattr(rates, name) for name in ("dense_macs_per_us", "bytes_per_us")}
    faster |= {"launch_us": rates.launch_us / 3, "group_us": rates.group_us / 3}
    predictors = {"cpu": mi9.predictors["cpu"], "dsp": predictor}
    predictors["npu"] = replace(predictor, processor="npu", rates=replace(rates, **faster))
    chip = replace(mi9, processors=(cpu, dsp, npu), predictors=predictors, neighbours=())
    save_soc(chip, folder / "chip")
    return folder


@pytest.mark.slow
def test_a_fast_processor_that_the_plan_does_not_use_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    asked = ("search", "net.py:make", "--soc", "chip", "--processors")
    status, out, err = called(capsys, *asked, "cpu,dsp,npu", *SEARCH)
    assert status == 0, err
    found = json.loads(out)
    unused = found["unused_fastest"]
    placed = {b["processor"] for s in found["plans"][0]["segments"] for b in s["branches"]}
    assert unused["processor"] == "npu"
    assert "npu" not in placed
    assert unused["besides"] == ["cpu", "dsp"]
    _, out, _ = called(capsys, "predict", "net.py:make", "--soc", "chip", "--json")
    kernels_ms = [k["latency_ms"] for k in json.loads(out)["kernels"] if k["processor"] == "npu"]
    assert unused["compute_ms"] == pytest.approx(sum(kernels_ms))
    _, out, _ = called(capsys, *asked, "cpu,dsp,npu", *SEARCH[:2])
    line = " ".join(out.split())
    assert "npu computes the original fastest (" in line
    assert "and the plan does not use it; alpha and beta are taken from it, --processors" in line
    _, out, _ = called(capsys, *asked, "cpu,dsp", *SEARCH)
    besides = json.loads(out)
    assert "unused_fastest" not in besides
    assert besides["plans"][0]["latency_ms"] < found["plans"][0]["latency_ms"]


@pytest.mark.slow
def test_nothing_is_advised_where_one_processor_would_be_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    asked = ("search", "net.py:make", "--soc", "chip", "--processors", "cpu,npu", *SEARCH)
    _, out, _ = called(capsys, *asked)
    found = json.loads(out)
    assert [len(s["branches"]) for s in found["plans"][0]["segments"]] == [1]
    assert "unused_fastest" not in found
