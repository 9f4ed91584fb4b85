"""SVG shapes; colours come from classes and CSS variables, never from here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nnstretch.report.format_numbers import tick, ticks
from nnstretch.report.html import Markup, join, tag


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Number on an axis -> pixel."""

    low: float
    high: float
    start_px: float
    end_px: float

    def __call__(self, value: float) -> float:
        """Return where a value lies, px."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        return self.start_px + share * (self.end_px - self.start_px)


def svg(
    width: float,
    height: float,
    title: str,
    description: str,
    *children: str,
    class_: str | None = None,
) -> Markup:
    """Return a drawing that screen readers can name and describe."""
    words = (tag("title", title), tag("desc", description))
    look = {"role": "img", "aria_label": f"{title}. {description}", "class_": class_}
    return tag("svg", *words, *children, **look, **sizes(width, height))


def sizes(width: float, height: float) -> dict[str, str]:
    """Return the attributes of a drawing's size, px."""
    box = f"0 0 {width:g} {height:g}"
    return {"viewBox": box, "width": f"{width:g}", "height": f"{height:g}"}


def scrolling(drawing: Markup, label: str) -> Markup:
    """Return a drawing that scrolls sideways."""
    return tag("div", drawing, class_="scroll", tabindex="0", role="region", aria_label=label)


def text(
    x: float, y: float, words: str, *, class_: str | None = None, anchor: str | None = None
) -> Markup:
    """Return a text at a point, px."""
    return tag("text", words, x=float(x), y=float(y), class_=class_, text_anchor=anchor)


def rect(
    x: float,
    y: float,
    width: float,
    height: float,
    *,
    tip: str | None = None,
    radius: float = 2,
    **look: object,
) -> Markup:
    """Return a rectangle, px."""
    place = {"x": float(x), "y": float(y)}
    size = {"width": max(float(width), 0.0), "height": float(height), "rx": float(radius)}
    return tag("rect", _title(tip), **place, **size, **look)


def _title(tip: str | None) -> Markup | None:
    return None if tip is None else tag("title", tip)


def line(x1: float, y1: float, x2: float, y2: float, **look: object) -> Markup:
    """Return a line, px."""
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), **look)


def path(commands: str, **look: object) -> Markup:
    """Return a path."""
    return tag("path", d=commands, **look)


def polyline(points: Iterable[tuple[float, float]], **look: object) -> Markup:
    """Return a line through points, px."""
    listed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return tag("polyline", points=listed, fill="none", **look)


def circle(x: float, y: float, radius: float, tip: str | None = None, **look: object) -> Markup:
    """Return a circle, px."""
    return tag("circle", _title(tip), cx=float(x), cy=float(y), r=float(radius), **look)


def group(*children: str | None, **look: object) -> Markup:
    """Return several shapes as one."""
    return tag("g", *children, **look)


def text_width(words: str, size_px: float = 11) -> float:
    """Estimate the width of a text in a sans-serif face, on the safe side, px."""
    return 0.58 * size_px * len(words)


def truncate(words: str, room_px: float, size_px: float = 11) -> str:
    """Keep the end, which tells blocks of a stage apart."""
    letters = int(room_px / (0.58 * size_px))
    return words if len(words) <= letters else "…" + words[-max(letters - 1, 1) :]


def time_axis(
    x: AxisScale,
    *,
    per_unit: float = 1.0,
    unit: str = "ms",
    most: int,
    top: float,
    bottom: float,
    baseline: float,
    origin: float = 0.0,
) -> Markup:
    """Draw at most `most` marks of time; `per_unit` is one `unit` in the scale's unit, `origin` the
    time at the scale's 0.
    """
    drawn: list[Markup] = []
    low, high = (x.low + origin) / per_unit, (x.high + origin) / per_unit
    for at in ticks(low, high, most):
        at_px = x(per_unit * at - origin)
        drawn.append(line(at_px, top, at_px, bottom, class_="grid"))
        drawn.append(text(at_px, baseline, tick(at), class_="small", anchor="middle"))
    return join((*drawn, text(x.end_px + 14, baseline, unit, class_="small")))


def shared_patterns() -> Markup:
    """Return textures for idle time, and for copies in and out of a processor."""
    slash = path("M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4", class_="hatch")
    forth = path("M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4", class_="stripe")
    back = path("M-2,6 l4,4 M0,0 l8,8 M6,-2 l4,4", class_="stripe")
    size = {"width": 8, "height": 8, "patternUnits": "userSpaceOnUse"}
    strokes = (("idle", slash), ("copy-in", forth), ("copy-out", back))
    patterns = (tag("pattern", stroke, id=name, **size) for name, stroke in strokes)
    hidden = {"class_": "defs", "aria_hidden": "true", "focusable": "false"}
    return tag("svg", tag("defs", *patterns), width=0, height=0, **hidden)
