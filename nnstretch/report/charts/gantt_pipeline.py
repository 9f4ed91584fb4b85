"""A stream in a window of items.

A row for every worker, a colour and a number for every item, lines from stage to stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nnstretch.report.charts import svg
from nnstretch.report.charts.palette import item_class
from nnstretch.report.format_numbers import ms, percent, plain_ms, tick, ticks
from nnstretch.report.html import Markup, collapsible, join, table
from nnstretch.report.load.pipeline_data import PipelineReportData, StreamSlice, StreamWindow

WIDTH_PX, LEFT_PX, RIGHT_PX = 1120.0, 118.0, 92.0
LANE_PX, GAP_PX, TITLE_PX, BETWEEN_PX, AXIS_PX = 28.0, 12.0, 28.0, 14.0, 30.0
MOST_TABLE_ROWS = 400
TITLE = "Items on their way through the pipeline"
After = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class GanttPanel:
    """One window in its place."""

    window: StreamWindow
    rows: tuple[str, ...]
    title: str
    top: float

    def lane_top(self, row: str) -> float:
        """Return the top of a row, px."""
        return self.top + TITLE_PX + self.rows.index(row) * (LANE_PX + GAP_PX)

    @property
    def height(self) -> float:
        """Return the height of a window, px."""
        return TITLE_PX + len(self.rows) * (LANE_PX + GAP_PX) + BETWEEN_PX


def stream_gantt(windows: tuple[StreamWindow, ...], after: After) -> Markup:
    """Return every window below the one before it, on one time axis."""
    x = svg.AxisScale(
        0, max(window.length_us for window in windows) or 1.0, LEFT_PX, WIDTH_PX - RIGHT_PX
    )
    panels, top = list[GanttPanel](), 0.0
    for window in windows:
        panels.append(GanttPanel(window, rows_of(window, after), title_of(window), top))
        top += panels[-1].height
    drawn = join(_panel(panel, after, x) for panel in panels)
    spoken = ". ".join(f"{panel.title}; {_spoken(panel)}" for panel in panels)
    return svg.svg(
        WIDTH_PX,
        top + AXIS_PX,
        TITLE,
        spoken,
        _axis(x, top + AXIS_PX),
        drawn,
        class_="gantt stream",
    )


def rows_of(window: StreamWindow, after: After) -> tuple[str, ...]:
    """Return workers in the order of their stages, replicas in the order of their names."""
    order = {stage: number for number, (stage, _) in enumerate(after)}
    first = {
        slice_.stage: number for number, slice_ in reversed(list(enumerate(window.stream.slices)))
    }
    of_row = {slice_.row: slice_.stage for slice_ in window.stream.slices}
    return tuple(
        sorted(
            of_row, key=lambda row: (order.get(of_row[row], len(order)), first[of_row[row]], row)
        )
    )


def title_of(window: StreamWindow) -> str:
    """Return the title of a window."""
    first, last = window.items[0], window.items[-1]
    shown = f"item {first}" if first == last else f"items {first} to {last}"
    return f"{window.stream.kind.capitalize()}: {shown} within {ms(window.length_us / 1000)}"


def _spoken(panel: GanttPanel) -> str:
    return ", ".join(f"{row} busy {percent(_share(panel.window, row), 0)}" for row in panel.rows)


def _share(window: StreamWindow, row: str) -> float:
    busy_us = sum(
        slice_.end_us - slice_.start_us
        for slice_ in (*window.slices, *window.others)
        if slice_.row == row
    )
    return busy_us / window.length_us if window.length_us else 0.0


def _axis(x: svg.AxisScale, height: float) -> Markup:
    marks = []
    for at_ms in ticks(x.low / 1000, x.high / 1000, 12):
        at = x(1000 * at_ms)
        marks.append(svg.line(at, 8, at, height - AXIS_PX, class_="grid"))
        marks.append(svg.text(at, height - 14, tick(at_ms), class_="small", anchor="middle"))
    return join((*marks, svg.text(WIDTH_PX - RIGHT_PX + 14, height - 14, "ms", class_="small")))


def _panel(panel: GanttPanel, after: After, x: svg.AxisScale) -> Markup:
    lanes = join(_lane(panel, row, x) for row in panel.rows)
    return join(
        (
            svg.text(0, panel.top + 17, panel.title, class_="strong"),
            lanes,
            _links(panel, after, x),
            _bars(panel, x),
        )
    )


def _lane(panel: GanttPanel, row: str, x: svg.AxisScale) -> Markup:
    top, end = panel.lane_top(row), x(panel.window.length_us)
    idle = svg.rect(
        LEFT_PX,
        top,
        end - LEFT_PX,
        LANE_PX,
        class_="idle",
        tip=f"{row}: idle where nothing is drawn",
    )
    name = svg.text(
        LEFT_PX - 8, top + 18, svg.truncate(row, LEFT_PX - 8, 12), class_="lane-name", anchor="end"
    )
    busy = svg.text(
        end + 8, top + 18, f"{percent(_share(panel.window, row), 0)} busy", class_="small"
    )
    pale = join(_other(other, top, x) for other in panel.window.others if other.row == row)
    return svg.group(idle, name, busy, pale)


def _other(slice_: StreamSlice, top: float, x: svg.AxisScale) -> Markup:
    return svg.rect(
        x(slice_.start_us),
        top,
        x(slice_.end_us) - x(slice_.start_us),
        LANE_PX,
        class_="other",
        tip=f"{slice_.row}, item {slice_.item}, not in this window",
    )


def _bars(panel: GanttPanel, x: svg.AxisScale) -> Markup:
    return join(
        _bar(slice_, panel.window.items.index(slice_.item), panel.lane_top(slice_.row), x)
        for slice_ in panel.window.slices
    )


def _bar(slice_: StreamSlice, number: int, top: float, x: svg.AxisScale) -> Markup:
    left_px, width = x(slice_.start_us), max(x(slice_.end_us) - x(slice_.start_us), 1.6)
    tip = (
        f"{slice_.row}, item {slice_.item}: starts at {ms(slice_.start_us / 1000)}, takes"
        f" {ms((slice_.end_us - slice_.start_us) / 1000)}"
    )
    bar = svg.rect(left_px, top, width, LANE_PX, class_="bar", tip=tip)
    label = str(slice_.item)
    fits = svg.text_width(label, 12) + 4 <= width
    name = (
        svg.text(left_px + width / 2, top + 18, label, class_="on-bar", anchor="middle")
        if fits
        else None
    )
    return svg.group(bar, name, class_=f"item {item_class(number)}", data_item=slice_.item)


def _links(panel: GanttPanel, after: After, x: svg.AxisScale) -> Markup:
    """Draw lines from the end of an item's slice at one stage to its beginning at the next."""
    slices = {(slice_.stage, slice_.item): slice_ for slice_ in panel.window.slices}
    ways = [
        (feeder, stage, item)
        for stage, feeders in after
        for feeder in feeders
        for item in panel.window.items
    ]
    pairs = [
        (slices[feeder, item], slices[stage, item])
        for feeder, stage, item in ways
        if (feeder, item) in slices and (stage, item) in slices
    ]
    return join(_link(panel, slice_, two, x) for slice_, two in pairs)


