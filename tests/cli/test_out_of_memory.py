"""A verb that memory does not suffice for says so in one line, whichever network asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnstretch.cli import main
from nnstretch.cli.out_of_memory import out_of_memory

NET = """
from torch import nn

def make():
    wide = nn.Conv2d(3, 8, 3, 2, 1000000000)
    return nn.Sequential(wide, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
"""


def test_a_network_of_endless_borders_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(NET)
    model, out = f"{tmp_path / 'net.py'}:make", tmp_path / "net.nns"
    assert main(["export", model, "--input", "1x3x16x16", "--out", str(out)]) == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("nnstretch: memory does not suffice, export, Storage size")
    assert not out.exists()


def test_other_errors_are_no_lack_of_memory() -> None:
    assert out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "bench") is None
    assert out_of_memory(MemoryError(), "bench") == (
        "memory does not suffice, bench, no more could be had"
    )
    error = RuntimeError("Storage size calculation overflowed with sizes=[1, 27, 10]")
    assert out_of_memory(error, "export") == f"memory does not suffice, export, {error}"
