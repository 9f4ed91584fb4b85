"""HTML and SVG escaped by construction: only `Markup` passes as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape as html_escape

# Control characters, lone surrogates and direction overrides: they break the page or disguise a
# name.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]"
)
_VOID = frozenset({"meta", "br", "hr", "col"})


class Markup(str):
    """Text that is already HTML; only this module and the style sheet make it from literals."""

    __slots__ = ()


def escape(text: str) -> Markup:
    """Return text that is safe in markup."""
    if isinstance(text, Markup):
        return text
    return Markup(html_escape(_UNPRINTABLE.sub("\ufffd", text), quote=True))


def join(parts: Iterable[str | None], between: str = "") -> Markup:
    """Return parts as one, those that are None left out."""
    return Markup(between.join(escape(part) for part in parts if part is not None))


def tag(name: str, /, *children: str | None, **attributes: object) -> Markup:
    """Return an element without attributes that are None; `text_anchor` writes text-anchor."""
    pairs = attributes.items()
    written = "".join(_attribute(key, value) for key, value in pairs if value is not None)
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def _attribute(key: str, value: object) -> str:
    text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return f' {key.rstrip("_").replace("_", "-")}="{escape(str(text))}"'


def table(
    caption: str,
    header: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    text_columns: frozenset[int] = frozenset({0}),
) -> Markup:
    """Return a table in a box that scrolls sideways; the first cell of a row is its header."""
    head: list[Markup] = []
    for i, name in enumerate(header):
        head.append(tag("th", name, scope="col", class_="t" if i in text_columns else None))
    body: list[Markup] = []
    for row in rows:
        cells = (_cell(i, cell, i in text_columns) for i, cell in enumerate(row))
        body.append(tag("tr", *cells))
    parts = (tag("thead", tag("tr", *head)), tag("tbody", *body))
    whole = tag("table", tag("caption", caption), *parts)
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _cell(number: int, content: str, is_text: bool) -> Markup:
    kind = "t" if is_text else None
    if number:
        return tag("td", content, class_=kind)
    return tag("th", content, scope="row", class_=kind)


def collapsible(summary: str, *content: str | None) -> Markup:
    """Return content that opens at a click."""
    return tag("details", tag("summary", summary), *content)
