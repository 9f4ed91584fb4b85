"""A sample folder of a report, its page, and what a browser would see of it."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from nnstretch.errors import NnstretchError
from nnstretch.report import build_report
from nnstretch.report.load.folder import FILES

SAMPLE = Path(__file__).parents[1] / "data" / "report"


JSON_FILES = tuple(name for name in FILES if name.endswith(".json"))


HOSTILE = "</title><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&\x00\u202e"


@cache
def sample_page() -> str:
    return build_report(SAMPLE)


@cache
def sample(name: str) -> str:
    return (SAMPLE / name).read_text(encoding="utf-8")


def rewrite(path: Path, *keys: str | int, value: object) -> None:
    """Set one place of a JSON file."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    at = whole
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    path.write_text(json.dumps(whole), encoding="utf-8")


class Page(HTMLParser):
    """Notes what a browser would see, and that every element that opens also closes."""

    VOID = frozenset({"meta", "br", "hr", "col"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.children: dict[str, list[list[str]]] = {"svg": [], "table": []}
        self.attributes: list[tuple[str, str, str | None]] = []
        self._inside: list[tuple[str, list[str]]] = []
        self.feed(html)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[name] += 1
        self.attributes += [(name, key, value) for key, value in attrs]
        if self._inside:
            self._inside[-1][1].append(name)
        if name in self.VOID:
            return
        self.open.append(name)
        self._inside.append((name, []))

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name
        closed, children = self._inside.pop()
        if closed in self.children:
            self.children[closed].append(children)

    def values(self, key: str) -> list[str]:
        return [value or "" for _, found, value in self.attributes if found == key]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of every value inside, containers included."""
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(found for key, inner in inside for found in leaves(inner, (*path, key)))]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.just(HOSTILE),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


def page_or_refusal(folder: Path) -> tuple[str | None, str]:
    try:
        return build_report(folder), ""
    except NnstretchError as refusal:
        return None, str(refusal)


def poisoned(value: Any, keep: frozenset[str] = frozenset({"ph"})) -> Any:
    """Every text replaced, keys of free-form objects too."""
    if isinstance(value, dict):
        return {key: inner if key in keep else poisoned(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [poisoned(inner) for inner in value]
    return HOSTILE if isinstance(value, str) else value
