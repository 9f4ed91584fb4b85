"""What each engine of a cluster does when; a colour for every group."""

from __future__ import annotations

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
from nnstretch.report.chips.chip_view import ChipView
from nnstretch.report.format_numbers import ms
from nnstretch.report.html import Markup, join

STYLE = GanttStyle(left_px=80.0, gap_px=5.0, between_px=12.0, least_bar_px=0.6)


def engine_gantt(view: ChipView) -> Markup:
    """Draw a row for each engine, with a bar for each layer that it works for."""
    engines = tuple(dict.fromkeys(sorted(span.engine for span in view.engines)))
    length_us = view.latency_us or 1.0
    busy = dict.fromkeys(engines, 0.0)
    for span in view.engines:
        busy[span.engine] += span.busy_us / length_us
    title = f"Engines of one cluster, {ms(view.latency_us / 1000)} for {view.chip.per_cluster}"

    def draw(_: int, place: PlacedPanel) -> Markup:
        rows = [draw_row(place, engine) for engine in engines]
        bars: list[Markup] = []
        for span in view.engines:
            work = f"works {ms(span.busy_us / 1000)} from {ms(span.start_us / 1000)}"
            bar = GanttBar(span.start_us, span.end_us, f"{span.engine}, {span.step}: {work}")
            drawn = draw_bar(bar, place, place.row_top(span.engine))
            bars.append(svg.group(drawn, class_=item_class(span.group)))
        return join((*rows, *bars))

    panel = GanttPanel(title, engines, view.latency_us, busy)
    return draw_gantt(title, STYLE, [panel], draw)
