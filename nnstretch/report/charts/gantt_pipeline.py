"""A stream in a window of items: a row for every worker, a colour for every item."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

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
from nnstretch.report.charts.palette import item_class
from nnstretch.report.format_numbers import ms, plain_ms
from nnstretch.report.html import Markup, join
from nnstretch.report.load.pipeline_data import StageInputs, StreamWindow
from nnstretch.trace import Span, Trace

TITLE = "Items on their way through the pipeline"
STYLE = GanttStyle(
    left_px=118.0,
    row_px=28.0,
    gap_px=12.0,
    title_px=28.0,
    between_px=14.0,
    title_baseline_px=17.0,
    name_baseline_px=18.0,
    bar_px=28.0,
    label_baseline_px=18.0,
    label_margin_px=4,
    least_bar_px=1.6,
)


def stream_gantt(windows: tuple[StreamWindow, ...], inputs: StageInputs) -> Markup:
    """Draw every window below the one before it, on one time axis."""
    panels = [_panel(window, inputs) for window in windows]

    def draw(number: int, place: PlacedPanel) -> Markup:
        return _draw_panel(windows[number], place, inputs)

    drawing = draw_gantt(TITLE, STYLE, panels, draw, look="gantt stream")
    return svg.scrolling(drawing, TITLE)


def _panel(window: StreamWindow, inputs: StageInputs) -> GanttPanel:
    first = window.items[0]
    last = window.items[-1]
    items = f"item {first}" if first == last else f"items {first} to {last}"
    title = f"{window.stream.kind.capitalize()}: {items} within {ms(window.length_us / 1000)}"
    rows = _rows(window, inputs)
    busy = {row: _busy_share(window, row) for row in rows}
    return GanttPanel(title, rows, window.length_us, busy)


def _rows(window: StreamWindow, inputs: StageInputs) -> tuple[str, ...]:
    """Return workers in the order of their stages, replicas in the order of their names."""
    stage_order = {stage: number for number, (stage, _) in enumerate(inputs)}
    first_slice: dict[str, int] = {}
    stage_of_row: dict[str, str] = {}
    for number, span in enumerate(window.stream.spans):
        first_slice.setdefault(span.task.subgraph, number)
        stage_of_row[span.processor] = span.task.subgraph

    def order(row: str) -> tuple[int, int, str]:
        stage = stage_of_row[row]
        return stage_order.get(stage, len(stage_order)), first_slice[stage], row

    return tuple(sorted(stage_of_row, key=order))


def _busy_share(window: StreamWindow, row: str) -> float:
    trace = Trace((*window.spans, *window.others))
    return trace.busy_us(row) / window.length_us if window.length_us else 0.0


def _draw_panel(window: StreamWindow, place: PlacedPanel, inputs: StageInputs) -> Markup:
    rows = join(_draw_row(window, row, place) for row in place.panel.rows)
    bars = join(_draw_item(span, window, place) for span in window.spans)
    return join((rows, _links(window, place, inputs), bars))


def _draw_row(window: StreamWindow, row: str, place: PlacedPanel) -> Markup:
    pale = join(_pale(span, place) for span in window.others if span.processor == row)
    return draw_row(place, row, pale)


def _pale(span: Span, place: PlacedPanel) -> Markup:
    left_px = place.x(span.start_us)
    width = place.x(span.end_us) - left_px
    tip = f"{span.processor}, item {span.task.request}, not in this window"
    top = place.row_top(span.processor)
    return svg.rect(left_px, top, width, STYLE.bar_px, class_="other", tip=tip)


def _draw_item(span: Span, window: StreamWindow, place: PlacedPanel) -> Markup:
    when = f"starts at {ms(span.start_us / 1000)}, takes {ms(span.duration_us / 1000)}"
    tip = f"{span.processor}, item {span.task.request}: {when}"
    bar = GanttBar(span.start_us, span.end_us, tip, str(span.task.request))
    look = f"item {item_class(window.items.index(span.task.request))}"
    drawn = draw_bar(bar, place, place.row_top(span.processor))
    return svg.group(drawn, class_=look, data_item=span.task.request)


def _links(window: StreamWindow, place: PlacedPanel, inputs: StageInputs) -> Markup:
    """Draw lines from the end of an item at one stage to its beginning at the next.

    A stage with copies or branches has several spans of an item.
    """
    firsts: dict[tuple[str, int], Span] = {}
    lasts: dict[tuple[str, int], Span] = {}
    for span in window.spans:
        key = (span.task.subgraph, span.task.request)
        firsts[key] = min(firsts.get(key, span), span, key=attrgetter("start_us"))
        lasts[key] = max(lasts.get(key, span), span, key=attrgetter("end_us"))
    lines: list[Markup] = []
    for stage, feeders in inputs:
        for feeder in feeders:
            for number, item in enumerate(window.items):
                if (feeder, item) in lasts and (stage, item) in firsts:
                    line = _link(lasts[feeder, item], firsts[stage, item], place)
                    look = f"link {item_class(number)}"
                    lines.append(svg.group(line, class_=look, data_item=item))
    return join(lines)


def _link(source: Span, target: Span, place: PlacedPanel) -> Markup:
    start = (place.x(source.end_us), place.row_top(source.processor) + STYLE.row_px)
    end = (place.x(target.start_us), place.row_top(target.processor))
    return svg.polyline((start, end))


def slice_table(windows: Iterable[StreamWindow]) -> Markup:
    """Return the slices of the chart as a table."""
    rows: list[tuple[str, ...]] = []
    for window in windows:
        for span in sorted(window.spans, key=lambda s: (s.task.request, s.start_us)):
            times_ms = (plain_ms(span.start_us / 1000), plain_ms(span.duration_us / 1000))
            rows.append((window.stream.kind, str(span.task.request), span.processor, *times_ms))
    header = ("run", "item", "worker", "start (ms)", "duration (ms)")
    return bar_table("slice", header, rows)
