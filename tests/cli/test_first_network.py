"""The guide of the first network: its files are written, its commands run, in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guide/first_network.md"
BLOCK = re.compile(r"```(python|yaml|sh)\n(.*?)```", re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """Kind and text of every block that is written or run."""
    return BLOCK.findall(GUIDE.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_every_command_of_the_guide_runs(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning")
    folders = os.pathsep.join((str(ROOT), os.environ["PYTHONPATH"]))
    environment = os.environ | {"PYTHONPATH": folders}
    said = ""
    for kind, text in blocks():
        if kind != "sh":
            name = text.partition("\n")[0].removeprefix("# ")
            (tmp_path / name).write_text(text)
            continue
        for line in text.splitlines():
            program, *words = shlex.split(line)
            module = ["-m", "nnstretch"] if program == "nnstretch" else []
            done = subprocess.run(
                [sys.executable, *module, *words],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{line}: {done.stderr[-500:]}"
            said = done.stdout
    best = [line.split() for line in said.splitlines()[-3:]]
    assert {label for _, label in best} == {"disc", "square", "stripes"}, said


def test_the_guide_writes_three_files_and_uses_six_commands() -> None:
    names = [text.partition("\n")[0] for kind, text in blocks() if kind != "sh"]
    assert names == ["# draw.py", "# net.py", "# recipe.yaml"]
    commands = "".join(text for kind, text in blocks() if kind == "sh").splitlines()
    verbs = [line.split()[1] for line in commands if line.startswith("nnstretch ")]
    assert verbs == ["train", "search", "train", "export", "run"]
