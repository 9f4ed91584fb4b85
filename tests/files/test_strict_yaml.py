"""YAML of strangers: what aliases stand for is bounded, before anything is made of it."""

from __future__ import annotations

import pytest

from nnstretch.errors import BrokenFile
from nnstretch.files import strict_yaml
from nnstretch.files.plan_yaml import parse_plan
from nnstretch.files.strict_yaml import parse_yaml


def test_aliases_and_merges_are_read() -> None:
    text = "one: &one {x: 1}\ntwo: {<<: *one, y: 2}\nthree: [*one, *one]"
    assert parse_yaml(text, "a.yaml") == {
        "one": {"x": 1},
        "two": {"x": 1, "y": 2},
        "three": [{"x": 1}, {"x": 1}],
    }


@pytest.mark.parametrize("text", ["&a [*a]", "a: &a {b: *a}", "a: &a {<<: *a}"])
def test_an_alias_within_itself_is_refused(text: str) -> None:
    with pytest.raises(BrokenFile, match="line 1, an alias lies within what it stands for"):
        parse_yaml(text, "a.yaml")


@pytest.mark.parametrize("link", ["[{}]", "{{<<: [{}]}}"])
def test_aliases_of_aliases_are_counted(link: str) -> None:
    lines = ["a0: &a0 {x: 1}"]
    for i in range(1, 30):
        lines.append(f"a{i}: &a{i} " + link.format(", ".join([f"*a{i - 1}"] * 9)))
    with pytest.raises(BrokenFile, match=r"line \d, aliases stand for \d+ values or more, at most"):
        parse_yaml("\n".join(lines), "a.yaml")


def test_as_many_values_as_allowed_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_yaml, "MOST_REPEATED", 8)
    assert parse_yaml("[&a [1, 2, 3], *a, *a]", "a.yaml") == [[1, 2, 3]] * 3
    with pytest.raises(BrokenFile, match="stand for 12 values or more, at most 8 may"):
        parse_yaml("[&a [1, 2, 3], *a, *a, *a]", "a.yaml")


def test_a_plan_that_repeats_its_branches_without_end_is_refused() -> None:
    branches = [f"  - {{processor: p{i}, depth: 1, width: 8}}" for i in range(1000)]
    segments = [f"- {{end: e{i}, branches: *b}}" for i in range(1000)]
    lines = ["format: 1", "model: a.py:b", "input: [1, 3, 8, 8]", "segments:", "- end: start"]
    text = "\n".join([*lines, "  branches: &b", *branches, *segments])
    with pytest.raises(BrokenFile, match=r"no YAML, line 10\d\d, aliases stand for"):
        parse_plan(text, "p.yaml")
