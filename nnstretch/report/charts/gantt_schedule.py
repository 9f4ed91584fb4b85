"""Gantt of any schedule: a row for each processor, over a window of its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from nnstretch.report.charts import svg
from nnstretch.report.charts.gantt import (
    GanttBar,
    GanttPanel,
    GanttStyle,
    PlacedPanel,
    draw_bar,
    draw_gantt,
    draw_row,
)
from nnstretch.report.charts.palette import item_class
from nnstretch.report.format_numbers import graph_time
from nnstretch.report.html import Markup, join
from nnstretch.trace import Span, Trace

LETTER_PX = 7.0
LEAST_LEFT_PX = 56.0
MOST_LEFT_PX = 200.0


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Part of a schedule that is drawn, and the unit of its axis."""

    start_us: float = 0.0
    end_us: float = inf
    unit: str = "ms"
    unit_us: float = 1000.0


def schedule_gantt(
    title: str,
    trace: Trace,
    processors: Sequence[str],
    window: TimeWindow = TimeWindow(),
    last_us: float | None = None,
) -> Markup:
    """Draw what runs when on each processor; tasks of one request have one colour, and where there
    is one request the tasks of one processor take turns. `last_us`: the schedule's end, where the
    trace is only a part of it.
    """
    if last_us is None:
        last_us = max((span.end_us for span in trace.spans), default=0.0)
    end_us = min(window.end_us, last_us)
    length_us = max(end_us - window.start_us, 0.0)
    drawn = [s for s in trace.spans if s.end_us >= window.start_us and s.start_us <= end_us]
    busy: dict[str, float] = {}
    for processor in processors:
        inside_us = 0.0
        for span in drawn:
            if span.processor == processor:
                inside_us += min(span.end_us, end_us) - max(span.start_us, window.start_us)
        busy[processor] = inside_us / (length_us or 1.0)
    by_request = len({span.task.request for span in drawn}) > 1

    def draw(_: int, place: PlacedPanel) -> Markup:
        rows: list[Markup] = []
        for processor in processors:
            on_it = [span for span in drawn if span.processor == processor]
            on_it.sort(key=lambda span: (span.start_us, span.end_us))
            rows.append(_draw_row(processor, on_it, place, window, by_request))
        return join(rows)

    panel = GanttPanel(title, tuple(processors), length_us, busy)
    return draw_gantt(title, _style(processors, window), [panel], draw)


def _style(processors: Sequence[str], window: TimeWindow) -> GanttStyle:
    longest = max(map(len, processors))
    return GanttStyle(
        left_px=min(max(LETTER_PX * longest + 16, LEAST_LEFT_PX), MOST_LEFT_PX),
        axis_unit=window.unit,
        axis_unit_us=window.unit_us,
        axis_origin_us=window.start_us,
    )


def _draw_row(
    processor: str,
    spans: Sequence[Span],
    place: PlacedPanel,
    window: TimeWindow,
    by_request: bool,
) -> Markup:
    top = place.row_top(processor)
    bars: list[Markup] = []
    for number, span in enumerate(spans):
        colour = item_class(span.task.request if by_request else number)
        bars.append(svg.group(draw_bar(_bar(span, place, window), place, top), class_=colour))
    return draw_row(place, processor, *bars)


def _bar(span: Span, place: PlacedPanel, window: TimeWindow) -> GanttBar:
    start, end = (graph_time(us / window.unit_us) for us in (span.start_us, span.end_us))
    tip = f"{span.task.name} on {span.processor}: {start} to {end} {window.unit}".rstrip()
    start_us = max(span.start_us - window.start_us, 0.0)
    end_us = min(span.end_us - window.start_us, place.panel.length_us)
    return GanttBar(start_us, end_us, tip, span.task.name)
