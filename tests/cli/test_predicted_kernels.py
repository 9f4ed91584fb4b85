"""The kernels that `predict` lists: what each takes where it runs, beside which others."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from cli.test_cli import NET, called
from support.fake_meter import law_us

from nnstretch.kernel import MOBILE_FUSION
from nnstretch.predict import load_soc
from nnstretch.predict.save_soc import save_soc
from nnstretch.profile.fitting.fit_predictor import fit
from nnstretch.profile.sampling.kernel_generator import generate_kernels, load_prior
from nnstretch.profile.sampling.sample import Sample
from nnstretch.soc import Processor, Soc

PLAN = """
format: 1
model: net.py:make
input_shape: [1, 3, 32, 32]
segments:
- {start: input, end: stage1, branches: [{processor: cpu, width: 32}, {processor: dsp, width: 32}]}
- {start: stage1, end: output, branches: [{processor: cpu}]}
"""


@pytest.mark.slow
@pytest.mark.parametrize("contention", [1.0, 1.5])
def test_kernels_of_a_plan_add_up_to_what_their_branches_compute(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    contention: float,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    Path("plan.yaml").write_text(PLAN)
    shared = {frozenset({"cpu", "dsp"}): contention}
    save_soc(replace(load_soc("mi9"), contention=shared, branched_error=None), tmp_path / "chip")
    status, out, err = called(capsys, "predict", "plan.yaml", "--soc", "chip", "--json")
    assert status == 0, err
    result = json.loads(out)
    times_ms, errors_ms = defaultdict[tuple[str, ...], float](float), defaultdict(float)
    for row in result["kernels"]:
        where = row["start"], row["end"], row["processor"]
        times_ms[where] += row["latency_ms"]
        errors_ms[where] += row["error_ms"]
    assert len(times_ms) == 3
    for segment in result["segments"]:
        for branch in segment["branches"]:
            where = segment["start"], segment["end"], branch["processor"]
            assert times_ms[where] == pytest.approx(branch["compute_ms"])
            assert errors_ms[where] == pytest.approx(branch["error_ms"])


@pytest.mark.slow
def test_kernels_of_a_network_are_priced_alone_and_in_no_segment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(NET)
    _, out, _ = called(capsys, "predict", f"{tmp_path}/net.py:make", "--soc", "mi9", "--json")
    keys = {key for row in json.loads(out)["kernels"] for key in row}
    assert not keys & {"start", "end"}


@pytest.mark.slow
def test_a_processor_without_a_price_says_for_which_kernel_though_another_has_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(NET)
    kernels = islice(generate_kernels(load_prior(), MOBILE_FUSION, 0), 300)
    fitted = fit([Sample(k, (law_us(k),) * 12) for k in kernels], "", "float32", lambda *_: False)
    families = {name: f for name, f in fitted.families.items() if not name.startswith("linear")}
    assert len(families) < len(fitted.families)
    predictors = {
        "cpu0": replace(fitted, processor="cpu0"),
        "cpu1": replace(fitted, processor="cpu1", families=families),
    }
    processors = Processor("cpu0", "cpu", 1), Processor("cpu1", "cpu", 1)
    save_soc(Soc("two", processors, "float32", predictors), tmp_path / "two")
    command = ("predict", f"{tmp_path}/net.py:make", "--soc", str(tmp_path / "two"))
    _, out, err = called(capsys, *command)
    assert "no price on cpu1, never measured: linear\n" in out + err
    assert "no price on cpu0" not in out + err
    _, out, _ = called(capsys, *command, "--json")
    result = json.loads(out)
    assert result["latency_ms"]["cpu1"] is None
    assert (result["uncovered"], result["unpriced"]) == (["linear"], {"cpu1": ["linear"]})
