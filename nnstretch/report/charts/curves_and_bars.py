"""Small charts: training curves, counts as bars, and latencies with the predictor's error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from math import log10

from nnstretch.report.charts import svg
from nnstretch.report.format_numbers import count, ms, tick, ticks
from nnstretch.report.html import Markup, join, tag

CURVE_PX = 460.0
CURVE_HIGH_PX = 260.0
CURVE_LEFT_PX = 52.0
CURVE_BOTTOM_PX = 40.0
LATENCIES_PX = 380.0
LATENCY_ROW_PX = 48.0
Spell = Callable[[float], str]
"""Writes a value of the upright axis."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart; `look` is its class."""

    name: str
    look: str
    points: tuple[tuple[float, float], ...]


def curves(title: str, across: str, lines: tuple[Curve, ...], spell: Spell) -> Markup:
    """Return lines over epochs."""
    xs, ys = zip(*chain.from_iterable(curve.points for curve in lines), strict=True)
    x = svg.AxisScale(min(xs), max(xs), CURVE_LEFT_PX, CURVE_PX - 14)
    y = svg.AxisScale(*_padded(min(ys), max(ys)), CURVE_HIGH_PX - CURVE_BOTTOM_PX, 14)
    spoken: list[str] = []
    for curve in lines:
        ends = f"from {spell(curve.points[0][1])} to {spell(curve.points[-1][1])}"
        spoken.append(f"{curve.name} {ends}")
    drawn = (_curve_axes(x, y, across, spell), *(_curve(curve, x, y, spell) for curve in lines))
    words = (title, "; ".join(spoken))
    drawing = svg.svg(CURVE_PX, CURVE_HIGH_PX, *words, *drawn, class_="curves")
    return tag("figure", tag("figcaption", title), drawing, _curve_legend(lines))


def _padded(low: float, high: float) -> tuple[float, float]:
    """Widen a range so that a flat line has room, too; an axis of shares stays between 0 and 1."""
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    least = low - room if low < 0 else max(low - room, 0.0)
    most = high + room if high > 1.0 else min(high + room, 1.0)
    return least, most


def _curve_axes(x: svg.AxisScale, y: svg.AxisScale, across: str, spell: Spell) -> Markup:
    bottom = y.start_px
    levels = ticks(y.low, y.high, 5)
    drawn = [svg.line(x.start_px, y(v), x.end_px, y(v), class_="grid") for v in levels]
    for v in levels:
        drawn.append(svg.text(x.start_px - 7, y(v) + 4, spell(v), class_="small", anchor="end"))
    drawn.append(svg.line(x.start_px, bottom, x.end_px, bottom, class_="axis"))
    for v in ticks(x.low, x.high, 8):
        if v == int(v):
            drawn.append(svg.text(x(v), bottom + 16, tick(v), class_="small", anchor="middle"))
    centre = (x.start_px + x.end_px) / 2
    drawn.append(svg.text(centre, bottom + 33, across, class_="small", anchor="middle"))
    return join(drawn)


def _curve(curve: Curve, x: svg.AxisScale, y: svg.AxisScale, spell: Spell) -> Markup:
    drawn = [svg.polyline((x(a), y(b)) for a, b in curve.points)]
    for a, b in curve.points:
        drawn.append(svg.circle(x(a), y(b), 2.6, f"{curve.name}, epoch {a:g}: {spell(b)}"))
    return svg.group(*drawn, class_=f"curve {curve.look}")


def _curve_legend(lines: Iterable[Curve]) -> Markup:
    entries: list[Markup] = []
    for curve in lines:
        stroke = svg.group(svg.polyline(((0, 6), (26, 6))), class_=f"curve {curve.look}")
        sample = tag("svg", stroke, width=26, height=12, aria_hidden="true")
        entries.append(tag("span", sample, curve.name))
    return tag("p", *entries, class_="legend")


def count_bars(counts: dict[str, float], meaning: Callable[[str], str]) -> Markup:
    """Return how often each constraint refused; logarithmic once counts differ a hundredfold."""
    positive = [n for n in counts.values() if n > 0]
    most = max(positive, default=1.0)
    logarithmic = bool(positive) and most >= 100 * min(positive)
    rows: list[Markup] = []
    for name, n in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        words = (tag("code", name), tag("span", meaning(name), class_="meaning"))
        constraint = tag("th", *words, scope="row", class_="t")
        bar = tag("td", _count_bar(_bar_share(n, most, logarithmic)), class_="bar-cell")
        rows.append(tag("tr", constraint, bar, tag("td", count(n))))
    constraint = tag("th", "constraint", scope="col", class_="t")
    head = tag("tr", constraint, tag("td", ""), tag("th", "refused", scope="col"))
    scale = ", bars on a logarithmic scale" if logarithmic else ""
    caption = tag("caption", f"Refusals by constraint{scale}")
    return tag("table", caption, tag("thead", head), tag("tbody", *rows), class_="bars")


def _bar_share(n: float, most: float, logarithmic: bool) -> float:
    if not logarithmic:
        return max(n, 0.0) / most
    return (log10(n) + 1) / (log10(most) + 1) if n >= 1 else 0.0


def _count_bar(share: float) -> Markup:
    bar = tag("rect", x=0, y=0, width=f"{100 * share:.1f}%", height=14, rx=2, class_="count")
    return tag("svg", bar, width="100%", height=14, aria_hidden="true")


@dataclass(frozen=True, slots=True)
class LatencyBar:
    """A latency with its error, and the class that colours it."""

    name: str
    value_ms: float
    error_ms: float | None
    look: str


def latency_bars(bars: tuple[LatencyBar, ...]) -> Markup:
    """Return predicted latencies side by side, each with the predictor's error as a whisker."""
    longest_ms = max(bar.value_ms + (bar.error_ms or 0.0) for bar in bars)
    x = svg.AxisScale(0, longest_ms or 1.0, 0, LATENCIES_PX - 76)
    drawn = [_latency_bar(bar, i * LATENCY_ROW_PX, x) for i, bar in enumerate(bars)]
    spoken: list[str] = []
    for bar in bars:
        error = "" if bar.error_ms is None else f" ± {ms(bar.error_ms)}"
        spoken.append(f"{bar.name} {ms(bar.value_ms)}{error}")
    height = len(bars) * LATENCY_ROW_PX
    words = ("Predicted latency", ", ".join(spoken))
    return svg.svg(LATENCIES_PX, height, *words, *drawn, class_="latencies")


def _latency_bar(bar: LatencyBar, y: float, x: svg.AxisScale) -> Markup:
    tip = f"{bar.name}: {ms(bar.value_ms)} predicted"
    look = f"latency {bar.look}".strip()
    box = svg.rect(0, y + 19, x(bar.value_ms), 22, radius=3, class_=look, tip=tip)
    error_ms = bar.error_ms or 0.0
    low = x(max(bar.value_ms - error_ms, 0.0))
    high = x(bar.value_ms + error_ms)
    middle = y + 30
    ends = f"M{low:.1f},{middle - 5} v10 M{high:.1f},{middle - 5} v10"
    whisker = None
    if bar.error_ms is not None:
        whisker = svg.path(f"M{low:.1f},{middle} H{high:.1f} {ends}", class_="whisker")
    value = svg.text(high + 9, middle + 5, ms(bar.value_ms), class_="strong")
    return join((svg.text(0, y + 13, bar.name), box, whisker, value))
