"""Latency against work as a picture of its own.

The front, single branches of the same MACs, and the original.

The file stands alone: colours are written into it, nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nnstretch.report.charts import svg
from nnstretch.report.format_numbers import ms, tick, ticks
from nnstretch.report.html import Markup, join, tag

WIDTH_PX, PANEL_PX = 640.0, 400.0
LEFT_PX, RIGHT_PX, TOP_PX, BOTTOM_PX = 64.0, 24.0, 74.0, 52.0
STYLE = """
svg { background: #ffffff; font-family: system-ui, sans-serif; }
text { font-size: 12px; fill: #16202c; } .small { font-size: 11px; fill: #4c5a6b; } \
.strong { font-weight: 650; font-size: 14px; }
.grid { stroke: #e6eaef; } .axis { stroke: #647182; }
.front { --s: #b84a00; } .single { --s: #5b6b7e; } .original { --s: #0067a8; }
polyline { stroke: var(--s); stroke-width: 2.2; stroke-linejoin: round; } \
circle { fill: var(--s); stroke: #ffffff; }
.single polyline { stroke-dasharray: 5 4; stroke-width: 1.6; } \
.open circle { fill: #ffffff; stroke: var(--s); stroke-width: 1.6; }
"""


@dataclass(frozen=True, slots=True)
class ParetoMark:
    """One plan of a front."""

    share: float
    """Its work, as a share of the original's."""
    latency_ms: float
    single_ms: float
    """A single branch of equal MACs on its fastest processor."""
    proven: bool


@dataclass(frozen=True, slots=True)
class ParetoPanel:
    """One front with what it is compared to; all latencies are predicted."""

    title: str
    across: str
    """Name of the work, as in `MACs`."""
    original_amount: str
    """The original's work in words, as in `1.81 G`."""
    original_name: str
    """Processor of the original."""
    original_ms: float
    marks: tuple[ParetoMark, ...]


def front_picture(panels: tuple[ParetoPanel, ...]) -> Markup:
    """Return an SVG file, one panel below the other."""
    drawn = join(
        svg.group(panel_drawn(p), transform=f"translate(0,{i * PANEL_PX:g})")
        for i, p in enumerate(panels)
    )
    height = PANEL_PX * len(panels)
    sizes = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {WIDTH_PX:g} {height:g}",
        "width": f"{WIDTH_PX:g}",
        "height": f"{height:g}",
    }
    words = "; ".join(spoken(panel) for panel in panels)
    head = (tag("title", "Fronts"), tag("desc", words), tag("style", Markup(STYLE)))
    return tag("svg", *head, drawn, role="img", aria_label=words, **sizes)


def spoken(panel: ParetoPanel) -> str:
    """Return the panel in words."""
    points = (
        ", ".join(f"{mark.share:.2f}x {ms(mark.latency_ms)}" for mark in panel.marks) or "no plan"
    )
    return f"{panel.title}: {points}; original {ms(panel.original_ms)} on {panel.original_name}"


def panel_drawn(panel: ParetoPanel) -> Markup:
    """Return the drawing of a panel."""
    shares = [1.0, *(mark.share for mark in panel.marks)]
    room = 0.06 * (max(shares) - min(shares)) or 0.1
    highest = max([panel.original_ms, *(max(m.latency_ms, m.single_ms) for m in panel.marks)])
    x = svg.AxisScale(min(shares) - room, max(shares) + room, LEFT_PX, WIDTH_PX - RIGHT_PX)
    y = svg.AxisScale(0.0, 1.06 * highest, PANEL_PX - BOTTOM_PX, TOP_PX)
    single = [(m.share, m.single_ms) for m in panel.marks]
    points = [(m.share, m.latency_ms) for m in panel.marks]
    unproven = [(m.share, m.latency_ms) for m in panel.marks if not m.proven]
    return join(
        (
            svg.text(LEFT_PX, 22, panel.title, class_="strong"),
            axes(panel, x, y),
            curve(
                "single",
                single,
                x,
                y,
                lambda a, b: f"single branch of equal MACs, {a:.3f}x: {ms(b)}",
            ),
            curve("front", points, x, y, lambda a, b: f"stretched, {a:.3f}x: {ms(b)}"),
            dots(
                "front open",
                unproven,
                x,
                y,
                4.0,
                lambda a, b: f"stretched, not proven, {a:.3f}x: {ms(b)}",
            ),
            dots(
                "original",
                [(1.0, panel.original_ms)],
                x,
                y,
                5.5,
                lambda a, b: f"original on {panel.original_name}: {ms(b)}",
            ),
            legend(panel, bool(unproven)),
        )
    )


def axes(panel: ParetoPanel, x: svg.AxisScale, y: svg.AxisScale) -> Markup:
    """Return the axes of a panel."""
    levels, bottom = ticks(y.low, y.high, 6), y.start_px
    level = [
        svg.line(x.start_px, y(v), x.end_px, y(v), class_="grid") for v in levels if v <= y.high
    ]
    level += [
        svg.text(x.start_px - 8, y(v) + 4, tick(v), class_="small", anchor="end")
        for v in levels
        if v <= y.high
    ]
    below = [v for v in ticks(x.low, x.high, 8) if x.low <= v <= x.high]
    marks = [svg.line(x(v), bottom, x(v), bottom + 4, class_="axis") for v in below]
    marks += [
        svg.text(x(v), bottom + 18, f"{tick(v)}x", class_="small", anchor="middle") for v in below
    ]
    name = f"{panel.across} of the plan over the original's {panel.original_amount}"
    titles = (
        svg.text((x.start_px + x.end_px) / 2, bottom + 38, name, class_="small", anchor="middle"),
        tag(
            "text",
            "predicted latency, ms",
            transform=f"translate(18,{(y.start_px + y.end_px) / 2:g}) rotate(-90)",
            text_anchor="middle",
            class_="small",
        ),
    )
    return join(
        (*level, svg.line(x.start_px, bottom, x.end_px, bottom, class_="axis"), *marks, *titles)
    )


Spell = Callable[[float, float], str]


def curve(
    look: str, points: list[tuple[float, float]], x: svg.AxisScale, y: svg.AxisScale, spell: Spell
) -> Markup:
    """Return a line through points and a dot at each."""
    points = sorted(points)
    return join(
        (
            svg.group(svg.polyline((x(a), y(b)) for a, b in points), class_=look),
            dots(look, points, x, y, 3.6, spell),
        )
    )


def dots(
    look: str,
    points: list[tuple[float, float]],
    x: svg.AxisScale,
    y: svg.AxisScale,
    radius: float,
    spell: Spell,
) -> Markup:
    """Return a dot at each point."""
    return svg.group(*(svg.circle(x(a), y(b), radius, spell(a, b)) for a, b in points), class_=look)


def legend(panel: ParetoPanel, unproven: bool) -> Markup:
    """Return what lines and dots mean."""
    entries = [
        ("front", "stretched"),
        ("single", "single branch of equal MACs"),
        ("original", f"original on {panel.original_name}"),
    ]
    entries += [("front open", "not proven")] if unproven else []
    drawn, left_px = [], LEFT_PX
    for look, name in entries:
        line = (
            svg.polyline(((left_px, 46), (left_px + 26, 46)))
            if look in ("front", "single")
            else None
        )
        drawn.append(svg.group(line, svg.circle(left_px + 13, 46, 4.0), class_=look))
        drawn.append(svg.text(left_px + 33, 50, name, class_="small"))
        left_px += 33 + svg.text_width(name) + 18
    return join(drawn)
