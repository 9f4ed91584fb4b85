"""Who computed when, the runs in numbers, and where a run left its prediction."""

from __future__ import annotations

from collections.abc import Iterable

from nnstretch.report.chapters.elements import caution, chapter, missing_files, quiet
from nnstretch.report.charts import svg
from nnstretch.report.charts.gantt_networks import (
    NetworkTimeline,
    network_gantt,
    span_table,
    timelines_of,
)
from nnstretch.report.charts.gantt_overlay import overlay_gantt
from nnstretch.report.charts.palette import legend, processor_legend
from nnstretch.report.format_numbers import UNKNOWN, digits, percent, plain_ms, times
from nnstretch.report.html import Markup, join, table, tag
from nnstretch.report.load.data import ReportData, RunSummary
from nnstretch.report.load.folder import NETWORKS
from nnstretch.report.load.trace_diff import MOST, TraceDifference, largest, pairs_of

MERGE = ("merge", "synchronise and merge")


def gantt_chapter(report_data: ReportData) -> Markup:
    """Return the chapter of timelines: predicted, emulated and measured ones."""
    says = (
        "One inference of each network on one time axis. A dashed line with a diamond is a meeting"
        " point, hatching an idle processor."
    )
    timelines = report_data.timelines
    networks = timelines_of(timelines, report_data.runs)
    missing = ", ".join(f"trace_{name}.json" for name in NETWORKS if not timelines.get(name))
    note = missing_files(missing, "nnstretch run --trace") if missing else None
    content: tuple[str | None, ...] = (note,)
    if networks:
        content = (*_timelines(networks, report_data), note, span_table(networks))
    return chapter("timeline", "Who computes when", says, *content, run_table(report_data))


def _timelines(
    networks: tuple[NetworkTimeline, ...], report_data: ReportData
) -> tuple[Markup | None, ...]:
    processors = list(report_data.search.processors) if report_data.search else []
    for network in networks:
        processors.extend(network.timeline.trace.processors)
    unique = tuple(dict.fromkeys(processors))
    marks = [MERGE, ("meet", "meeting point"), ("idle", "idle")]
    if any(network.timeline.others for network in networks):
        marks.append(("other", "other requests"))
    key = legend([*processor_legend(unique), *marks])
    drawing = svg.scrolling(network_gantt(networks, unique), "Gantt chart")
    return key, drawing, _chosen_requests(networks)


def _chosen_requests(networks: Iterable[NetworkTimeline]) -> Markup | None:
    """Say which request is shown of a file that holds several, and where none ran whole."""
    chosen: list[str] = []
    partial: list[Markup | None] = []
    for network in networks:
        timeline = network.timeline
        kind = f"{network.network.capitalize()}, {network.timing}"
        if not timeline.whole:
            none = f"none of {timeline.requests} requests ran all tasks of its plan"
            shown = f"shown is what ran of request {timeline.request}, counted from 0"
            partial.append(caution(f"{kind}: {none}; {shown}."))
        elif timeline.requests > 1:
            which = f"request {timeline.request}, one of {timeline.whole}"
            if timeline.whole < timeline.requests:
                fewer = timeline.requests - timeline.whole
                which += f" that ran all their tasks ({fewer} ran only some)"
            chosen.append(f" {kind}: {which}.")
    if chosen:
        lead = "Shown is the request of median length; requests are counted from 0."
        partial.append(quiet(lead, *chosen))
    return join(partial) or None


def run_table(report_data: ReportData) -> Markup:
    """Return the table of runs; each kind of milliseconds has one of its own."""
    runs = report_data.runs
    if not runs:
        return missing_files("run_original.json, run_branched.json", "nnstretch run --json")
    kinds = dict.fromkeys(run.timing for run in runs.values())
    tables = join(_runs_of_kind(runs, timing) for timing in kinds)
    words = (
        "Overlap is the efficiency that the run itself reports; dilation is the factor by which a"
        " slow host stretches an emulated chip's time, already divided out."
    )
    return join((tag("h3", "The runs"), tables, quiet(words)))


def _runs_of_kind(runs: dict[str, RunSummary], timing: str | None) -> Markup:
    latencies = ("median", "p90", "p99", "critical path")
    header = ("network", "mode", "clock", *latencies, "overlap", "dilation", "busy")
    rows = (_run_row(network, run) for network, run in runs.items() if run.timing == timing)
    caption = f"Runs of the exported networks, {timing or 'unlabelled'} milliseconds"
    return table(caption, header, rows, text_columns=frozenset({0, 1, 2, 9}))


def _run_row(network: str, run: RunSummary) -> tuple[str, ...]:
    uses = run.processors.items()
    busy = ", ".join(f"{name} {percent(use.utilisation, 0)}" for name, use in uses)
    return (
        network,
        run.mode or UNKNOWN,
        run.clock or UNKNOWN,
        *(plain_ms(run.latency_ms.get(name)) for name in ("median", "p90", "p99")),
        plain_ms(run.critical_path_ms),
        percent(run.overlap_efficiency, 0),
        UNKNOWN if run.dilation is None else f"{digits(run.dilation)}×",
        busy or UNKNOWN,
    )


def overlay_chapter(report_data: ReportData) -> Markup:
    """Return the chapter that lays a run over its prediction."""
    says = (
        "The same inference twice on one time axis: in every lane the pale upper bars are"
        " predicted, the full lower bars are what the run took. A lower bar that starts later than"
        " the one above it was waited for."
    )
    title = "Predicted and played"
    pairs = pairs_of(report_data.timelines)
    if not pairs:
        words = (
            "No trace in this folder holds both a prediction and a run; nnstretch run --clock real"
            " --trace writes such a one."
        )
        return chapter("differences", title, says, tag("p", words, class_="absent"))
    processors: list[str] = []
    for pair in pairs:
        processors += [*pair.predicted.trace.processors, *pair.played.trace.processors]
    unique = tuple(dict.fromkeys(processors))
    key = legend([*processor_legend(unique), MERGE])
    picture = overlay_gantt(pairs, unique, report_data.runs)
    drawing = svg.scrolling(picture, "Predicted and played timelines")
    tables = difference_tables(largest(report_data.timelines, report_data.runs))
    heading = tag("h3", "Largest differences")
    return chapter("differences", title, says, key, drawing, heading, tables)


def difference_tables(differences: tuple[TraceDifference, ...]) -> Markup:
    """Return one table for each kind of milliseconds: kinds never share a column."""
    if not differences:
        return tag("p", "No sub-graph is in both timelines.", class_="absent")
    kinds = dict.fromkeys(difference.timing for difference in differences)
    return join(_difference_table(differences, timing) for timing in kinds)


def _difference_table(differences: tuple[TraceDifference, ...], timing: str) -> Markup:
    numbers = ("predicted (ms)", f"{timing} (ms)", "difference (ms)", "ratio")
    header = ("sub-graph", "network", "processor", *numbers)
    rows = map(_difference_row, (d for d in differences if d.timing == timing))
    caption = f"Up to {MOST} sub-graphs furthest from their prediction, {timing}"
    return table(caption, header, rows, text_columns=frozenset({0, 1, 2}))


def _difference_row(difference: TraceDifference) -> tuple[str, ...]:
    return (
        difference.subgraph,
        difference.network,
        difference.processor,
        plain_ms(difference.predicted_ms),
        plain_ms(difference.measured_ms),
        f"{difference.off_ms:+,.3f}",
        times(difference.ratio),
    )
