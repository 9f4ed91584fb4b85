"""Who computed when: networks on one time axis, predicted and measured below each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from nnstretch.report.charts import svg
from nnstretch.report.charts.gantt import (
    GanttBar,
    GanttPanel,
    GanttStyle,
    PlacedPanel,
    bar_table,
    draw_bar,
    draw_gantt,
    draw_row,
)
from nnstretch.report.charts.palette import colour_class
from nnstretch.report.format_numbers import ms, plain_ms, signed_percent
from nnstretch.report.html import Markup, join, tag
from nnstretch.report.load.data import RunSummary
from nnstretch.report.load.timeline import Timeline, TimelineSpan
from nnstretch.report.load.trace import meetings_us
from nnstretch.report.load.trace_diff import timing_of
from nnstretch.trace import Trace

STYLE = GanttStyle(left_px=56.0)


@dataclass(frozen=True, slots=True)
class NetworkTimeline:
    """One timeline of a network with what its heading says."""

    network: str
    timeline: Timeline
    timing: str
    """Kind of its milliseconds: predicted, emulated or measured."""
    predicted_us: float | None = None
    """Predicted length of the same network, beside that of a run."""

    @property
    def title(self) -> str:
        """Return the heading with kind and length."""
        length_us = self.timeline.trace.makespan_us
        beside = ""
        if self.predicted_us:
            beside = f", {signed_percent(length_us / self.predicted_us - 1)} against predicted"
        name = f"{self.network.capitalize()} network, {self.timing}"
        if not self.timeline.whole:
            name += ", in part"
        return f"{name}: {ms(length_us / 1000)}{beside}"


def timelines_of(
    timelines: dict[str, tuple[Timeline, ...]], runs: dict[str, RunSummary]
) -> tuple[NetworkTimeline, ...]:
    """Return every timeline of every network in the order of the chart."""
    panels: list[NetworkTimeline] = []
    for network, lines in timelines.items():
        predicted = next((t.trace.makespan_us for t in lines if t.source == "predicted"), None)
        for timeline in lines:
            if timeline.source == "predicted":
                panels.append(NetworkTimeline(network, timeline, timeline.source))
                continue
            timing = timing_of(network, timeline, runs)
            panels.append(NetworkTimeline(network, timeline, timing, predicted))
    return tuple(panels)


def network_gantt(networks: tuple[NetworkTimeline, ...], processors: tuple[str, ...]) -> Markup:
    """Draw every processor in every panel, so that one that never works is seen to be idle."""
    panels: list[GanttPanel] = []
    for network in networks:
        trace = network.timeline.trace
        length_us = trace.makespan_us
        spans = (*trace.spans, *(part.span for part in network.timeline.others))
        worked = Trace(spans)
        busy = {name: worked.busy_us(name) / (length_us or 1.0) for name in processors}
        panels.append(GanttPanel(network.title, processors, length_us, busy))

    def draw(number: int, place: PlacedPanel) -> Markup:
        return _draw_panel(networks[number].timeline, place)

    return draw_gantt("When each processor computes", STYLE, panels, draw)


def _draw_panel(timeline: Timeline, place: PlacedPanel) -> Markup:
    rows = join(_draw_row(timeline, name, place) for name in place.panel.rows)
    end_px = place.x(place.panel.length_us)
    end = svg.line(end_px, place.rows_top - 3, end_px, place.rows_bottom, class_="end")
    return join((rows, _meetings(timeline.parts, place), end))


def _draw_row(timeline: Timeline, processor: str, place: PlacedPanel) -> Markup:
    top = place.row_top(processor)
    bars: list[Markup] = []
    for part in timeline.others:
        if part.span.processor == processor:
            bars.append(draw_bar(replace(bar_of(part), look="other", label=None), place, top))
    for part in timeline.parts:
        if part.span.processor == processor:
            bars.append(draw_bar(bar_of(part), place, top))
    return draw_row(place, processor, join(bars), look=colour_class(processor))


def bar_of(part: TimelineSpan, source: str = "") -> GanttBar:
    """Return a task as a bar; a merge has a look of its own and no label."""
    span = part.span
    where = f"{span.task.name} on {span.processor}{source}"
    when = f"{ms(span.start_us / 1000)} to {ms(span.end_us / 1000)}, {ms(span.duration_us / 1000)}"
    tip = f"{where}: {when}"
    if part.is_merge:
        return GanttBar(span.start_us, span.end_us, tip, look="merge")
    return GanttBar(span.start_us, span.end_us, tip, part.segment)


def _meetings(parts: tuple[TimelineSpan, ...], place: PlacedPanel) -> Markup:
    marks: list[Markup] = []
    top = place.rows_top
    for segment, at_us in meetings_us(parts).items():
        at_px = place.x(at_us)
        marks.append(svg.line(at_px, top - 3, at_px, place.rows_bottom, class_="meeting"))
        diamond = svg.path(f"M{at_px:.1f},{top - 9:.1f} l5,5 l-5,5 l-5,-5 z", class_="meet")
        marks.append(svg.group(tag("title", f"{segment} meets at {ms(at_us / 1000)}"), diamond))
    return join(marks)


def span_table(networks: Iterable[NetworkTimeline]) -> Markup:
    """Return the chart's tasks as a table."""
    rows: list[tuple[str, ...]] = []
    for network in networks:
        run = f"{network.network}, {network.timing}"
        for span in sorted(network.timeline.trace.spans, key=lambda s: (s.start_us, s.end_us)):
            times_ms = (plain_ms(span.start_us / 1000), plain_ms(span.duration_us / 1000))
            rows.append((run, span.task.name, span.processor, *times_ms))
    header = ("run", "task", "processor", "start (ms)", "duration (ms)")
    return bar_table("task", header, rows)
