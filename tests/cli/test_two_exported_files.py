"""`nnstretch export --out --single` replaces both files or neither."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.small_plan import write_plan_of_small_net

pytest.importorskip("torch")

from nnstretch.bundle import bundle
from nnstretch.cli import run_verb
from nnstretch.errors import UnsupportedOp
from nnstretch.export import single_file

PAIR = """
import torch

class Both(torch.nn.Module):
    def forward(self, a, b):
        return a + b
"""
WRITERS = {
    "the single file": (single_file, "single_onnx"),
    "the bundle": (bundle, "write_sealed"),
}


def export(folder: Path, whole: bool) -> int:
    if whole:
        (folder / "net.py").write_text(PAIR)
        subject = [f"{folder}/net.py:Both", "--input", "a=1,4;b=1,4"]
    else:
        subject = [str(write_plan_of_small_net(folder))]
    files = ["--out", str(folder / "net.nns"), "--single", str(folder / "net.onnx")]
    return run_verb("export", [*subject, *files])


@pytest.mark.parametrize(
    ("writer", "whole"),
    [("the single file", False), ("the bundle", False), ("the bundle", True)],
)
def test_where_one_file_fails_both_stay(
    writer: str, whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise UnsupportedOp("cannot write it")

    monkeypatch.setattr(*WRITERS[writer], fail)
    older = {tmp_path / name: name for name in ("net.nns", "net.onnx")}
    for path, text in older.items():
        path.write_text(text)
    assert export(tmp_path, whole) == 1
    assert {path: path.read_text() for path in older} == older
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("whole", [False, True])
def test_both_files_are_written(whole: bool, tmp_path: Path) -> None:
    assert export(tmp_path, whole) == 0
    assert (tmp_path / "net.nns").stat().st_size
    assert (tmp_path / "net.onnx").stat().st_size
