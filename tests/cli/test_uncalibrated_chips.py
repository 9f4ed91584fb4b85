"""Whoever shows times of a chip that nobody calibrated says so, or that it is not known."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cli.test_run_pipeline import written as written_pipeline
from support.bundles import branched_bundle
from support.pipeline_bundles import reference
from support.serving import loaded
from support.verb_run import ran

from nnstretch.bundle.bundle import Bundle, write_bundle
from nnstretch.cli import main
from nnstretch.cli.console import Terminal
from nnstretch.cli.serve.show import show as show_served

NETWORKS = """
from torch import nn

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x, y):
        return self.conv(x) + self.conv(y)

def one():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))

def pair():
    return Pair()
"""
WORKLOAD = """
applications:
- {name: net, model: net.nns, arrivals: {period_ms: 5}, instances: 3}
"""
SINGLE, PAIR = "1,3,8,8", "x=1,3,8,8;y=1,3,8,8"
TIMES_US = {"s0": 2000.0, "s1": 3000.0, "s2": 500.0}
UNKNOWN = "the bundle does not say whether that chip is calibrated"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(NETWORKS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a verb prints for people, on one line."""
    assert main([*words]) == 0
    return " ".join(capsys.readouterr().out.split())


def bundle_for(soc: str | None, predicted: bool = True) -> Bundle:
    bundle = branched_bundle(team=("cpu", "gpu"), predicted=predicted)
    return replace(bundle, manifest=replace(bundle.manifest, soc=soc))


def written(folder: Path, bundle: Bundle) -> str:
    write_bundle(folder / "net.nns", bundle.manifest, bundle.files)
    return str(folder / "net.nns")


@pytest.mark.slow
@pytest.mark.parametrize(("network", "shape"), [("one", SINGLE), ("pair", PAIR)])
@pytest.mark.usefixtures("folder")
def test_export_says_whether_its_chip_is_calibrated(
    capsys: pytest.CaptureFixture[str], network: str, shape: str
) -> None:
    words = ["export", f"net.py:{network}", "--input", shape, "--out", "net.nns"]
    assert "not calibrated" in said(capsys, *words, "--soc", "pixel6")
    assert "calibrated" not in said(capsys, *words, "--soc", "mi9")
    for soc, calibrated in (("pixel6", False), ("mi9", True)):
        result = json.loads(said(capsys, *words, "--soc", soc, "--json"))
        assert (result["calibrated"], result["noisy"]) == (calibrated, "")
        assert "mi9" in result["provenance"] or "NN-Stretch" in result["provenance"]
    assert not {"calibrated", "noisy"} & json.loads(said(capsys, *words, "--json")).keys()


@pytest.mark.usefixtures("folder")
def test_export_of_cpp_says_so_where_it_says_predicted_times(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["export", "net.py:one", "--input", SINGLE, "--out", "net", "--format", "cpp"]
    result = json.loads(said(capsys, *words, "--no-build", "--soc", "pixel6", "--json"))
    assert result["predicted_ms"] > 0
    assert result["calibrated"] is False


@pytest.mark.parametrize("more", [(), ("--requests", "4"), ("--clock", "real", "--repeat", "2")])
def test_run_without_a_chip_names_that_of_the_bundle(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: tuple[str, ...]
) -> None:
    net = written(tmp_path, bundle_for("pixel6"))
    result = ran(capsys, net, *more)
    assert (result["calibrated"], result["predicted_for"]) == (None, "pixel6")
    assert f"predicted for pixel6; {UNKNOWN}" in said(capsys, "run", net, *more)
    given = ran(capsys, net, *more, "--soc", "pixel6")
    assert given["calibrated"] is False
    assert "predicted_for" not in given
    assert "this chip is not calibrated" in said(capsys, "run", net, *more, "--soc", "pixel6")


def test_run_says_nothing_of_calibration_where_times_are_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    net = written(tmp_path, bundle_for(None, predicted=False))
    assert not {"calibrated", "predicted_for"} & ran(capsys, net, "--repeat", "2").keys()
    assert "calibrated" not in said(capsys, "run", net, "--repeat", "2")


def test_run_of_times_of_a_chip_without_a_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    net = written(tmp_path, bundle_for(None))
    assert f"predicted for a chip without a name; {UNKNOWN}" in said(capsys, "run", net)


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_a_pipeline_says_for_which_chip_its_bottleneck_is_predicted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, clock: str
) -> None:
    net = str(written_pipeline(tmp_path, Bundle(*reference()), TIMES_US))
    words = ("--mode", "pipeline", "--clock", clock, "--repeat", "8")
    result = ran(capsys, net, *words)
    assert (result["calibrated"], result["predicted_for"]) == (None, "mi9")
    assert f"predicted for mi9; {UNKNOWN}" in said(capsys, "run", net, *words)
    assert ran(capsys, net, *words, "--soc", "mi9")["calibrated"] is True


def test_a_pipeline_without_predicted_times_says_nothing_of_calibration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    net = str(written_pipeline(tmp_path, Bundle(*reference())))
    result = ran(capsys, net, "--mode", "pipeline", "--repeat", "8")
    assert "calibrated" not in result
    assert result["predicted_for"] is None


@pytest.mark.slow
def test_serve_says_that_its_emulated_chip_is_not_calibrated(tmp_path: Path) -> None:
    written(tmp_path, bundle_for("pixel6"))
    words = [sys.executable, "-m", "nnstretch", "serve", "net.nns", "--port", "0", "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*words, "--soc", "pixel6"], cwd=tmp_path, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("serving net at ")
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    result = json.loads(out)
    assert (result["calibrated"], result["noisy"]) == (False, "")
    assert "derived from mi9" in result["provenance"]
    shown = io.StringIO()
    show_served(result, Terminal(file=shown, width=200))
    assert "this chip is not calibrated" in shown.getvalue()


def test_served_costs_that_are_measured_here_have_no_chip(tmp_path: Path) -> None:
    workload = "applications: [{name: net, model: net.nns}]"
    measured, _ = loaded(tmp_path, f"pool: {{cpu: 1}}\n{workload}")
    emulated, _ = loaded(tmp_path, f"soc: mi9\n{workload}")
    assert measured.source == {}
    assert emulated.source["calibrated"] is True


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "net.nns", "--port", "0"),
        ("simulate", "load.yaml"),
        ("run", "net.nns"),
        ("run", "net.nns", "--requests", "3"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_times_of_another_chip_are_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    written(Path(), bundle_for("pixel6"))
    Path("load.yaml").write_text(WORKLOAD, encoding="utf-8")
    assert main([*words, "--soc", "mi9"]) == 1
    line = capsys.readouterr().err
    assert line.startswith("nnstretch: SoC mi9, ")
    assert line.endswith("its times were predicted for pixel6; export it for mi9\n")


def test_a_pipeline_refuses_times_of_another_chip(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    net = str(written_pipeline(tmp_path, Bundle(*reference()), TIMES_US))
    assert main(["run", net, "--mode", "pipeline", "--repeat", "8", "--soc", "mi11"]) == 1
    assert "its times were predicted for mi9; export it for mi11" in capsys.readouterr().err
