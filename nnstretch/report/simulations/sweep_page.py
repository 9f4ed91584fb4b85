"""The page of a sweep: its pictures, the table of means, what failed, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import attrgetter

from nnstretch.report.chapters.elements import chapter, definition_list, quiet
from nnstretch.report.charts import svg
from nnstretch.report.format_numbers import UNKNOWN
from nnstretch.report.html import Markup, collapsible, join, table, tag
from nnstretch.report.page_shell import page_header, page_of_chapters
from nnstretch.report.simulations.sweep_data import (
    Key,
    SweepData,
    mean_latency_ms,
    p95_latency_ms,
    pool_name,
)
from nnstretch.report.simulations.sweep_pictures import Picture, sweep_pictures

HEADS = ("pool", "policy", "rate", "trials", "mean ms", "±", "p95 ms", "makespan ms", "a second")
UNENDED = ("refused", "dropped")
"""Counts of an application."""
WHY_UNENDED = (
    "Refused is what arrived while as many were open as its application allows, dropped what its"
    " policy or its deadline gave up."
)
UNCALIBRATED = "Not calibrated: costs were not measured on the processors that they stand for."
TEXT = frozenset({0, 1})
CHAPTERS = (
    ("latency", "Latency", "Mean latency against the rate of arrival, on each pool."),
    (
        "saturation",
        "Saturation",
        "For each policy, a line for each pool: where it turns upward the pool is full.",
    ),
    ("policies", "Policies", "Mean latency at the highest rate, with 95% intervals over trials."),
    ("pools", "Pools", "Instances that end per second at the highest rate."),
    ("open", "Queues", "Instances that have arrived and not ended, at the highest rate."),
    (
        "decision_time",
        "Decisions",
        "What a round of decisions takes on the host that simulated; it differs from run to run.",
    ),
)
"""Name of the pictures in a chapter, title and first sentence."""


def sweep_page(data: SweepData) -> str:
    """Return the whole page of a sweep; equal journals give equal pages."""
    chapters: list[tuple[str, str, Markup]] = []
    pictures = sweep_pictures(data)
    for name, title, says in CHAPTERS:
        drawings = [scrolled(picture) for picture in pictures if chapter_of(picture[0]) == name]
        if drawings:
            pairs = tag("div", *drawings, class_="pair")
            chapters.append((name, title, chapter(name, title, says, pairs)))
    chapters.append(("means", "Means", means_chapter(data)))
    chapters.append(("provenance", "Provenance", provenance_chapter(data)))
    counted = f"{len(data.rows)} simulations"
    caution = "".join(f" · {words}" for words in cautions(data))
    header = page_header(f"simulate sweep · {counted}{caution}", "Pools, policies and rates")
    return page_of_chapters("Sweep of a workload", header, chapters)


def chapter_of(picture: str) -> str:
    """Return the chapter of a picture: latency of latency_3."""
    return picture.rstrip("0123456789").rstrip("_")


def scrolled(picture: Picture) -> Markup:
    """Return a picture that scrolls sideways where it has no room."""
    name, drawing = picture
    return svg.scrolling(drawing, name)


def mean_cells(key: Key, data: SweepData) -> tuple[str, ...]:
    """Return a row of the table of means, a dash for the latency where nothing ended."""
    latency = data.mean(key, mean_latency_ms)
    p95 = data.mean(key, p95_latency_ms)
    makespan = data.mean(key, lambda result: result.makespan_ms)
    ended = data.mean(key, lambda result: result.throughput_per_s)
    width = "" if latency is None or latency.half_width is None else f"{latency.half_width:.3g}"
    mean, *means = (
        UNKNOWN if measured is None else f"{measured.mean:.4g}"
        for measured in (latency, p95, makespan, ended)
    )
    return key[0], key[1], f"{key[2]:g}", str(len(data.groups[key])), mean, width, *means


def unended_cells(key: Key, data: SweepData) -> Iterator[str]:
    """Yield how many instances a trial refused and dropped, a dash where a file does not say."""
    results = data.groups[key]
    for name in UNENDED:
        counts = list(map(attrgetter(name), chain.from_iterable(each.apps for each in results)))
        yield UNKNOWN if None in counts else f"{sum(counts) / len(results):.4g}"


def cautions(data: SweepData) -> list[str]:
    """Return what a reader of every table must know of its costs."""
    return [UNCALIBRATED] if data.head.calibrated is False else []


def failures(data: SweepData) -> list[str]:
    """Return a sentence for each configuration that could not run."""
    sentences: list[str] = []
    for row in data.rows:
        if row.error is not None:
            where = f"{pool_name(row.pool)}, {row.policy}, rate {row.rate:g}"
            sentences.append(f"Failed: {where}, trial {row.trial}: {row.error}")
    return sentences


def means_chapter(data: SweepData) -> Markup:
    """Return the table of means over trials, and what failed."""
    says = "Means over trials; ± is half of the 95% interval of the mean latency."
    rows = [(*mean_cells(key, data), *unended_cells(key, data)) for key in data.groups]
    means = table("Means over trials", (*HEADS, *UNENDED), rows, text_columns=TEXT)
    notes = join(quiet(sentence) for sentence in (*cautions(data), *failures(data)))
    return chapter(
        "means", "Means", f"{says} {WHY_UNENDED}", collapsible("The table", means), notes
    )


def provenance_chapter(data: SweepData) -> Markup:
    """Return what the page was made of."""
    says = "The sweep's journal, which nnstretch simulate sweep wrote line by line."
    facts = [("sweep", data.head.sweep), ("lines", str(len(data.rows)))]
    if data.head.provenance:
        facts.append(("costs", data.head.provenance))
    return chapter("provenance", "Provenance", says, definition_list(facts))
