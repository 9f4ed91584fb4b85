"""Gantt chart: panels of rows with bars over one axis of milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nnstretch.report.charts import svg
from nnstretch.report.format_numbers import percent
from nnstretch.report.html import Markup, collapsible, join, table

WIDTH_PX = 1120.0
RIGHT_PX = 92.0
AXIS_PX = 30.0
MOST_TABLE_ROWS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class GanttStyle:
    """Measures of a chart in pixels; baselines count from the top of what they label."""

    left_px: float
    row_px: float = 26.0
    gap_px: float = 4.0
    title_px: float = 26.0
    between_px: float = 16.0
    title_baseline_px: float = 16.0
    name_baseline_px: float = 17.0
    bar_px: float = 26.0
    label_baseline_px: float = 17.0
    label_look: str = "on-bar"
    label_margin_px: float = 6
    least_bar_px: float = 1.2
    axis_unit: str = "ms"
    axis_unit_us: float = 1000.0
    axis_origin_us: float = 0.0
    """The time at the left end of the axis."""


@dataclass(frozen=True, slots=True)
class GanttPanel:
    """Rows under one heading."""

    title: str
    rows: tuple[str, ...]
    length_us: float
    busy: Mapping[str, float] = field(default_factory=dict)
    """Share of the length that each row works."""

    @property
    def spoken(self) -> str:
        """Describe the panel in words."""
        if not self.busy:
            return self.title
        return f"{self.title}; " + ", ".join(
            f"{row} busy {percent(self.busy[row], 0)}" for row in self.rows
        )


@dataclass(frozen=True, slots=True)
class PlacedPanel:
    """A panel with its place in the chart."""

    panel: GanttPanel
    style: GanttStyle
    x: svg.AxisScale
    top: float

    def row_top(self, row: str) -> float:
        """Return the top of a row, px."""
        number = self.panel.rows.index(row)
        return self.rows_top + number * (self.style.row_px + self.style.gap_px)

    @property
    def rows_top(self) -> float:
        """Return the top of the first row, px."""
        return self.top + self.style.title_px

    @property
    def rows_bottom(self) -> float:
        """Return where the rows end, px."""
        row_px = self.style.row_px + self.style.gap_px
        return self.rows_top + len(self.panel.rows) * row_px


@dataclass(frozen=True, slots=True)
class GanttBar:
    """One task, with a label where it fits."""

    start_us: float
    end_us: float
    tip: str
    label: str | None = None
    look: str = "bar"


def draw_gantt(
    title: str,
    style: GanttStyle,
    panels: Sequence[GanttPanel],
    draw: Callable[[int, PlacedPanel], Markup],
    look: str = "gantt",
) -> Markup:
    """Draw panels below each other; `draw` fills the panel of a number below its title."""
    longest_us = max(panel.length_us for panel in panels)
    x = svg.AxisScale(0, longest_us or 1.0, style.left_px, WIDTH_PX - RIGHT_PX)
    drawn: list[Markup] = []
    top = 0.0
    for number, panel in enumerate(panels):
        place = PlacedPanel(panel, style, x, top)
        drawn.append(svg.text(0, top + style.title_baseline_px, panel.title, class_="strong"))
        drawn.append(draw(number, place))
        top = place.rows_bottom + style.between_px
    height = top + AXIS_PX
    spoken = ". ".join(panel.spoken for panel in panels)
    axis = svg.time_axis(
        x,
        per_unit=style.axis_unit_us,
        unit=style.axis_unit,
        most=12,
        top=8,
        bottom=top,
        baseline=height - 14,
        origin=style.axis_origin_us,
    )
    return svg.svg(WIDTH_PX, height, title, spoken, axis, *drawn, class_=look)


def draw_row(place: PlacedPanel, row: str, *bars: Markup, look: str | None = None) -> Markup:
    """Draw a row with its name, its share of time at work, and bars on what is else idle."""
    idle, name, busy = _idle_row(place, row), row_name(place, row), _busy_share(place, row)
    return svg.group(idle, name, busy, *bars, class_=look)


def _idle_row(place: PlacedPanel, row: str) -> Markup:
    left_px = place.style.left_px
    width = place.x(place.panel.length_us) - left_px
    tip = f"{row}: idle where nothing is drawn"
    return svg.rect(left_px, place.row_top(row), width, place.style.row_px, class_="idle", tip=tip)


def row_name(place: PlacedPanel, row: str) -> Markup:
    """Draw the name at the left of a row."""
    right_px = place.style.left_px - 8
    name = svg.truncate(row, right_px, 12)
    baseline = place.row_top(row) + place.style.name_baseline_px
    return svg.text(right_px, baseline, name, class_="lane-name", anchor="end")


def _busy_share(place: PlacedPanel, row: str) -> Markup:
    words = f"{percent(place.panel.busy[row], 0)} busy"
    baseline = place.row_top(row) + place.style.name_baseline_px
    return svg.text(place.x(place.panel.length_us) + 8, baseline, words, class_="small")


def draw_bar(bar: GanttBar, place: PlacedPanel, top: float) -> Markup:
    """Draw a bar whose upper edge is at `top`, px."""
    style = place.style
    left_px = place.x(bar.start_us)
    width = max(place.x(bar.end_us) - left_px, style.least_bar_px)
    box = svg.rect(left_px, top, width, style.bar_px, class_=bar.look, tip=bar.tip)
    if bar.label is None or svg.text_width(bar.label, 12) + style.label_margin_px > width:
        return box
    baseline = top + style.label_baseline_px
    middle_px = left_px + width / 2
    label = svg.text(middle_px, baseline, bar.label, class_=style.label_look, anchor="middle")
    return join((box, label))


def bar_table(what: str, header: Iterable[str], rows: Sequence[Iterable[str]]) -> Markup:
    """Return the bars for readers who cannot see the chart or want the exact numbers."""
    caption = f"Every {what} of the chart"
    if len(rows) > MOST_TABLE_ROWS:
        caption += f", the first {MOST_TABLE_ROWS} of {len(rows)}"
    text_columns = frozenset({0, 1, 2})
    content = table(caption, header, rows[:MOST_TABLE_ROWS], text_columns=text_columns)
    return collapsible("The same as a table", content)
