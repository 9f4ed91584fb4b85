"""Prediction and run on top of each other.

In every lane the upper bars are predicted, the lower ones played.
"""

from __future__ import annotations

from nnstretch.report.charts import svg
from nnstretch.report.charts.gantt import axis
from nnstretch.report.charts.palette import colour_class, legend, processor_legend
from nnstretch.report.format_numbers import UNKNOWN, ms, plain_ms, signed_percent, times
from nnstretch.report.html import Markup, join, table, tag
from nnstretch.report.load.data import ReportData, Timeline, TimelineSpan
from nnstretch.report.load.trace_diff import MOST, TraceDifference, largest, pair_of, timing_of

WIDTH_PX, LEFT_PX, RIGHT_PX = 1120.0, 56.0, 92.0
HALF_PX, LANE_GAP_PX, TITLE_PX, BETWEEN_PX, AXIS_PX = 15.0, 8.0, 26.0, 14.0, 30.0
Pair = tuple[str, Timeline, Timeline]


def pairs_of(report_data: ReportData) -> tuple[Pair, ...]:
    """Return pairs of predicted and measured timelines of the same network."""
    pairs = ((network, pair_of(lines)) for network, lines in report_data.timelines.items())
    return tuple((network, *pair) for network, pair in pairs if pair)


def overlay_chapter(report_data: ReportData) -> Markup:
    """Return the drawing and the largest differences, or why there is neither."""
    says = (
        "The same inference twice on one time axis: in every lane the pale upper bars are"
        " predicted, the full lower bars are what the run took. A lower bar that starts later than"
        " the one above it was waited for."
    )
    pairs = pairs_of(report_data)
    if not pairs:
        words = (
            "No trace in this folder holds both a prediction and a run; nnstretch run --clock real"
            " --trace writes such a one."
        )
        return tag(
            "section",
            tag("h2", "Predicted and played"),
            tag("p", says, class_="lead"),
            tag("p", words, class_="absent"),
            id="differences",
        )
    used = dict.fromkeys(
        name
        for _, predicted, played in pairs
        for timeline in (predicted, played)
        for name in timeline.trace.processors
    )
    marks = legend([*processor_legend(used), ("merge", "synchronise and merge")])
    drawing = svg.scrolling(
        overlay(pairs, tuple(used), report_data), "Predicted and played timelines"
    )
    content = (
        marks,
        drawing,
        tag("h3", "Largest differences"),
        difference_tables(largest(report_data.timelines, report_data.runs)),
    )
    return tag(
        "section",
        tag("h2", "Predicted and played"),
        tag("p", says, class_="lead"),
        *content,
        id="differences",
    )


def overlay(
    pairs: tuple[Pair, ...], processors: tuple[str, ...], report_data: ReportData
) -> Markup:
    """Return the chart of predicted and measured timelines in the same rows."""
    longest_us = max(
        timeline.trace.makespan_us
        for _, predicted, played in pairs
        for timeline in (predicted, played)
    )
    x = svg.AxisScale(0, longest_us or 1.0, LEFT_PX, WIDTH_PX - RIGHT_PX)
    row_px = TITLE_PX + len(processors) * (2 * HALF_PX + LANE_GAP_PX) + BETWEEN_PX
    height = len(pairs) * row_px + AXIS_PX
    titles = [title_of(*pair, timing_of(pair[0], pair[2], report_data.runs)) for pair in pairs]
    rows = (
        _row(pair, title, i * row_px, x, processors)
        for i, (pair, title) in enumerate(zip(pairs, titles, strict=True))
    )
    spoken = ". ".join(titles)
    return svg.svg(
        WIDTH_PX,
        height,
        "Predicted and played timelines",
        spoken,
        axis(x, height),
        join(rows),
        class_="gantt",
    )


