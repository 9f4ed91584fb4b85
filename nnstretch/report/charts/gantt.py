"""Who computed when: original and branched run on one time axis, predicted and measured in rows of
their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nnstretch.report.charts import svg
from nnstretch.report.charts.palette import colour_class
from nnstretch.report.format_numbers import ms, percent, plain_ms, signed_percent, tick, ticks
from nnstretch.report.html import Markup, collapsible, join, table, tag
from nnstretch.report.load.data import RunSummary, Timeline, TimelineSpan
from nnstretch.report.load.trace import meetings_us
from nnstretch.trace import Trace

WIDTH_PX, LEFT_PX, RIGHT_PX = 1120.0, 56.0, 92.0
LANE_PX, GAP_PX, TITLE_PX, BETWEEN_PX, AXIS_PX = 26.0, 4.0, 26.0, 16.0, 30.0
MOST_TABLE_ROWS = 400


@dataclass(frozen=True, slots=True)
class GanttRow:
    """One timeline with what its heading says."""

    kind: str
    timeline: Timeline
    how: str
    """What stands behind the source: measured on what."""
    reference_us: float | None
    """The predicted length of the same network, beside a measured one."""

    @property
    def title(self) -> str:
        """Return the title of a timeline."""
        length_us = self.timeline.trace.makespan_us
        beside = (
            ""
            if not self.reference_us
            else f", {signed_percent(length_us / self.reference_us - 1)} against predicted"
        )
        return (
            f"{self.kind.capitalize()} network, {self.timeline.source}{self.how}:"
            f" {ms(length_us / 1000)}{beside}"
        )


def rows_of(
    timelines: dict[str, tuple[Timeline, ...]], runs: dict[str, RunSummary]
) -> tuple[GanttRow, ...]:
    """Return the rows of a chart: one for each processor of each timeline."""
    rows: list[GanttRow] = []
    for kind, lines in timelines.items():
        predicted = next((t.trace.makespan_us for t in lines if t.source == "predicted"), None)
        for timeline in lines:
            emulated = "emulated" in (timeline.timing, runs[kind].timing if kind in runs else None)
            played = timeline.source != "predicted"
            how = " on emulated processors" if played and emulated else ""
            rows.append(GanttRow(kind, timeline, how, predicted if played else None))
    return tuple(rows)


def gantt(rows: tuple[GanttRow, ...], processors: tuple[str, ...]) -> Markup:
    """Draw a chart whose every row shows every processor, so that one that never works is seen to
    be idle.
    """
    longest_us = max(row.timeline.trace.makespan_us for row in rows)
    x = svg.AxisScale(0, longest_us or 1.0, LEFT_PX, WIDTH_PX - RIGHT_PX)
    row_px = TITLE_PX + len(processors) * (LANE_PX + GAP_PX) + BETWEEN_PX
    height = len(rows) * row_px + AXIS_PX
    spoken = ". ".join(
        f"{row.title}; {_spoken_busy(row.timeline.trace, processors)}" for row in rows
    )
    return svg.svg(
        WIDTH_PX,
        height,
        "When each processor computes",
        spoken,
        axis(x, height),
        join(_row(row, i * row_px, x, processors) for i, row in enumerate(rows)),
        class_="gantt",
    )


def _spoken_busy(trace: Trace, processors: tuple[str, ...]) -> str:
    return ", ".join(f"{name} busy {percent(_share(trace, name), 0)}" for name in processors)


def _share(trace: Trace, processor: str) -> float:
    return trace.busy_us(processor) / trace.makespan_us if trace.makespan_us else 0.0


def axis(x: svg.AxisScale, height: float) -> Markup:
    """Return milliseconds under microseconds, and lines through the lanes."""
    marks = []
    for tick_ms in ticks(x.low / 1000, x.high / 1000, 12):
        at = x(1000 * tick_ms)
        marks.append(svg.line(at, 8, at, height - AXIS_PX, class_="grid"))
        marks.append(svg.text(at, height - 14, tick(tick_ms), class_="small", anchor="middle"))
    name = svg.text(WIDTH_PX - RIGHT_PX + 14, height - 14, "ms", class_="small")
    return join((*marks, name))


def _row(row: GanttRow, top: float, x: svg.AxisScale, processors: tuple[str, ...]) -> Markup:
    trace = row.timeline.trace
    first = top + TITLE_PX
    lanes = join(
        _lane(row.timeline, trace, name, first + i * (LANE_PX + GAP_PX), x)
        for i, name in enumerate(processors)
    )
    bottom = first + len(processors) * (LANE_PX + GAP_PX)
    end = x(trace.makespan_us)
    title = svg.text(0, top + 16, row.title, class_="strong")
    return join(
        (
            title,
            lanes,
            _meetings(row.timeline.parts, first, bottom, x),
            svg.line(end, first - 3, end, bottom, class_="end"),
        )
    )


def _lane(timeline: Timeline, trace: Trace, processor: str, top: float, x: svg.AxisScale) -> Markup:
    end = x(trace.makespan_us)
    idle = svg.rect(
        LEFT_PX,
        top,
        end - LEFT_PX,
        LANE_PX,
        class_="idle",
        tip=f"{processor}: idle where nothing is drawn",
    )
    name = svg.text(
        LEFT_PX - 8,
        top + 17,
        svg.truncate(processor, LEFT_PX - 8, 12),
        class_="lane-name",
        anchor="end",
    )
    busy = svg.text(
        end + 8, top + 17, f"{percent(_share(trace, processor), 0)} busy", class_="small"
    )
    bars = join(_bar(part, top, x) for part in timeline.parts if part.span.processor == processor)
    return svg.group(idle, name, bars, busy, class_=colour_class(processor))


def _bar(part: TimelineSpan, top: float, x: svg.AxisScale) -> Markup:
    span = part.span
    left_px, width = x(span.start_us), max(x(span.end_us) - x(span.start_us), 1.2)
    tip = (
        f"{span.task.name} on {span.processor}: {ms(span.start_us / 1000)} to"
        f" {ms(span.end_us / 1000)}, {ms(span.duration_us / 1000)}"
    )
    bar = svg.rect(
        left_px, top, width, LANE_PX, class_="merge" if part.is_merge else "bar", tip=tip
    )
    if part.is_merge or svg.text_width(part.segment, 12) + 6 > width:
        return bar
    return join(
        (
            bar,
            svg.text(left_px + width / 2, top + 17, part.segment, class_="on-bar", anchor="middle"),
        )
    )


def _meetings(
    parts: tuple[TimelineSpan, ...], top: float, bottom: float, x: svg.AxisScale
) -> Markup:
    marks = []
    for segment, at_us in meetings_us(parts).items():
        at = x(at_us)
        marks.append(svg.line(at, top - 3, at, bottom, class_="meeting"))
        diamond = svg.path(f"M{at:.1f},{top - 9:.1f} l5,5 l-5,5 l-5,-5 z", class_="meet")
        marks.append(svg.group(tag("title", f"{segment} meets at {ms(at_us / 1000)}"), diamond))
    return join(marks)


def span_table(rows: Iterable[GanttRow]) -> Markup:
    """Return the chart for readers who cannot see it, or want the exact numbers."""
    cells = [
        (
            f"{row.kind}, {row.timeline.source}",
            s.task.name,
            s.processor,
            plain_ms(s.start_us / 1000),
            plain_ms(s.duration_us / 1000),
        )
        for row in rows
        for s in sorted(row.timeline.trace.spans, key=lambda s: (s.start_us, s.end_us))
    ]
    header = ("run", "task", "processor", "start (ms)", "duration (ms)")
    cut = "" if len(cells) <= MOST_TABLE_ROWS else f", the first {MOST_TABLE_ROWS} of {len(cells)}"
    content = table(
        f"Every task of the chart{cut}",
        header,
        cells[:MOST_TABLE_ROWS],
        text_columns=frozenset({0, 1, 2}),
    )
    return collapsible("The same as a table", content)
