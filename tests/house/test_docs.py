"""What README and docs name exists: files, modules, links; and every command they show parses."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from nnstretch.cli import parser_of, verb_of
from nnstretch.cli.verbs import VERB_NAMES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MADE_BY_COMMANDS = {"latency_predictors/host"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_the_project_that_are_named_exist(page: Path) -> None:
    pattern = (
        r"(?<![\w./])((?:nnstretch|scripts|tests|docs|recipes|examples)/[\w./]+\.(?:py|md|yaml))"
    )
    named = set(re.findall(pattern, page.read_text(encoding="utf-8")))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = []
    for name in re.findall(r"(?:from|import) (nnstretch(?:\.\w+)+)", text):
        if importlib.util.find_spec(name) is None:
            missing.append(name)
    assert missing == []


def commands() -> list[str]:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    shown = [line.split(" #")[0].strip() for line in lines]
    verbs = [line for line in shown if line.startswith(".venv/bin/nnstretch ")]
    # The parser of `train` is built from the recipe: tests/train runs it.
    return [line for line in verbs if not line.startswith(".venv/bin/nnstretch train")]


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_readme_parses(command: str) -> None:
    verb, argv = verb_of(shlex.split(command)[1:])
    assert verb.split()[0] in VERB_NAMES
    parser_of(verb).parse_args(argv)


def test_the_readme_shows_commands() -> None:
    assert len(commands()) > 15
