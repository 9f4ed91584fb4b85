"""The whole page: one file that needs no network, no font and no script to be read."""

from __future__ import annotations

from pathlib import Path

from nnstretch.files import write_text
from nnstretch.report import sections
from nnstretch.report.headline import headline
from nnstretch.report.markup import Markup, join, tag
from nnstretch.report.overlay import overlay_chapter
from nnstretch.report.reading import read_story
from nnstretch.report.story import Story
from nnstretch.report.style import content_policy, script, style_sheet
from nnstretch.report.svg import shared_patterns

CHAPTERS = (
    ("summary", "Summary", sections.summary_chapter),
    ("plan", "Plan", sections.plan_chapter),
    ("timeline", "Timeline", sections.gantt_chapter),
    ("differences", "Predicted and played", overlay_chapter),
    ("terms", "Latency terms", sections.terms_chapter),
    ("space", "Search", sections.space_chapter),
    ("training", "Training", sections.training_chapter),
    ("plans", "Best plans", sections.plans_chapter),
    ("provenance", "Provenance", sections.provenance_chapter),
)


def build_report(folder: Path) -> str:
    """The page as text; the same folder always gives the same page."""
    return page(read_story(Path(folder)))


def write_report(folder: Path, out: Path) -> Story:
    """Write the page and return what it tells; nothing is written unless the whole folder could be read."""
    story = read_story(Path(folder))
    write_text(Path(out), page(story))
    return story


def page(story: Story) -> str:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=content_policy()),
        tag("title", f"{story.title}, stretched"),
        style_sheet(),
    )
    chapters = join(build(story) for _, _, build in CHAPTERS)
    main = tag("main", headline(story), chapters)
    body = tag("body", shared_patterns(), _header(story), _contents(), main, _footer(), script())
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _header(story: Story) -> Markup:
    search = story.search
    told = (search.model, f"on {search.soc}" if search.soc else None, " + ".join(search.processors) or None) if search else ()
    eyebrow = " · ".join(part for part in told if part) or "network and chip are not named in this folder"
    return tag("header", tag("p", eyebrow, class_="eyebrow"), tag("h1", story.title))


def _contents() -> Markup:
    links = join(tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name, _ in CHAPTERS)
    return tag("nav", tag("ul", links), aria_label="Contents")


def _footer() -> Markup:
    return tag("footer", tag("p", "One file, drawn from the data named under Provenance; nothing is fetched when it is opened."))
