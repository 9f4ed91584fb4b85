"""Files of the C++ runtime where a program's locale has commas for decimal points."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from support.cpp import CppRuntime, cpp_runtime  # noqa: E402, F401

from nnstretch.files.package_data import package_data  # noqa: E402
from nnstretch.report.load.trace import read_trace_file  # noqa: E402

NAME = "de_DE.UTF-8"


@pytest.fixture
def locales(tmp_path: Path) -> Path:
    """Make the locale in a folder; skip where the system has no rules for it."""
    folder = tmp_path / "locales"
    folder.mkdir()
    if not shutil.which("localedef"):
        pytest.skip("without localedef there is no locale with decimal commas")
    command = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(folder / NAME)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no locale with decimal commas: {made.stderr[-200:]}")
    return folder


@pytest.mark.slow
def test_costs_and_traces_are_the_same_numbers_in_every_locale(
    cpp_runtime: CppRuntime,  # noqa: F811
    locales: Path,
    tmp_path: Path,
) -> None:
    tests = package_data("cpp") / "tests"
    sources = [tests / "locale.cpp", tests / "stress_subjects.cpp"]
    program = cpp_runtime.link(sources, tmp_path / "locale")
    costs = {"call": {"cpu": 12.345}}
    (tmp_path / "costs.json").write_text(json.dumps({"format": 1, "costs_us": costs}))
    command = [str(program), NAME, str(tmp_path)]
    env = {**os.environ, "LOCPATH": str(locales)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)
    assert done.returncode == 0, (done.returncode, done.stderr)
    files = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in FILES}
    assert files["written"]["costs_us"] == costs
    assert files["graph"]["cost"]["a.sum"] == {"cpu0": 12.345, "cpu1": 1234.5}
    assert len(files["times"]["tasks"]) == 2 * len(files["graph"]["tasks"])
    spans = read_trace_file(files["trace"], "trace.json").slices
    assert len(spans) == len(files["graph"]["tasks"])


FILES = ("written", "graph", "times", "trace")
