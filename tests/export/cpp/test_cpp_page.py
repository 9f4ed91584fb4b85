"""docs/cpp.md is followed word for word, in an empty folder, and the README's lines after it; no
Python is started but `nnstretch`. Boards have a script of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torchvision")

from nnstretch.export.cpp.build import missing_tools

ROOT = Path(__file__).parents[3]
FENCE = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
BLOCKS = FENCE.findall((ROOT / "docs" / "cpp.md").read_text(encoding="utf-8"))
FILE_NAME = re.compile(r"(?://|/\*|#) (\w+\.\w+)")
"""First line of a block that is a file."""
COMPILERS = {"CC": "cc", "CXX": "c++"}
BOARD = "qemu-aarch64"
"""In the block that `scripts/cpp_networks boards` carries out for three networks."""


def has_openblas() -> bool:
    """Return whether the headers of a BLAS are there."""
    return any(Path("/usr/include").rglob("cblas.h"))


def of_readme() -> list[str]:
    """Return the README's lines for boards."""
    blocks = FENCE.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    (lines,) = [block.splitlines() for _, block in blocks if "--format cpp" in block]
    return [re.sub(r"\s+# .*", "", line).replace(".venv/bin/", "") for line in lines]


def write_programs(folder: Path) -> None:
    """Write `nnstretch`, compilers in a hurry, and traps where a build would look for Python."""
    trap = f'#!/bin/sh\necho "$0 $*" >> {folder}/started\nexit 1\n'
    verb = f'#!/bin/sh\nexec {sys.executable} -m nnstretch "$@"\n'
    texts = {"nnstretch": verb, "python": trap, "python3": trap}
    # Whatever a build asks for, little is optimised, which takes less time.
    texts |= {n: f'#!/bin/sh\nexec {shutil.which(n)} "$@" -O1 -g0\n' for n in COMPILERS.values()}
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


@pytest.mark.slow
def test_every_block_works_in_an_empty_folder(tmp_path: Path) -> None:
    if missing_tools():
        pytest.skip(f"without {', '.join(missing_tools())} nothing can be built")
    programs, folder = tmp_path / "bin", tmp_path / "empty"
    write_programs(programs)
    folder.mkdir()
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    env |= {"CMAKE_BUILD_PARALLEL_LEVEL": "2", "CMAKE_BUILD_TYPE": "Debug"} | COMPILERS

    def follow(block: str) -> str:
        command = ["bash", "-ec", block]
        ended = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=600
        )
        assert ended.returncode == 0, (block, ended.stdout[-2000:], ended.stderr[-2000:])
        return ended.stdout

    for kind, block in BLOCKS:
        if kind != "sh":
            name = FILE_NAME.match(block)
            assert name is not None, block
            (folder / name[1]).write_text(block)
    shell = [block for kind, block in BLOCKS if kind == "sh" and BOARD not in block]
    done = [follow(block) for block in shell if "-lopenblas" not in block or has_openblas()]
    assert len(done) >= 3
    assert any(output.endswith("ok\nok\n") for output in done)
    assert not (programs / "started").exists(), (programs / "started").read_text()
    follow_readme(follow, folder, shell[0].splitlines()[0])


def follow_readme(follow: Callable[[str], str], folder: Path, exported: str) -> None:
    """Follow the README's lines after the one that the page begins with."""
    export, build_and_run, report = of_readme()
    assert " ".join(export.split()) == re.sub(r"\s+# .*", "", exported)
    for name in ("y.npy", "t.json"):
        (folder / name).unlink()
    follow(build_and_run)
    follow(report)
    assert (folder / "y.npy").is_file()
    assert "<svg" in (folder / "t.html").read_text(encoding="utf-8")
