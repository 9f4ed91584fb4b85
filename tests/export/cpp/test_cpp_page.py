"""docs/cpp.md is followed word for word, in an empty folder; boards have a script of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchvision")

from nnstretch.export.cpp.build import missing_tools

PAGE = Path(__file__).parents[3] / "docs" / "cpp.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)
FILE_NAME = re.compile(r"(?://|/\*|#) (\w+\.\w+)")
"""First line of a block that is a file."""
BOARD = "qemu-aarch64"
"""In the block that `scripts/cpp_networks boards` carries out for three networks."""


def has_openblas() -> bool:
    """Return whether the headers of a BLAS are there."""
    return any(Path("/usr/include").rglob("cblas.h"))


@pytest.mark.slow
def test_every_block_works_in_an_empty_folder(tmp_path: Path) -> None:
    if missing_tools():
        pytest.skip(f"without {', '.join(missing_tools())} nothing can be built")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nnstretch").write_text(f'#!/bin/sh\nexec {sys.executable} -m nnstretch "$@"\n')
    (programs / "nnstretch").chmod(0o755)
    folder = tmp_path / "empty"
    folder.mkdir()
    root = str(PAGE.parents[1])
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": root}
    # What names no type of build is built without optimisation, which takes less time.
    env |= {"CMAKE_BUILD_PARALLEL_LEVEL": "2", "CMAKE_BUILD_TYPE": "Debug"}
    for kind, block in BLOCKS:
        if kind != "sh":
            name = FILE_NAME.match(block)
            assert name is not None, block
            (folder / name[1]).write_text(block)
    done: list[str] = []
    for kind, block in BLOCKS:
        if kind != "sh":
            continue
        if BOARD in block or ("-lopenblas" in block and not has_openblas()):
            continue
        ended = subprocess.run(
            ["bash", "-ec", block],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert ended.returncode == 0, (block, ended.stdout[-2000:], ended.stderr[-2000:])
        done.append(ended.stdout)
    assert len(done) >= 3
    assert (folder / "y.npy").is_file()
    assert any(output.endswith("ok\nok\n") for output in done)
