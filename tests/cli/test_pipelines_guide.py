"""The guide of pipelines: its files are written and its commands run, but for a profiled host's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from support.forked_verbs import ForkedVerb

GUIDES = Path(__file__).parents[2] / "docs/guide"
FILE = re.compile(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^(nnstretch [^#>\n]+)", re.MULTILINE)


@pytest.mark.slow
def test_every_command_of_the_guide_runs(tmp_path: Path) -> None:
    guide = (GUIDES / "pipelines.md").read_text(encoding="utf-8")
    first = (GUIDES / "first_network.md").read_text(encoding="utf-8")
    for name, text in FILE.findall(first + guide):
        (tmp_path / name).write_text(text)
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 64, 64), np.float32))
    (tmp_path / "pipe").mkdir()
    commands = [line for line in COMMAND.findall(guide) if "--soc here" not in line]
    assert len(commands) == 13
    for line in commands:
        verb = ForkedVerb(shlex.split(line)[1:], tmp_path)
        _, error = verb.communicate(timeout=120)
        assert verb.returncode == 0, f"{line}: {error[-500:]}"
