"""Accuracy and speed by the number of forks, as one SVG file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from nnstretch.report.charts import svg
from nnstretch.report.format_numbers import tick, ticks
from nnstretch.report.html import Markup, join, tag

PANEL_PX, HEIGHT_PX = 360.0, 314.0
LEFT_PX, RIGHT_PX, TOP_PX, BOTTOM_PX = 52.0, 16.0, 56.0, 78.0
STYLE = """
svg { background: #ffffff; font-family: system-ui, sans-serif; }
text { font-size: 11px; fill: #4c5a6b; } .strong { font-weight: 650; font-size: 13px; fill: #16202c; }
.grid { stroke: #e6eaef; } .axis { stroke: #647182; }
.mean polyline { stroke: #b84a00; stroke-width: 2; } .mean circle { fill: #b84a00; }
.seeds circle { fill: none; stroke: #0067a8; }
"""


@dataclass(frozen=True)
class ForkMark:
    """What was measured at one number of forks."""

    name: str
    """`original`, or the number of forks."""
    below: tuple[str, ...]
    """Lines below the name."""
    values: tuple[float, ...]
    """One a seed."""


@dataclass(frozen=True)
class ForkPanel:
    """One network, one quantity."""

    title: str
    upward: str
    marks: tuple[ForkMark, ...]


def fork_picture(rows: Sequence[Sequence[ForkPanel]]) -> Markup:
    """Return an SVG file of panels in rows."""
    drawn = []
    for row, panels in enumerate(rows):
        for column, panel in enumerate(panels):
            place = f"translate({column * PANEL_PX:g},{row * HEIGHT_PX:g})"
            drawn.append(svg.group(panel_drawing(panel), transform=place))
    words = "; ".join(spoken(panel) for panels in rows for panel in panels)
    size = svg.sizes(PANEL_PX * max(map(len, rows)), HEIGHT_PX * len(rows))
    head = (tag("title", "Forks"), tag("desc", words), tag("style", Markup(STYLE)))
    look = {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "aria_label": words, **size}
    return tag("svg", *head, *drawn, **look)


def spoken(panel: ForkPanel) -> str:
    """Return a panel in words."""
    marks = ", ".join(f"{mark.name}: {mean(mark.values):.4g}" for mark in panel.marks)
    return f"{panel.title}, {panel.upward}: {marks}"


def panel_drawing(panel: ForkPanel) -> Markup:
    """Draw one panel: a circle for each seed, a line through the means."""
    values = [value for mark in panel.marks for value in mark.values]
    room = 0.12 * (max(values) - min(values)) or 1.0
    bottom = HEIGHT_PX - BOTTOM_PX
    y = svg.AxisScale(min(values) - room, max(values) + room, bottom, TOP_PX)
    step = (PANEL_PX - LEFT_PX - RIGHT_PX) / len(panel.marks)
    places = [LEFT_PX + step * (number + 0.5) for number in range(len(panel.marks))]
    drawn = [svg.text(12, 20, panel.title, class_="strong"), svg.text(12, 38, panel.upward)]
    for level in (value for value in ticks(y.low, y.high, 6) if y.low <= value <= y.high):
        drawn.append(svg.line(LEFT_PX, y(level), PANEL_PX - RIGHT_PX, y(level), class_="grid"))
        drawn.append(svg.text(LEFT_PX - 6, y(level) + 4, tick(level), anchor="end"))
    drawn.append(svg.line(LEFT_PX, bottom, PANEL_PX - RIGHT_PX, bottom, class_="axis"))
    seeds = []
    for x, mark in zip(places, panel.marks, strict=True):
        drawn.append(svg.text(x, bottom + 16, mark.name, anchor="middle"))
        for number, line in enumerate(mark.below):
            drawn.append(svg.text(x, bottom + 31 + 15 * number, line, anchor="middle"))
        if len(mark.values) > 1:
            seeds += [svg.circle(x, y(v), 3, f"{mark.name}: {v:.4g}") for v in mark.values]
    means = [(x, y(mean(mark.values))) for x, mark in zip(places, panel.marks, strict=True)]
    circles = [svg.circle(x, height, 3.5) for x, height in means]
    drawn.append(svg.group(svg.polyline(means), *circles, class_="mean"))
    drawn.append(svg.group(*seeds, class_="seeds"))
    middle = (LEFT_PX + PANEL_PX - RIGHT_PX) / 2
    drawn.append(svg.text(middle, bottom + 65, "forks", anchor="middle"))
    return join(drawn)
