"""Latency against work as an SVG file: the front, single branches of the same MACs, the original.

The file stands alone: colours are written into it, nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nnstretch.report.charts import svg
from nnstretch.report.format_numbers import ms, tick, ticks
from nnstretch.report.html import Markup, join, tag

WIDTH_PX = 640.0
PANEL_PX = 400.0
LEFT_PX = 64.0
RIGHT_PX = 24.0
TOP_PX = 74.0
BOTTOM_PX = 52.0
Points = list[tuple[float, float]]
"""(work over the original's, ms)."""
Tip = Callable[[float, float], str]
"""Words for a point."""
STYLE = """
svg { background: #ffffff; font-family: system-ui, sans-serif; }
text { font-size: 12px; fill: #16202c; } .small { font-size: 11px; fill: #4c5a6b; } \
.strong { font-weight: 650; font-size: 14px; }
.grid { stroke: #e6eaef; } .axis { stroke: #647182; }
polyline { fill: none; stroke-width: 2.2; stroke-linejoin: round; } circle { stroke: #ffffff; }
"""
COLOURS = {"front": "#b84a00", "single": "#5b6b7e", "original": "#0067a8"}
BEHIND = """
.single polyline { stroke-dasharray: 5 4; stroke-width: 1.6; } \
.open circle { fill: #ffffff; stroke-width: 1.6; }
"""


def style() -> str:
    """Return the style sheet. It has no variables, which not every viewer of SVG knows."""
    rules = "\n".join(
        f".{name} polyline, .{name}.open circle {{ stroke: {colour}; }}"
        f" .{name} circle {{ fill: {colour}; }}"
        for name, colour in COLOURS.items()
    )
    return f"{STYLE}{rules}{BEHIND}"


@dataclass(frozen=True, slots=True)
class ParetoMark:
    """One plan of a front."""

    share: float
    """Its work, as a share of the original's, or its meeting points."""
    latency_ms: float
    single_ms: float
    """A single branch of equal MACs on its fastest processor."""
    proven: bool


@dataclass(frozen=True, slots=True)
class ParetoPanel:
    """A front and its references, the original and single branches; latencies are predicted."""

    title: str
    across: str
    """What lies across, as in `MACs of the plan over the original's 1.81 G`."""
    original_name: str
    """Processor of the original."""
    original_ms: float
    marks: tuple[ParetoMark, ...]
    unit: str = "x"
    """Behind numbers across."""
    original_share: float = 1.0
    """Where the original lies across."""


def front_picture(panels: tuple[ParetoPanel, ...]) -> Markup:
    """Return an SVG file, one panel below the other."""
    drawn: list[Markup] = []
    for i, panel in enumerate(panels):
        place = f"translate(0,{i * PANEL_PX:g})"
        drawn.append(svg.group(_panel(panel), transform=place))
    height = PANEL_PX * len(panels)
    sizes = {"xmlns": "http://www.w3.org/2000/svg", **svg.sizes(WIDTH_PX, height)}
    words = "; ".join(_spoken(panel) for panel in panels)
    head = (tag("title", "Fronts"), tag("desc", words), tag("style", Markup(style())))
    return tag("svg", *head, *drawn, role="img", aria_label=words, **sizes)


def _spoken(panel: ParetoPanel) -> str:
    marks = (f"{mark.share:.3g}{panel.unit} {ms(mark.latency_ms)}" for mark in panel.marks)
    points = ", ".join(marks) or "no plan"
    return f"{panel.title}: {points}; original {ms(panel.original_ms)} on {panel.original_name}"


def _panel(panel: ParetoPanel) -> Markup:
    marks = panel.marks
    shares = [panel.original_share, *(mark.share for mark in marks)]
    room = 0.06 * (max(shares) - min(shares)) or 0.1
    latencies_ms = (max(mark.latency_ms, mark.single_ms) for mark in marks)
    highest_ms = max([panel.original_ms, *latencies_ms])
    x = svg.AxisScale(min(shares) - room, max(shares) + room, LEFT_PX, WIDTH_PX - RIGHT_PX)
    y = svg.AxisScale(0.0, 1.06 * highest_ms, PANEL_PX - BOTTOM_PX, TOP_PX)
    single = sorted((mark.share, mark.single_ms) for mark in marks)
    front = sorted((mark.share, mark.latency_ms) for mark in marks)
    unproven = [(mark.share, mark.latency_ms) for mark in marks if not mark.proven]
    original = [(panel.original_share, panel.original_ms)]

    def line(look: str, points: Points) -> Markup:
        return svg.group(svg.polyline((x(a), y(b)) for a, b in points), class_=look)

    def dots(look: str, points: Points, radius: float, tip: Tip) -> Markup:
        circles = (svg.circle(x(a), y(b), radius, tip(a, b)) for a, b in points)
        return svg.group(*circles, class_=look)

    def single_tip(share: float, latency_ms: float) -> str:
        return f"single branch of equal MACs, {share:.4g}{panel.unit}: {ms(latency_ms)}"

    original_tip = f"original on {panel.original_name}: {ms(panel.original_ms)}"
    drawn = (
        svg.text(LEFT_PX, 22, panel.title, class_="strong"),
        _axes(panel, x, y),
        line("single", single),
        dots("single", single, 3.6, single_tip),
        line("front", front),
        dots("front", front, 3.6, lambda a, b: f"stretched, {a:.4g}{panel.unit}: {ms(b)}"),
        dots("front open", unproven, 4.0, lambda a, b: f"not proven, {a:.4g}{panel.unit}: {ms(b)}"),
        dots("original", original, 5.5, lambda a, b: original_tip),
        _legend(panel, bool(unproven)),
    )
    return join(drawn)


def _axes(panel: ParetoPanel, x: svg.AxisScale, y: svg.AxisScale) -> Markup:
    bottom = y.start_px
    levels = [v for v in ticks(y.low, y.high, 6) if v <= y.high]
    shares = [v for v in ticks(x.low, x.high, 8) if x.low <= v <= x.high]
    drawn = [svg.line(x.start_px, y(v), x.end_px, y(v), class_="grid") for v in levels]
    for v in levels:
        drawn.append(svg.text(x.start_px - 8, y(v) + 4, tick(v), class_="small", anchor="end"))
    drawn.append(svg.line(x.start_px, bottom, x.end_px, bottom, class_="axis"))
    drawn += [svg.line(x(v), bottom, x(v), bottom + 4, class_="axis") for v in shares]
    for v in shares:
        drawn.append(
            svg.text(x(v), bottom + 18, f"{tick(v)}{panel.unit}", class_="small", anchor="middle")
        )
    centre = (x.start_px + x.end_px) / 2
    drawn.append(svg.text(centre, bottom + 38, panel.across, class_="small", anchor="middle"))
    turned = f"translate(18,{(y.start_px + y.end_px) / 2:g}) rotate(-90)"
    look = {"transform": turned, "text_anchor": "middle", "class_": "small"}
    drawn.append(tag("text", "predicted latency, ms", **look))
    return join(drawn)


def _legend(panel: ParetoPanel, unproven: bool) -> Markup:
    entries = [
        ("front", "stretched"),
        ("single", "single branch of equal MACs"),
        ("original", f"original on {panel.original_name}"),
    ]
    if unproven:
        entries.append(("front open", "not proven"))
    drawn: list[Markup] = []
    left_px = LEFT_PX
    for look, name in entries:
        dot = svg.circle(left_px + 13, 46, 4.0)
        line = None
        if look in ("front", "single"):
            line = svg.polyline(((left_px, 46), (left_px + 26, 46)))
        drawn.append(svg.group(line, dot, class_=look))
        drawn.append(svg.text(left_px + 33, 50, name, class_="small"))
        left_px += 33 + svg.text_width(name) + 18
    return join(drawn)
