"""Bars side by side in groups, with 95% intervals and a legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnstretch.report.charts import svg
from nnstretch.report.charts.palette import item_class
from nnstretch.report.format_numbers import digits, tick, ticks
from nnstretch.report.html import Markup, join

WIDTH_PX = 760.0
LEFT_PX = 70.0
TOP_PX = 44.0
PLOT_PX = 250.0
LEGEND_PX = 170.0
LEGEND_ROW_PX = 20.0
GROUP_SHARE = 0.8
"""Of a group's room that its bars take."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar."""

    value: float
    half_width: float | None = None
    """Of its 95% interval; None where there is one trial."""


@dataclass(frozen=True, slots=True)
class BarGroup:
    """Bars that stand together, one for each name of the legend; None where there is none."""

    name: str
    bars: tuple[Bar | None, ...]


def bar_chart(title: str, upward: str, names: Sequence[str], groups: Sequence[BarGroup]) -> Markup:
    """Draw groups of bars; `names` are those of a group's bars, `upward` what heights mean."""
    most = 0.0
    for group in groups:
        for bar in group.bars:
            most = max(most, 0.0 if bar is None else bar.value + (bar.half_width or 0.0))
    y = svg.AxisScale(0.0, most or 1.0, TOP_PX + PLOT_PX, TOP_PX)
    height_px = max(TOP_PX + PLOT_PX + 40.0, TOP_PX + LEGEND_ROW_PX * len(names) + 10.0)
    drawn = [svg.text(LEFT_PX - 50, 20, title, class_="strong"), _axis(y, upward)]
    room_px = (WIDTH_PX - LEGEND_PX - LEFT_PX) / max(1, len(groups))
    for number, group in enumerate(groups):
        drawn.append(_group(group, names, LEFT_PX + number * room_px, room_px, y))
    for number, name in enumerate(names):
        drawn.append(_legend_row(name, number))
    return svg.svg(WIDTH_PX, height_px, title, _spoken(names, groups), *drawn, class_="curves")


def _spoken(names: Sequence[str], groups: Sequence[BarGroup]) -> str:
    spoken: list[str] = []
    for group in groups:
        for name, bar in zip(names, group.bars, strict=True):
            if bar is not None:
                spoken.append(f"{group.name}, {name}: {bar.value:.4g}")
    return "; ".join(spoken)


def _axis(y: svg.AxisScale, upward: str) -> Markup:
    right_px = WIDTH_PX - LEGEND_PX
    drawn = [svg.text(LEFT_PX - 50, 38, upward, class_="small")]
    for value in ticks(0.0, y.high, 6):
        drawn.append(svg.line(LEFT_PX, y(value), right_px, y(value), class_="grid"))
        drawn.append(svg.text(LEFT_PX - 7, y(value) + 4, tick(value), class_="small", anchor="end"))
    drawn.append(svg.line(LEFT_PX, y.start_px, right_px, y.start_px, class_="axis"))
    return join(drawn)


def _group(
    group: BarGroup, names: Sequence[str], left_px: float, room_px: float, y: svg.AxisScale
) -> Markup:
    width_px = GROUP_SHARE * room_px / len(names)
    at_px = left_px + (1 - GROUP_SHARE) / 2 * room_px
    drawn: list[Markup] = []
    for number, (name, bar) in enumerate(zip(names, group.bars, strict=True)):
        if bar is not None:
            drawn.append(_bar(bar, f"{group.name}, {name}", number, at_px, width_px, y))
        at_px += width_px
    label = svg.truncate(group.name, room_px - 4)
    middle_px = left_px + room_px / 2
    drawn.append(svg.text(middle_px, y.start_px + 18, label, class_="small", anchor="middle"))
    return join(drawn)


def _bar(
    bar: Bar, name: str, number: int, left_px: float, width_px: float, y: svg.AxisScale
) -> Markup:
    interval = "" if bar.half_width is None else f" ± {digits(bar.half_width)}"
    top_px = y(bar.value)
    drawn = [
        svg.rect(
            left_px,
            top_px,
            width_px,
            y.start_px - top_px,
            class_="bar",
            tip=f"{name}: {digits(bar.value)}{interval}",
        )
    ]
    if bar.half_width:
        low_px, high_px = y(max(bar.value - bar.half_width, 0)), y(bar.value + bar.half_width)
        middle_px = left_px + width_px / 2
        drawn.append(svg.line(middle_px, low_px, middle_px, high_px, class_="whisker"))
    return svg.group(*drawn, class_=item_class(number))


def _legend_row(name: str, number: int) -> Markup:
    left_px, top_px = WIDTH_PX - LEGEND_PX + 14, TOP_PX + LEGEND_ROW_PX * number
    swatch = svg.rect(left_px, top_px, 14, 12, class_="bar")
    label = svg.text(left_px + 20, top_px + 10, svg.truncate(name, LEGEND_PX - 38), class_="small")
    return svg.group(swatch, label, class_=item_class(number))
