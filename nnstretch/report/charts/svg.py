"""The few SVG shapes the page draws with.

Colours come from classes and CSS variables, never from here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nnstretch.report.html import Markup, join, tag


@dataclass(frozen=True, slots=True)
class AxisScale:
    """A number on an axis -> a pixel."""

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
    sizes = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
    return tag(
        "svg",
        *words,
        *children,
        role="img",
        aria_label=f"{title}. {description}",
        class_=class_,
        **sizes,
    )


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
    shape = {
        "x": float(x),
        "y": float(y),
        "width": max(float(width), 0.0),
        "height": float(height),
        "rx": float(radius),
    }
    return tag("rect", None if tip is None else tag("title", tip), **shape, **look)


def line(x1: float, y1: float, x2: float, y2: float, **look: object) -> Markup:
    """Return a line, px."""
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), **look)


def path(commands: str, **look: object) -> Markup:
    """Return a path."""
    return tag("path", d=commands, **look)


def polyline(points: Iterable[tuple[float, float]], **look: object) -> Markup:
    """Return a line through points, px."""
    return tag(
        "polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), fill="none", **look
    )


def circle(x: float, y: float, radius: float, tip: str | None = None, **look: object) -> Markup:
    """Return a circle, px."""
    return tag(
        "circle",
        None if tip is None else tag("title", tip),
        cx=float(x),
        cy=float(y),
        r=float(radius),
        **look,
    )


def group(*children: str | None, **look: object) -> Markup:
    """Return several shapes as one."""
    return tag("g", *children, **look)


def text_width(words: str, size_px: float = 11) -> float:
    """Estimate the width of a text in a sans-serif face, with caution: no font is measured here."""
    return 0.58 * size_px * len(words)


def truncate(words: str, room_px: float, size_px: float = 11) -> str:
    """Keep the end, which tells blocks of a stage apart."""
    letters = int(room_px / (0.58 * size_px))
    return words if len(words) <= letters else "…" + words[-max(letters - 1, 1) :]


def shared_patterns() -> Markup:
    """Return textures every drawing may refer to: idle time, and copies in and out of a
    processor.
    """
    slash = path("M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4", class_="hatch")
    forth = path("M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4", class_="stripe")
    back = path("M-2,6 l4,4 M0,0 l8,8 M6,-2 l4,4", class_="stripe")
    size = {"width": 8, "height": 8, "patternUnits": "userSpaceOnUse"}
    patterns = join(
        tag("pattern", drawn, id=name, **size)
        for name, drawn in (("idle", slash), ("copy-in", forth), ("copy-out", back))
    )
    return tag(
        "svg",
        tag("defs", patterns),
        width=0,
        height=0,
        class_="defs",
        aria_hidden="true",
        focusable="false",
    )