def title_of(network: str, predicted: Timeline, played: Timeline, timing: str) -> str:
    """Return the title of a pair of timelines."""
    predicted_us, played_us = predicted.trace.makespan_us, played.trace.makespan_us
    beside = f", {signed_percent(played_us / predicted_us - 1)}" if predicted_us else ""
    return (
        f"{network.capitalize()} network: predicted {ms(predicted_us / 1000)}, {timing}"
        f" {ms(played_us / 1000)}{beside}"
    )


def _row(
    pair: Pair, title: str, top: float, x: svg.AxisScale, processors: tuple[str, ...]
) -> Markup:
    _, predicted, played = pair
    lanes = (
        _lane(name, predicted, played, top + TITLE_PX + i * (2 * HALF_PX + LANE_GAP_PX), x)
        for i, name in enumerate(processors)
    )
    return join((svg.text(0, top + 16, title, class_="strong"), *lanes))


def _lane(
    processor: str, predicted: Timeline, played: Timeline, top: float, x: svg.AxisScale
) -> Markup:
    name = svg.text(
        LEFT_PX - 8,
        top + HALF_PX + 4,
        svg.truncate(processor, LEFT_PX - 8, 12),
        class_="lane-name",
        anchor="end",
    )
    above = join(
        _bar(part, top, x, "predicted", "ghost")
        for part in predicted.parts
        if part.span.processor == processor
    )
    below = join(
        _bar(part, top + HALF_PX, x, played.source, "")
        for part in played.parts
        if part.span.processor == processor
    )
    base = svg.line(LEFT_PX, top + HALF_PX, WIDTH_PX - RIGHT_PX, top + HALF_PX, class_="grid")
    return svg.group(name, base, above, below, class_=colour_class(processor))


def _bar(part: TimelineSpan, top: float, x: svg.AxisScale, source: str, look: str) -> Markup:
    span = part.span
    left_px, width = x(span.start_us), max(x(span.end_us) - x(span.start_us), 1.2)
    tip = (
        f"{span.task.name} on {span.processor}, {source}: {ms(span.start_us / 1000)} to"
        f" {ms(span.end_us / 1000)}, {ms(span.duration_us / 1000)}"
    )
    classes = f"{'merge' if part.is_merge else 'bar'} {look}".strip()
    bar = svg.rect(left_px, top, width, HALF_PX - 1, class_=classes, tip=tip)
    if part.is_merge or look or svg.text_width(part.segment, 12) + 6 > width:
        return bar
    return join(
        (
            bar,
            svg.text(
                left_px + width / 2,
                top + 11.5,
                part.segment,
                class_="on-bar small",
                anchor="middle",
            ),
        )
    )


def difference_tables(differences_: tuple[TraceDifference, ...]) -> Markup:
    """Return one table for each kind of milliseconds: kinds never share a column."""
    if not differences_:
        return tag("p", "No sub-graph is in both timelines.", class_="absent")
    kinds = dict.fromkeys(difference.timing for difference in differences_)
    return join(
        _difference_table(
            tuple(difference for difference in differences_ if difference.timing == kind), kind
        )
        for kind in kinds
    )


def _difference_table(differences_: tuple[TraceDifference, ...], timing: str) -> Markup:
    header = (
        "sub-graph",
        "network",
        "processor",
        "predicted (ms)",
        f"{timing} (ms)",
        "difference (ms)",
        "ratio",
    )
    rows = [
        (
            difference.subgraph,
            difference.network,
            difference.processor,
            plain_ms(difference.predicted_ms),
            plain_ms(difference.measured_ms),
            f"{difference.off_ms:+,.3f}",
            _ratio(difference),
        )
        for difference in differences_
    ]
    return table(
        f"Up to {MOST} sub-graphs furthest from their prediction, {timing}",
        header,
        rows,
        text_columns=frozenset({0, 1, 2}),
    )


def _ratio(difference: TraceDifference) -> str:
    return UNKNOWN if difference.ratio is None else times(difference.ratio)
