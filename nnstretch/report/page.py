"""One page that needs no network, no font and no script to be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nnstretch.files.atomic import write_text
from nnstretch.files.checked import checked
from nnstretch.report.chapters import pipeline, runs, search, summary, training
from nnstretch.report.chapters.headline import headline
from nnstretch.report.chapters.pipeline_headline import pipeline_headline
from nnstretch.report.html import Markup, tag
from nnstretch.report.load.data import ReportData
from nnstretch.report.load.folder import read_report_data
from nnstretch.report.page_shell import page_contents, page_header, whole_page

Chapter = tuple[str, str, Callable[[ReportData], Markup]]
"""Anchor, name in the contents, and what builds it."""
CHAPTERS: tuple[Chapter, ...] = (
    ("summary", "Summary", summary.summary_chapter),
    ("plan", "Plan", search.plan_chapter),
    ("timeline", "Timeline", runs.gantt_chapter),
    ("differences", "Predicted and played", runs.overlay_chapter),
    ("terms", "Latency terms", search.terms_chapter),
    ("space", "Search", search.space_chapter),
    ("training", "Training", training.training_chapter),
    ("plans", "Best plans", search.plans_chapter),
    ("provenance", "Provenance", summary.provenance_chapter),
)
PIPELINE_CHAPTERS = (
    ("stream", "Items on their way", pipeline.stream_chapter),
    ("stages", "Stages", pipeline.stages_chapter),
    ("split", "Split", pipeline.split_chapter),
)
"""In front of the others, where the folder tells of a pipeline."""


def build_report(folder: Path) -> str:
    """Return the page as text; the same folder always gives the same page."""
    return page(read_report_data(Path(folder)))


@checked
def write_report(folder: str | Path, out: str | Path) -> ReportData:
    """Write the page and return its data; nothing is written unless all files could be read."""
    report_data = read_report_data(Path(folder))
    write_text(Path(out), page(report_data))
    return report_data


def page(report_data: ReportData) -> str:
    """Return the whole page."""
    stretched = report_data.branches or not report_data.pipeline
    form = "stretched" if stretched else "as a pipeline"
    top = (_header(report_data), _contents(report_data))
    return whole_page(f"{report_data.title}, {form}", (*top, _main(report_data)))


def _main(report_data: ReportData) -> Markup:
    """Return headlines and chapters; a pipeline alone shows nothing of branches but provenance."""
    content: list[Markup] = []
    if report_data.pipeline:
        content.append(pipeline_headline(report_data.pipeline))
        content.extend(build(report_data.pipeline) for _, _, build in PIPELINE_CHAPTERS)
    if _has_branches(report_data):
        content.append(headline(report_data))
    content.extend(build(report_data) for _, _, build in _chapters(report_data))
    return tag("main", *content)


def _chapters(report_data: ReportData) -> tuple[Chapter, ...]:
    """Return the chapters of a branched network; provenance is of both kinds."""
    return CHAPTERS if _has_branches(report_data) else CHAPTERS[-1:]


def _has_branches(report_data: ReportData) -> bool:
    return report_data.branches or report_data.pipeline is None


def _header(report_data: ReportData) -> Markup:
    words: list[str | None] = []
    if report_data.search:
        words = [report_data.search.model, _on_chip(report_data.search.soc)]
        words.append(" + ".join(report_data.search.processors))
    elif report_data.pipeline:
        split = report_data.pipeline.split
        run = report_data.pipeline.run
        stages = f"{len(run.stages)} stages" if run and run.stages else None
        words = ["a pipeline", _on_chip(split.soc if split else None), stages]
    absent = "network and chip are not named in this folder"
    eyebrow = " · ".join(part for part in words if part) or absent
    return page_header(eyebrow, report_data.title)


def _on_chip(soc: str | None) -> str | None:
    return f"on {soc}" if soc else None


def _contents(report_data: ReportData) -> Markup:
    shown = [(anchor, name) for anchor, name, _ in PIPELINE_CHAPTERS if report_data.pipeline]
    shown += [(anchor, name) for anchor, name, _ in _chapters(report_data)]
    return page_contents(shown)