def _link(panel: GanttPanel, slice_: StreamSlice, two: StreamSlice, x: svg.AxisScale) -> Markup:
    ends = (
        (x(slice_.end_us), panel.lane_top(slice_.row) + LANE_PX),
        (x(two.start_us), panel.lane_top(two.row)),
    )
    return svg.group(
        svg.polyline(ends),
        class_=f"link {item_class(panel.window.items.index(slice_.item))}",
        data_item=slice_.item,
    )


def slice_table(windows: Iterable[StreamWindow]) -> Markup:
    """Return the chart for readers who cannot see it, or want the exact numbers."""
    cells = [
        (
            w.stream.kind,
            str(slice_.item),
            slice_.row,
            plain_ms(slice_.start_us / 1000),
            plain_ms((slice_.end_us - slice_.start_us) / 1000),
        )
        for w in windows
        for slice_ in sorted(w.slices, key=lambda slice_: (slice_.item, slice_.start_us))
    ]
    cut = "" if len(cells) <= MOST_TABLE_ROWS else f", the first {MOST_TABLE_ROWS} of {len(cells)}"
    header = ("run", "item", "worker", "start (ms)", "duration (ms)")
    content = table(
        f"Every slice of the chart{cut}",
        header,
        cells[:MOST_TABLE_ROWS],
        text_columns=frozenset({0, 1, 2}),
    )
    return collapsible("The same as a table", content)


def gantt_of(report_data: PipelineReportData, windows: tuple[StreamWindow, ...]) -> Markup:
    """Return the chart of a stream."""
    return svg.scrolling(stream_gantt(windows, report_data.after), TITLE)
