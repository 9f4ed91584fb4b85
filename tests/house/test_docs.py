"""What pages and help texts name exists: files, modules, links; every command they show parses."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from nnstretch.cli import parser_of, verb_of
from nnstretch.cli.verbs import VERB_NAMES, VERBS

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


COMMAND = re.compile(r"^(?:\.venv/bin/)?nnstretch .*", re.MULTILINE)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
AFTER = re.compile(r" (?:[>|]|&&) .*")
"""What a shell does with what a command prints, or behind it."""


def commands(page: Path) -> list[str]:
    """Commands of blocks for a shell; those of two lines are joined."""
    blocks = SHELL.findall(page.read_text(encoding="utf-8"))
    return COMMAND.findall("\n".join(blocks).replace("\\\n", " "))


def check_command(line: str) -> None:
    """Parse a command as a shell and its verb do: what is no argument stands behind a `#`."""
    words = shlex.split(AFTER.sub("", line), comments=True)[1:]
    verb, argv = verb_of(words)
    assert verb.split()[0] in VERB_NAMES
    # The parser of `train` is built from the recipe: tests/train runs it.
    if verb != "train":
        parser_of(verb).parse_args(argv)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_parses(page: Path) -> None:
    for line in commands(page):
        check_command(line)


def test_pages_show_commands() -> None:
    assert len(commands(PAGES[0])) > 15
    assert len(commands(ROOT / "docs" / "guide" / "pipelines.md")) > 10


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_every_line_of_examples_in_a_help_text_is_a_command(verb: str) -> None:
    blocks = (parser_of(verb).description or "").split("\n\n")
    for block in blocks:
        if re.match(r" +nnstretch ", block):
            for line in block.splitlines():
                assert line.strip().startswith("nnstretch "), line
                check_command(line)
