"""The kernels that `predict` lists: what each takes where it runs, beside which others."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from cli.test_cli import NET, called

from nnstretch.predict import load_soc
from nnstretch.predict.save_soc import save_soc

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
