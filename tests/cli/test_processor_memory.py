"""Weights that a processor's `memory_bytes` has no room for: refused, or told with the result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.small_plan import write_plan_of_small_net

from nnstretch.cli import run_verb
from nnstretch.predict import load_soc
from nnstretch.predict.save_soc import save_soc

PAIR = """
from torch import nn

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, one, two):
        return self.first(one) + self.second(two)
"""
WEIGHTS = 8 * 3 * 9 + 8, 8 * 3 * 9 + 8 + 10 * 1024 + 10
"""Bytes on the DSP and on the CPU, of the plan in int8."""


def chip(folder: Path, memory_bytes: int) -> str:
    """Write `mi9` with a limit on every processor; return its folder."""
    soc = load_soc("mi9")
    limited = tuple(replace(each, memory_bytes=memory_bytes) for each in soc.processors)
    save_soc(replace(soc, processors=limited), folder / "chip")
    return str(folder / "chip")


@pytest.mark.slow
def test_a_plan_with_more_weights_than_a_processor_holds_becomes_no_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out = str(write_plan_of_small_net(tmp_path)), tmp_path / "net.nns"
    argv = ["--out", str(out), "--soc"]
    assert run_verb("partition", [plan, *argv, chip(tmp_path, max(WEIGHTS) - 1)]) == 1
    assert "memory: processor cpu needs" in capsys.readouterr().err
    assert run_verb("partition", [plan, *argv, chip(tmp_path, 100)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("nnstretch: no stages, plan of ")
    assert line.endswith(f"memory: processor cpu needs {max(WEIGHTS):.4g} bytes, limit 100 bytes")
    assert not out.exists()
    assert run_verb("partition", [plan, *argv, chip(tmp_path, max(WEIGHTS))]) == 0
    assert out.exists()


def exported_notes(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    """Return what an export tells of memory."""
    assert run_verb("export", [*argv, "--json"]) == 0
    notes: list[str] = json.loads(capsys.readouterr().out)["notes"]
    return [note for note in notes if note.startswith("memory: ")]


@pytest.mark.slow
def test_an_export_says_where_weights_exceed_the_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, net = str(write_plan_of_small_net(tmp_path)), f"{tmp_path}/pair.py:Pair"
    (tmp_path / "pair.py").write_text(PAIR)
    pair = (net, "--input", "one=1,64;two=1,64", "--processor", "dsp")
    for subject, needs in (((plan,), "cpu needs 1.047e+04"), (pair, "dsp needs 8320")):
        argv = (*subject, "--out", str(tmp_path / "net.nns"), "--soc")
        assert exported_notes(capsys, *argv, chip(tmp_path, 20_000)) == []
        assert exported_notes(capsys, *argv, chip(tmp_path, 8000)) == [
            f"memory: processor {needs} bytes, limit 8000 bytes"
        ]
