"""What every page consists of: head, title, contents, chapters, footer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nnstretch.report.charts.svg import shared_patterns
from nnstretch.report.html import Markup, join, tag
from nnstretch.report.style import content_policy, script, style_sheet

PageChapter = tuple[str, str, Markup]
"""Anchor, name in the page's contents, and the chapter."""


def whole_page(title: str, body: Iterable[Markup]) -> str:
    """Return a page that needs no network, with `title` in the window's bar."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=content_policy()),
        tag("title", title),
        style_sheet(),
    )
    content = tag("body", shared_patterns(), *body, page_footer(), script())
    return f"<!doctype html>\n{tag('html', head, content, lang='en')}\n"


def page_of_chapters(title: str, header: Markup, chapters: Sequence[PageChapter]) -> str:
    """Return a page of a header, links to its chapters, and the chapters."""
    links, contents = [], []
    for anchor, name, markup in chapters:
        links.append((anchor, name))
        contents.append(markup)
    return whole_page(title, (header, page_contents(links), tag("main", *contents)))


def page_header(eyebrow: str, title: str) -> Markup:
    """Return the page's title, with small words above it."""
    return tag("header", tag("p", eyebrow, class_="eyebrow"), tag("h1", title))


def page_contents(chapters: Iterable[tuple[str, str]]) -> Markup:
    """Return links to chapters, given as anchor and name."""
    links = join(tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name in chapters)
    return tag("nav", tag("ul", links), aria_label="Contents")


def page_footer() -> Markup:
    """Return the last line of every page."""
    says = "One file, drawn from the data named under Provenance; nothing is fetched when it is"
    return tag("footer", tag("p", f"{says} opened."))
