"""Small charts: training curves, counts as bars, and latencies with the predictor's error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import log10

from nnstretch.report.charts import svg
from nnstretch.report.format_numbers import count, ms, tick, ticks
from nnstretch.report.html import Markup, join, tag

CURVE_PX, CURVE_HIGH_PX, CURVE_LEFT_PX, CURVE_BOTTOM_PX = 460.0, 260.0, 52.0, 40.0


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart; `look` is its class."""

    name: str
    look: str
    points: tuple[tuple[float, float], ...]


def curves(
    title: str, across: str, lines: tuple[Curve, ...], spell: Callable[[float], str]
) -> Markup:
    """Return lines over epochs; `spell` writes a value of the upright axis."""
    everything = [point for curve in lines for point in curve.points]
    x_low, x_high = min(x for x, _ in everything), max(x for x, _ in everything)
    low, high = _padded(min(y for _, y in everything), max(y for _, y in everything))
    x = svg.AxisScale(x_low, x_high, CURVE_LEFT_PX, CURVE_PX - 14)
    y = svg.AxisScale(low, high, CURVE_HIGH_PX - CURVE_BOTTOM_PX, 14)
    spoken = "; ".join(
        f"{c.name} from {spell(c.points[0][1])} to {spell(c.points[-1][1])}" for c in lines
    )
    body = join(_curve(curve, x, y, spell) for curve in lines)
    drawing = svg.svg(
        CURVE_PX,
        CURVE_HIGH_PX,
        title,
        spoken,
        _curve_axes(x, y, across, spell),
        body,
        class_="curves",
    )
    return tag("figure", tag("figcaption", title), drawing, _curve_legend(lines))


def _padded(low: float, high: float) -> tuple[float, float]:
    """Widen a range so that a flat line has room, too; an axis of shares stays between 0 and 1."""
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return (max(low - room, 0.0) if low >= 0 else low - room), (
        min(high + room, 1.0) if high <= 1.0 else high + room
    )


def _curve_axes(
    x: svg.AxisScale, y: svg.AxisScale, across: str, spell: Callable[[float], str]
) -> Markup:
    bottom = y.start_px
    levels = ticks(y.low, y.high, 5)
    level = [svg.line(x.start_px, y(v), x.end_px, y(v), class_="grid") for v in levels]
    level += [
        svg.text(x.start_px - 7, y(v) + 4, spell(v), class_="small", anchor="end") for v in levels
    ]
    whole = (v for v in ticks(x.low, x.high, 8) if v == int(v))
    below = (svg.text(x(v), bottom + 16, tick(v), class_="small", anchor="middle") for v in whole)
    name = svg.text(
        (x.start_px + x.end_px) / 2, bottom + 33, across, class_="small", anchor="middle"
    )
    return join(
        (*level, svg.line(x.start_px, bottom, x.end_px, bottom, class_="axis"), *below, name)
    )


def _curve(
    curve: Curve, x: svg.AxisScale, y: svg.AxisScale, spell: Callable[[float], str]
) -> Markup:
    points = [(x(a), y(b)) for a, b in curve.points]
    said = (f"{curve.name}, epoch {a:g}: {spell(b)}" for a, b in curve.points)
    tips = (svg.circle(px, py, 2.6, tip) for (px, py), tip in zip(points, said, strict=True))
    return svg.group(svg.polyline(points), join(tips), class_=f"curve {curve.look}")


def _curve_legend(lines: Iterable[Curve]) -> Markup:
    def sample(curve: Curve) -> Markup:
        stroke = svg.group(svg.polyline(((0, 6), (26, 6))), class_=f"curve {curve.look}")
        return tag("span", tag("svg", stroke, width=26, height=12, aria_hidden="true"), curve.name)

    return tag("p", join(sample(curve) for curve in lines), class_="legend")


def count_bars(counts: dict[str, float], meaning: Callable[[str], str]) -> Markup:
    """Return how often each constraint refused, longest first.

    Logarithmic once counts differ a hundredfold.
    """
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    positive = [n for n in counts.values() if n > 0]
    logarithmic = bool(positive) and max(positive) >= 100 * min(positive)
    most = max(positive, default=1.0)

    def share(n: float) -> float:
        if n <= 0:
            return 0.0
        return (
            (log10(n) + 1) / (log10(most) + 1)
            if logarithmic and n >= 1
            else n / most
            if not logarithmic
            else 0.0
        )

    rows = (
        tag(
            "tr",
            tag(
                "th",
                tag("code", name),
                tag("span", meaning(name), class_="meaning"),
                scope="row",
                class_="t",
            ),
            tag("td", _count_bar(share(n)), class_="bar-cell"),
            tag("td", count(n)),
        )
        for name, n in ordered
    )
    scale = ", bars on a logarithmic scale" if logarithmic else ""
    names = (
        tag("th", "constraint", scope="col", class_="t"),
        tag("td", ""),
        tag("th", "refused", scope="col"),
    )
    caption = tag("caption", f"Refusals by constraint{scale}")
    return tag(
        "table", caption, tag("thead", tag("tr", *names)), tag("tbody", join(rows)), class_="bars"
    )


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
    width, row = 380.0, 48.0
    x = svg.AxisScale(0, max(b.value_ms + (b.error_ms or 0.0) for b in bars) or 1.0, 0, width - 76)
    drawn = join(_latency_bar(bar, i * row, x) for i, bar in enumerate(bars))
    spoken = ", ".join(
        f"{b.name} {ms(b.value_ms)}" + (f" ± {ms(b.error_ms)}" if b.error_ms is not None else "")
        for b in bars
    )
    return svg.svg(width, len(bars) * row, "Predicted latency", spoken, drawn, class_="latencies")


def _latency_bar(bar: LatencyBar, y: float, x: svg.AxisScale) -> Markup:
    end, middle = x(bar.value_ms), y + 30
    name = svg.text(0, y + 13, bar.name)
    tip = f"{bar.name}: {ms(bar.value_ms)} predicted"
    box = svg.rect(0, y + 19, end, 22, radius=3, class_=f"latency {bar.look}".strip(), tip=tip)
    low = x(max(bar.value_ms - (bar.error_ms or 0.0), 0.0))
    high = x(bar.value_ms + (bar.error_ms or 0.0))
    whisker = (
        f"M{low:.1f},{middle} H{high:.1f} M{low:.1f},{middle - 5} v10 M{high:.1f},{middle - 5} v10"
    )
    value = svg.text(high + 9, middle + 5, ms(bar.value_ms), class_="strong")
    return join(
        (name, box, None if bar.error_ms is None else svg.path(whisker, class_="whisker"), value)
    )
