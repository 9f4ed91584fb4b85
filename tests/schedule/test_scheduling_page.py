"""docs/scheduling.md: its policy does what the page says, and its commands run as they stand."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest

from nnstretch.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "scheduling.md"


def test_the_policy_in_ten_lines_runs() -> None:
    outcome = doctest.testfile(str(PAGE), module_relative=False)
    assert outcome.attempted >= 6
    assert outcome.failed == 0


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in ("graph.json", "workload.yaml", "sweep.yaml"):
        block = text.split(f"is `{name}`", 1)[1].split("```", 2)[1]
        (tmp_path / name).write_text(block.split("\n", 1)[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (commands,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    for line in commands.splitlines():
        program, *words = shlex.split(line, comments=True)
        more = ["--workers", "1"] if "sweep" in words else []
        assert (program, main([*words, *more])) == ("nnstretch", 0), line
    for name in ("graph.svg", "page.html", "results/report.html", "results/sweep.md"):
        assert (tmp_path / name).stat().st_size > 1000
