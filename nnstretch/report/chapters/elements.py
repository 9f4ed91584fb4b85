"""Elements that chapters are built of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

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


class ChipFile(Protocol):
    """What a file says of the chip whose times it holds."""

    @property
    def calibrated(self) -> bool | None:
        """Return False where no latency of the chip was ever published."""

    @property
    def noisy(self) -> str | None:
        """Return why its times are noisy; nothing where they are not."""


class NamedChipFile(ChipFile, Protocol):
    """File that names the chip, too."""

    @property
    def soc(self) -> str | None:
        """Return the chip's name."""


def caution(says: str | None) -> Markup | None:
    """Return a sentence that nobody may overlook; None where there is none."""
    return tag("p", tag("strong", says), class_="absent") if says else None


def noise(why: str | None) -> Markup | None:
    """Return the warning about times that were disturbed; None where nothing disturbed them."""
    return caution(f"Noisy: {why}.") if why else None


def cautions(priced: NamedChipFile | None, runs: Iterable[ChipFile | None]) -> Markup | None:
    """Return the warnings of files about the chip of their times; None where none has any."""
    files = [file for file in (priced, *runs) if file is not None]
    warnings: list[Markup | None] = []
    if any(file.calibrated is False for file in files):
        named = priced.soc if priced and priced.calibrated is False else None
        chip = f"The chip {named}" if named else "The chip"
        derived = "no latency of it was ever published, its numbers derive from specifications"
        warnings.append(caution(f"{chip} is not calibrated: {derived}."))
    reasons = dict.fromkeys(file.noisy for file in files if file.noisy)
    for why in reasons:
        # A run repeats what is said of its chip before what disturbed the run itself.
        if not any(longer.startswith(f"{why}; ") for longer in reasons):
            warnings.append(noise(why))
    return join(warnings) or None


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
