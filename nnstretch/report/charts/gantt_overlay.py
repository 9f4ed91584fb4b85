"""Prediction and run in the same rows: the upper bars are predicted, the lower ones played."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nnstretch.report.charts import svg
from nnstretch.report.charts.gantt import (
    GanttPanel,
    GanttStyle,
    PlacedPanel,
    draw_bar,
    draw_gantt,
    row_name,
)
from nnstretch.report.charts.gantt_networks import bar_of
from nnstretch.report.charts.palette import colour_class
from nnstretch.report.format_numbers import ms, signed_percent
from nnstretch.report.html import Markup, join
from nnstretch.report.load.data import RunSummary
from nnstretch.report.load.timeline import Timeline
from nnstretch.report.load.trace_diff import TimelinePair, timing_of

HALF_PX = 15.0
STYLE = GanttStyle(
    left_px=56.0,
    row_px=2 * HALF_PX,
    gap_px=8.0,
    between_px=14.0,
    name_baseline_px=HALF_PX + 4,
    bar_px=HALF_PX - 1,
    label_baseline_px=11.5,
    label_look="on-bar small",
)


def overlay_gantt(
    pairs: tuple[TimelinePair, ...], processors: tuple[str, ...], runs: Mapping[str, RunSummary]
) -> Markup:
    """Draw predicted and played timelines in the same rows."""
    panels: list[GanttPanel] = []
    for pair in pairs:
        longer_us = max(pair.predicted.trace.makespan_us, pair.played.trace.makespan_us)
        timing = timing_of(pair.network, pair.played, runs)
        panels.append(GanttPanel(_title(pair, timing), processors, longer_us))

    def draw(number: int, place: PlacedPanel) -> Markup:
        pair = pairs[number]
        timing = timing_of(pair.network, pair.played, runs)
        return join(_draw_row(pair, name, place, timing) for name in processors)

    return draw_gantt("Predicted and played timelines", STYLE, panels, draw)


def _title(pair: TimelinePair, timing: str) -> str:
    predicted_us = pair.predicted.trace.makespan_us
    played_us = pair.played.trace.makespan_us
    beside = f", {signed_percent(played_us / predicted_us - 1)}" if predicted_us else ""
    lengths = f"predicted {ms(predicted_us / 1000)}, {timing} {ms(played_us / 1000)}"
    return f"{pair.network.capitalize()} network: {lengths}{beside}"


def _draw_row(pair: TimelinePair, processor: str, place: PlacedPanel, timing: str) -> Markup:
    top = place.row_top(processor)
    middle = top + HALF_PX
    above = _draw_bars(pair.predicted, processor, place, top, "predicted")
    below = _draw_bars(pair.played, processor, place, middle, timing)
    base = svg.line(place.x.start_px, middle, place.x.end_px, middle, class_="grid")
    return svg.group(row_name(place, processor), base, above, below, class_=colour_class(processor))


def _draw_bars(
    timeline: Timeline, processor: str, place: PlacedPanel, top: float, timing: str
) -> Markup:
    """Draw the bars of one processor; predicted ones are pale and have no label."""
    bars: list[Markup] = []
    for part in timeline.parts:
        if part.span.processor != processor:
            continue
        bar = bar_of(part, f", {timing}")
        if timing == "predicted":
            bar = replace(bar, look=f"{bar.look} ghost", label=None)
        bars.append(draw_bar(bar, place, top))
    return join(bars)
