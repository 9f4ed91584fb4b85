"""`nnstretch doctor`: what is here, and whether it works."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli.test_extras import REQUIREMENTS, run_without

from nnstretch.cli import main
from nnstretch.cli.doctor import doctor, extras, runtimes
from nnstretch.cli.doctor.probe_bundle import onnx_file, probe_output, probe_weights
from nnstretch.cli.doctor.runtimes import check_runtimes, compare_with_numpy

KEYS = (
    *("usable", "python", "system", "versions", "processor", "threads", "compiled_search"),
    *("extras", "runtimes", "overlap"),
)


def test_the_probe_is_an_onnx_file_that_onnx_takes() -> None:
    model = onnx.load_model_from_string(onnx_file("y", probe_weights()))
    onnx.checker.check_model(model, full_check=True)


def test_every_runtime_here_computes_what_numpy_does() -> None:
    checks, networks = check_runtimes(lambda done, total: None)
    installed = [check for check in checks if check.installed]
    assert [check.backend for check in installed if not check.correct] == []
    assert networks.keys() == {check.backend for check in installed}
    assert "onnxruntime" in networks


def test_a_runtime_that_computes_something_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _, networks = check_runtimes(lambda done, total: None)
    wrong = [weight * np.float32(1.001) for weight in probe_weights()]
    monkeypatch.setattr(runtimes, "probe_output", lambda x, weights: probe_output(x, wrong))
    assert compare_with_numpy(networks["onnxruntime"]).startswith("it computes something else, by")


@pytest.mark.slow
def test_the_verb_tells_all_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--seconds", "0.5"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert tuple(result) == KEYS
    assert result["usable"]
    assert result["overlap"]["checks"] >= 1
    assert result["overlap"]["least"] <= result["overlap"]["speedup"] <= result["overlap"]["most"]
    assert result["processor"]["clusters"][0]["cores"]


def test_the_verb_tells_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [*REQUIREMENTS, 'no-such-package; extra == "never"']
    monkeypatch.setattr(extras, "requires", lambda name: lines)
    assert main(["doctor", "--seconds", "0"]) == 0
    said = capsys.readouterr().out
    assert "pip install 'nnstretch[never]'" in said
    assert said.rstrip().endswith("usable")


@pytest.mark.parametrize("seconds", ["-1", "nan", "1e9"])
def test_odd_times_are_refused(capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    assert main(["doctor", "--seconds", seconds]) == 1
    assert f"--seconds is {float(seconds):g}" in capsys.readouterr().err


@pytest.mark.slow
def test_without_a_runtime_it_is_not_usable(tmp_path: Path) -> None:
    done = run_without("dev", ["doctor", "--json"], tmp_path)
    result = json.loads(done.stdout)
    assert (done.returncode, done.stderr, result["usable"]) == (1, "", False)
    assert [check["installed"] for check in result["runtimes"]] == [False] * 4
    assert "nnstretch[run]" in result["runtimes"][0]["why"]


def test_a_container_says_its_share_of_the_cores(tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    assert doctor.read_quota(file) is None
    for text, cores in (("max 100000", None), ("150000 100000\n", 1.5), ("x", None)):
        file.write_text(text)
        assert doctor.read_quota(file) == cores
