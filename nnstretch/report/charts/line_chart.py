"""Lines over one axis, with a legend, on linear or logarithmic scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil, floor, log10

from nnstretch.report.charts import svg
from nnstretch.report.charts.palette import item_class
from nnstretch.report.format_numbers import tick, ticks
from nnstretch.report.html import Markup, join

WIDTH_PX = 760.0
HEIGHT_PX = 380.0
LEFT_PX = 70.0
TOP_PX = 44.0
BOTTOM_PX = 52.0
LEGEND_PX = 170.0
LEGEND_ROW_PX = 20.0


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line; its points in order of x."""

    name: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class ChartAxis:
    """What an axis shows."""

    name: str
    logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class ChartScale:
    """Number on a linear or logarithmic axis -> pixel."""

    inner: svg.AxisScale
    logarithmic: bool

    def __call__(self, value: float) -> float:
        """Return where a value lies, px."""
        return self.inner(log10(value) if self.logarithmic else value)

    def marks(self, most: int) -> tuple[float, ...]:
        """Return round numbers along the axis."""
        if not self.logarithmic:
            return ticks(self.inner.low, self.inner.high, most)
        first, last = ceil(self.inner.low - 1e-9), floor(self.inner.high + 1e-9)
        powers = [10.0**power for power in range(first, last + 1)]
        if len(powers) > 2:
            return tuple(powers)
        marks: list[float] = []
        for power in range(first - 1, last + 1):
            for factor in (1, 2, 5):
                mark = factor * 10.0**power
                if self.inner.low - 1e-9 <= log10(mark) <= self.inner.high + 1e-9:
                    marks.append(mark)
        return tuple(marks) if len(marks) > 2 else self._near_marks(most)

    def _near_marks(self, most: int) -> tuple[float, ...]:
        """Return marks at equal steps, where the axis ends before powers of ten tell much."""
        power = floor(self.inner.low)
        low, high = 10 ** (self.inner.low - power), 10 ** (self.inner.high - power)
        return tuple(mark * 10.0**power for mark in ticks(low, high, most))


def placed_points(
    line: ChartLine, across: ChartAxis, upward: ChartAxis
) -> tuple[tuple[float, float], ...]:
    """Return the points of a line that have a place on both axes."""
    return tuple(
        (x, y)
        for x, y in line.points
        if (x > 0 or not across.logarithmic) and (y > 0 or not upward.logarithmic)
    )


def line_chart(
    title: str, across: ChartAxis, upward: ChartAxis, lines: Sequence[ChartLine]
) -> Markup:
    """Draw lines; what is not above 0 has no place on a logarithmic axis and is left out."""
    placed = [replace(line, points=placed_points(line, across, upward)) for line in lines]
    lines = [line for line in placed if line.points]
    points = list(chain.from_iterable(line.points for line in lines)) or [(1.0, 1.0)]
    x = _scale([a for a, _ in points], across, (LEFT_PX, WIDTH_PX - LEGEND_PX))
    heights = [b for _, b in points]
    if not upward.logarithmic:
        heights.append(0.0)
    y = _scale(heights, upward, (HEIGHT_PX - BOTTOM_PX, TOP_PX))
    spoken: list[str] = []
    for line in lines:
        first, last = line.points[0], line.points[-1]
        spoken.append(f"{line.name} from {first[1]:.4g} to {last[1]:.4g}")
    drawn = [svg.text(LEFT_PX - 50, 20, title, class_="strong"), _axes(x, y, across, upward)]
    for number, line in enumerate(lines):
        drawn.append(_draw_line(line, number, x, y))
    return svg.svg(WIDTH_PX, HEIGHT_PX, title, "; ".join(spoken), *drawn, class_="curves")


def _scale(values: Sequence[float], axis: ChartAxis, pixels: tuple[float, float]) -> ChartScale:
    shown = [log10(value) for value in values] if axis.logarithmic else list(values)
    low, high = min(shown), max(shown)
    if low == high:
        high = low + 1.0
    room = 0.0 if axis.logarithmic else 0.04 * (high - low)
    return ChartScale(svg.AxisScale(low, high + room, *pixels), axis.logarithmic)


def _axes(x: ChartScale, y: ChartScale, across: ChartAxis, upward: ChartAxis) -> Markup:
    drawn: list[Markup] = []
    right_px, bottom_px = WIDTH_PX - LEGEND_PX, HEIGHT_PX - BOTTOM_PX
    for value in y.marks(6):
        drawn.append(svg.line(LEFT_PX, y(value), right_px, y(value), class_="grid"))
        label = tick(value)
        drawn.append(svg.text(LEFT_PX - 7, y(value) + 4, label, class_="small", anchor="end"))
    for value in x.marks(8):
        at = bottom_px + 16
        drawn.append(svg.text(x(value), at, tick(value), class_="small", anchor="middle"))
    drawn.append(svg.line(LEFT_PX, bottom_px, right_px, bottom_px, class_="axis"))
    centre_px = (LEFT_PX + right_px) / 2
    drawn.append(svg.text(centre_px, bottom_px + 36, across.name, class_="small", anchor="middle"))
    drawn.append(svg.text(LEFT_PX - 50, 38, upward.name, class_="small"))
    return join(drawn)


def _draw_line(line: ChartLine, number: int, x: ChartScale, y: ChartScale) -> Markup:
    look = f"curve by-item {item_class(number)}{' faded' if line.dashed else ''}"
    drawn = [svg.polyline((x(a), y(b)) for a, b in line.points)]
    for a, b in line.points:
        drawn.append(svg.circle(x(a), y(b), 2.6, f"{line.name}, {a:.4g}: {b:.4g}"))
    left_px = WIDTH_PX - LEGEND_PX + 14
    top_px = TOP_PX + 8 + LEGEND_ROW_PX * number
    drawn.append(svg.polyline(((left_px, top_px), (left_px + 22, top_px))))
    name = svg.truncate(line.name, LEGEND_PX - 46)
    drawn.append(svg.text(left_px + 28, top_px + 4, name, class_="small"))
    return svg.group(*drawn, class_=look)
