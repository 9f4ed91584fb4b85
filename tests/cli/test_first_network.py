"""The guide of the first network: its files are written, its commands run, in an empty folder."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.forked_verbs import ForkedVerb

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guide/first_network.md"
BLOCK = re.compile(r"```(python|yaml|sh)\n(.*?)```", re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """Kind and text of every block that is written or run."""
    return BLOCK.findall(GUIDE.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_every_command_of_the_guide_runs(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning")
    said = ""
    for kind, text in blocks():
        if kind != "sh":
            name = text.partition("\n")[0].removeprefix("# ")
            (tmp_path / name).write_text(text)
            continue
        for line in text.splitlines():
            program, *words = shlex.split(line)
            if program == "nnstretch":
                verb = ForkedVerb(words, tmp_path)
                said, error = verb.communicate(timeout=300)
                status = verb.returncode
            else:
                command = [sys.executable, *words]
                script = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, check=False)
                status, error = script.returncode, script.stderr.decode()
            assert status == 0, f"{line}: {error[-500:]}"
    best = [line.split() for line in said.splitlines()[-3:]]
    assert {label for _, label in best} == {"disc", "square", "stripes"}, said


def test_the_guide_writes_three_files_and_uses_six_commands() -> None:
    names = [text.partition("\n")[0] for kind, text in blocks() if kind != "sh"]
    assert names == ["# draw.py", "# net.py", "# recipe.yaml"]
    commands = "".join(text for kind, text in blocks() if kind == "sh").splitlines()
    verbs = [line.split()[1] for line in commands if line.startswith("nnstretch ")]
    assert verbs == ["train", "search", "train", "export", "run"]
