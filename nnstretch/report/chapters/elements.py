"""Elements that chapters are built of."""

from __future__ import annotations

from collections.abc import Iterable

from nnstretch.report.html import Markup, join, tag

KINDS = (
    ("Predicted", "is added up from a latency predictor and shown with its error."),
    (
        "Emulated",
        "is a run that computes the true values on this host while every processor takes its"
        " predicted time.",
    ),
    ("Measured", "is read from a clock while a run takes its time."),
)
CAVEAT_START = "Three kinds of milliseconds, never mixed in one column. "
CAVEAT_END = "Where processors are emulated, no number was taken on the chip itself."


def chapter(name: str, title: str, says: str, *content: str | None) -> Markup:
    """Return a chapter with its title and first sentence."""
    return tag("section", tag("h2", title), tag("p", says, class_="lead"), *content, id=name)


def missing_files(files: str, written_by: str) -> Markup:
    """Return the line about files that the folder lacks."""
    says = f". It is what {written_by} writes."
    return tag("p", "Not in this folder: ", tag("code", files), says, class_="absent")


def caution(says: str | None) -> Markup | None:
    """Return a sentence that nobody may overlook; None where there is none."""
    return tag("p", tag("strong", says), class_="absent") if says else None


def noise(why: str | None) -> Markup | None:
    """Return the warning about times that were disturbed; None where nothing disturbed them."""
    return caution(f"Noisy: {why}.") if why else None


def quiet(*words: str) -> Markup:
    """Return a paragraph in small print."""
    return tag("p", *words, class_="quiet")


def fact_list(facts: Iterable[tuple[str, str]]) -> Markup:
    """Return names over their values."""
    pairs = (tag("div", tag("dt", name), tag("dd", value)) for name, value in facts)
    return tag("dl", join(pairs), class_="facts")


def definition_list(terms: Iterable[tuple[str, str]]) -> Markup:
    """Return terms with their explanations."""
    pairs = (join((tag("dt", name), tag("dd", words))) for name, words in terms)
    return tag("dl", join(pairs), class_="said")


def figure(value: str, says: str, note: str | None = None) -> Markup:
    """Return a large number with what it means."""
    small = "" if note is None else quiet(note)
    return tag("div", tag("dd", value), tag("dt", says, small))


def headline_section(name: str, *content: str | None) -> Markup:
    """Return a first screen; it ends with what the kinds of milliseconds are."""
    kinds = join(join((tag("strong", kind), f" {says} ")) for kind, says in KINDS)
    caveat = tag("p", CAVEAT_START, kinds, CAVEAT_END, class_="honest")
    return tag("section", *content, caveat, id=name, aria_label="Headline")
