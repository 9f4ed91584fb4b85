"""What an exported network is called, and the command that comes next."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnstretch.cli import main

NETWORK = """
import torch

def net():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
"""


def exported(folder: Path, *more: str) -> str:
    """Export one network without building it; return its header."""
    (folder / "m.py").write_text(NETWORK)
    words = ["export", f"{folder / 'm.py'}:net", "--format", "cpp", "--no-build"]
    assert main([*words, "--out", str(folder / "out"), *more]) == 0
    return (folder / "out" / "network.hpp").read_text()


def test_one_network_at_two_sizes_has_two_names_where_they_are_given(tmp_path: Path) -> None:
    first = exported(tmp_path, "--input", "1,3,8,8")
    second = exported(tmp_path, "--input", "4,3,8,8", "--name", "four at once")
    assert "nns_model_four_at_once" in second
    assert "nns_model_four_at_once" not in first
    assert "add_library(network_four_at_once " in (tmp_path / "out" / "CMakeLists.txt").read_text()


def test_the_next_command_is_one_line_however_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ("long " * 30)
    folder.mkdir()
    exported(folder, "--input", "1,3,8,8")
    lines = capsys.readouterr().out.splitlines()
    command = next(line for line in lines if "cmake --preset release" in line)
    assert command.endswith("/out/build'")


def test_a_name_is_refused_where_no_cpp_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "m.py:net", "--name", "a", "--out", str(tmp_path / "net.nns")]) == 1
    assert "--name with --format onnx, command line, only --format cpp" in capsys.readouterr().err
