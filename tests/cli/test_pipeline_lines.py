"""What `nnstretch run --mode pipeline` says of a stream in words."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.pipeline_bundles import chain
from support.verb_run import ran

from nnstretch.bundle.bundle import write_bundle
from nnstretch.cli import run_verb
from nnstretch.run.results import stream_json
from nnstretch.run.results.stream_json import lateness


@pytest.fixture
def emulated(tmp_path: Path) -> Path:
    """A pipeline of two stages with predicted times."""
    bundle = chain(2)
    subgraphs = (replace(sub, predicted_us={"cpu": 500.0}) for sub in bundle.manifest.subgraphs)
    manifest = replace(bundle.manifest, subgraphs=tuple(subgraphs), soc="mi9")
    write_bundle(tmp_path / "net.nns", manifest, bundle.files)
    return tmp_path / "net.nns"


def test_more_late_items_than_half_make_emulated_times_noisy() -> None:
    assert lateness(150, 300) == ""
    assert lateness(283, 300) == (
        "this host could not keep the emulated clock, 283 of 300 items (94%) were late"
    )


def test_a_host_that_cannot_keep_the_clock_says_so(
    emulated: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times of an emulated clock that is a million times too fast for any host."""
    pacing_for = stream_json.pacing_for

    def too_fast(*args: object) -> stream_json.StagePacing:
        return replace(pacing_for(*args), dilation=1e-6)  # type: ignore[arg-type]

    monkeypatch.setattr(stream_json, "pacing_for", too_fast)
    options = ["--mode", "pipeline", "--clock", "real", "--soc", "mi9", "--repeat", "12"]
    result = ran(capsys, emulated, *options)
    noisy = "this host could not keep the emulated clock, 12 of 12 items (100%) were late"
    assert (result["items"], result["late_items"], result["noisy"]) == (12, 12, noisy)
    assert [(stage["items"], stage["late"]) for stage in result["stages"]] == [(12, 12)] * 2
    assert run_verb("run", [str(emulated), *options]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "12 of 12 items late" in said
    assert f"noisy: {noisy}" in said


def test_a_quiet_run_is_not_noisy(emulated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = ran(capsys, emulated, "--mode", "pipeline", "--soc", "mi9", "--repeat", "12")
    assert (result["late_items"], result["noisy"]) == (0, "")


def test_the_balance_is_that_of_the_networks_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Python stage may be the slowest, and nobody balances it."""
    bundle = chain(3, python=[0])
    write_bundle(tmp_path / "net.nns", bundle.manifest, bundle.files)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "stages", raising=False)
    (tmp_path / "stages.py").write_text(
        "from time import sleep\ndef m0(x):\n    sleep(0.02)\n    return x\n"
    )
    options = ["--mode", "pipeline", "--allow", "stages:m0", "--repeat", "6"]
    result = ran(capsys, tmp_path / "net.nns", *options)
    slowest, *others = result["stages"]
    assert slowest["share_ms"] == result["bottleneck_ms"]
    shares_ms = [stage["share_ms"] for stage in others]
    assert result["balance"] == pytest.approx(sum(shares_ms) / len(shares_ms) / max(shares_ms))
    assert run_verb("run", [str(tmp_path / "net.nns"), *options]) == 0
    assert "balance of the network's stages" in " ".join(capsys.readouterr().out.split())
