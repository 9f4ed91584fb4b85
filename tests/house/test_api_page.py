"""The API page names what exists, and everything that is public."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import nnstretch

ROOT = Path(__file__).parents[2]
NAMES = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.M)
NOUNS = [
    "graph",
    "kernel",
    "soc",
    "plan",
    "trial",
    "pipeline",
    "task",
    "task_graph",
    "trace",
    "predictor",
    "protocols",
    "errors",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_page_exists(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute)


def test_the_page_has_all_public_names_and_nouns() -> None:
    assert set(nnstretch.__all__) <= {name.rpartition(".")[2] for name in NAMES}
    assert {f"nnstretch.{noun}" for noun in NOUNS} <= set(NAMES)


def test_the_page_has_all_suites_to_inherit() -> None:
    suites = {path.stem for path in (ROOT / "nnstretch" / "testing").glob("*_suite.py")}
    assert {f"nnstretch.testing.{suite}" for suite in suites} <= set(NAMES)
