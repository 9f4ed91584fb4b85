"""The workloads of examples/cedr run, and say that nobody calibrated them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.scripts import SCRIPTS

from nnstretch.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples" / "cedr"


def simulate(capsys: pytest.CaptureFixture[str], name: str, *options: str) -> dict[str, object]:
    assert main(["simulate", str(EXAMPLES / name), *options, "--json"]) == 0
    result: dict[str, object] = json.loads(capsys.readouterr().out)
    return result


def test_workloads_of_the_described_chip_are_schedules_and_not_calibrated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    result = simulate(capsys, "signal.yaml", "--check", "--report", str(page))
    assert result["calibrated"] is False
    assert result["checked_tasks"] == 5 * (110 + 769)
    assert "Not calibrated" in page.read_text()


def test_published_times_that_set_the_scale_are_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (EXAMPLES / "networks.yaml").read_text()
    text = text.replace("  zip: 1\n  fft: 1\n", "").replace("model: ", f"model: {EXAMPLES}/")
    head, _, applications = text.partition("applications:")
    detector = applications[: applications.index("- name: vgg")]
    for pool, wanted_ms in (("conv2d: 1", 6420), ("", 7500)):
        path = tmp_path / "detection.yaml"
        path.write_text(head.replace("  conv2d: 1", f"  {pool}") + "applications:" + detector)
        assert simulate(capsys, str(path))["makespan_ms"] == pytest.approx(wanted_ms, rel=0.003)


def test_a_sweep_says_in_its_table_that_costs_are_not_calibrated(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(f"workload: {EXAMPLES}/signal.yaml\npools: [{{cpu: 1}}, {{cpu: 2, fft: 1}}]\n")
    command = ["simulate", "sweep", str(sweep), "--out", str(tmp_path / "out"), "--workers", "1"]
    assert main(command) == 0
    assert "Not calibrated" in (tmp_path / "out" / "sweep.md").read_text()
    assert "Not calibrated" in (tmp_path / "out" / "report.html").read_text()
    assert "Failed" not in (tmp_path / "out" / "sweep.md").read_text()


def test_shipped_signal_graphs_are_those_that_the_script_writes(tmp_path: Path) -> None:
    assert (SCRIPTS / "cedr").is_dir()
    from describe import PROVENANCE
    from signal_apps import pulse_doppler, wifi_tx
    from simulated import write_graph

    described = json.loads((EXAMPLES / "zcu102.json").read_text())
    for make in (pulse_doppler, wifi_tx):
        name = f"{make.__name__}.json"
        write_graph(tmp_path / name, make(described["code_beside_an_fft_us"]), PROVENANCE)
        assert (tmp_path / name).read_text() == (EXAMPLES / name).read_text()


def test_a_misspelt_type_of_the_pool_is_refused_and_one_that_idles_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (EXAMPLES / "signal.yaml").read_text().replace("model: ", f"model: {EXAMPLES}/")
    path = tmp_path / "mix.yaml"
    path.write_text(text.replace("  fft: 1", "  fff: 1"))
    assert main(["simulate", str(path)]) == 1
    assert "no application has a cost on fff" in (error := capsys.readouterr().err)
    assert "fft" in error
    path.write_text(text.replace("  fft: 1", "  zip: 1"))
    assert simulate(capsys, str(path))["utilisation"]["zip"] == 0  # type: ignore[index]
