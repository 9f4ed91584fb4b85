"""The guide of pipelines: its files are written and its commands run, but for a profiled host's."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.forked_verbs import ForkedVerb

GUIDES = Path(__file__).parents[2] / "docs/guide"
FILE = re.compile(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^(nnstretch [^#>\n]+)", re.MULTILINE)
STREAMING = re.compile(r"From Python:\n\n```python\n(.*?)```", re.DOTALL)
NAMES_OF_THE_READER = """
import numpy
image = numpy.zeros((1, 3, 64, 64), "float32")
images = [image] * 3
def tracked():
    yield from images
"""


@pytest.fixture
def guide(tmp_path: Path) -> str:
    """Write the files of the guide; return its text."""
    guide = (GUIDES / "pipelines.md").read_text(encoding="utf-8")
    first = (GUIDES / "first_network.md").read_text(encoding="utf-8")
    for name, text in FILE.findall(first + guide):
        (tmp_path / name).write_text(text)
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 64, 64), np.float32))
    return guide


def run_command(line: str, folder: Path) -> None:
    verb = ForkedVerb(shlex.split(line)[1:], folder)
    _, error = verb.communicate(timeout=120)
    assert verb.returncode == 0, f"{line}: {error[-500:]}"


@pytest.mark.slow
def test_every_command_of_the_guide_runs(guide: str, tmp_path: Path) -> None:
    (tmp_path / "pipe").mkdir()
    commands = [line for line in COMMAND.findall(guide) if "--soc here" not in line]
    assert len(commands) == 13
    for line in commands:
        run_command(line, tmp_path)


@pytest.mark.slow
def test_the_guide_streams_through_the_bundle_that_it_makes(guide: str, tmp_path: Path) -> None:
    (making,) = [line for line in COMMAND.findall(guide) if "--out camera.nns" in line]
    run_command(making, tmp_path)
    (code,) = STREAMING.findall(guide)
    command = [sys.executable, "-c", NAMES_OF_THE_READER + code]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr[-500:]
    assert finished.stdout.count("\n") == 3
