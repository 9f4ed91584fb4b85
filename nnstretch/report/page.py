"""The whole page: one file that needs no network, no font and no script to be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nnstretch.files.atomic import write_text
from nnstretch.report import chapters as sections
from nnstretch.report import pipeline_chapters as stream_sections
from nnstretch.report.charts.gantt_overlay import overlay_chapter
from nnstretch.report.charts.svg import shared_patterns
from nnstretch.report.headline import headline
from nnstretch.report.html import Markup, join, tag
from nnstretch.report.load.data import ReportData
from nnstretch.report.load.folder import read_report_data
from nnstretch.report.load.pipeline_data import PipelineReportData
from nnstretch.report.style import content_policy, script, style_sheet

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


PIPELINE_CHAPTERS = (
    ("stream", "Items on their way", stream_sections.stream_chapter),
    ("stages", "Stages", stream_sections.stages_chapter),
    ("split", "Split", stream_sections.split_chapter),
)
"""In front of the others, where the folder tells of a pipeline."""


def build_report(folder: Path) -> str:
    """Return the page as text; the same folder always gives the same page."""
    return page(read_report_data(Path(folder)))


def write_report(folder: Path, out: Path) -> ReportData:
    """Write the page and return what it tells.

    Nothing is written unless the whole folder could be read.
    """
    report_data = read_report_data(Path(folder))
    write_text(Path(out), page(report_data))
    return report_data


def page(report_data: ReportData) -> str:
    """Return the whole page."""
    stretched = report_data.branches or not report_data.pipeline
    form = "stretched" if stretched else "as a pipeline"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=content_policy()),
        tag("title", f"{report_data.title}, {form}"),
        style_sheet(),
    )
    main = tag(
        "main",
        _streaming(report_data),
        headline(report_data) if _branched(report_data) else None,
        join(build(report_data) for _, _, build in _chapters(report_data)),
    )
    body = tag(
        "body",
        shared_patterns(),
        _header(report_data),
        _contents(report_data),
        main,
        _footer(),
        script(),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _branched(report_data: ReportData) -> bool:
    """Return chapters of branches; a folder of a pipeline alone shows nothing of them, not even
    that it is absent.
    """
    return report_data.branches or report_data.pipeline is None


def _chapters(
    report_data: ReportData,
) -> tuple[tuple[str, str, Callable[[ReportData], Markup]], ...]:
    """Return the chapters of a branched network; provenance is of both kinds."""
    return CHAPTERS if _branched(report_data) else CHAPTERS[-1:]


def _streaming(report_data: ReportData) -> Markup | None:
    pipeline = report_data.pipeline
    if pipeline is None:
        return None
    return join(
        (
            stream_sections.stream_headline(pipeline),
            *(build(pipeline) for _, _, build in PIPELINE_CHAPTERS),
        )
    )


def _header(report_data: ReportData) -> Markup:
    search = report_data.search
    told: tuple[str | None, ...] = (
        (
            search.model,
            f"on {search.soc}" if search.soc else None,
            " + ".join(search.processors) or None,
        )
        if search
        else ()
    )
    if not search and report_data.pipeline:
        told = ("a pipeline", *_split_told(report_data.pipeline))
    eyebrow = (
        " · ".join(part for part in told if part) or "network and chip are not named in this folder"
    )
    return tag("header", tag("p", eyebrow, class_="eyebrow"), tag("h1", report_data.title))


def _split_told(pipeline: PipelineReportData) -> tuple[str | None, ...]:
    split, run = pipeline.split, pipeline.run
    stages = f"{len(run.stages)} stages" if run and run.stages else None
    return (f"on {split.soc}" if split and split.soc else None, stages)


def _contents(report_data: ReportData) -> Markup:
    shown = (
        [(anchor, name) for anchor, name, _ in PIPELINE_CHAPTERS] if report_data.pipeline else []
    )
    shown += [(anchor, name) for anchor, name, _ in _chapters(report_data)]
    links = join(tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name in shown)
    return tag("nav", tag("ul", links), aria_label="Contents")


def _footer() -> Markup:
    return tag(
        "footer",
        tag(
            "p",
            "One file, drawn from the data named under Provenance; nothing is fetched when it is"
            " opened.",
        ),
    )
