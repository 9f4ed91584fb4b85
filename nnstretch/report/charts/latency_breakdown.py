"""Where the milliseconds of each segment go: copies, compute, wait, synchronise, merge."""

from __future__ import annotations

from nnstretch.report.charts import svg
from nnstretch.report.charts.palette import colour_class
from nnstretch.report.format_numbers import UNKNOWN, amount, ms, plain_ms, signed_percent
from nnstretch.report.html import Markup, collapsible, join, table
from nnstretch.report.load.data import ReportedBranch, ReportedSegment

WIDTH_PX = 1120.0
LEFT_PX = 196.0
RIGHT_PX = 150.0
ROW_PX = 19.0
BAR_PX = 15.0
BETWEEN_PX = 14.0
AXIS_PX = 28.0
TERMS = (
    ("term-in", "transfer in"),
    ("term-compute", "compute (colour of its processor)"),
    ("term-out", "transfer out"),
    ("term-wait", "wait for the slowest branch"),
    ("term-sync", "synchronise"),
    ("term-merge", "merge"),
    ("term-original", "the original layers"),
)
COPY_PATTERNS = {"term-in": "copy-in", "term-out": "copy-out"}
Segments = tuple[ReportedSegment, ...]


def terms_of(
    segment: ReportedSegment, branch: ReportedBranch
) -> tuple[tuple[str, str, float], ...]:
    """Return (class, name, ms) in order of time; they add up to the segment for every branch."""
    terms_ms = (
        branch.transfer_in_ms,
        branch.compute_ms,
        branch.transfer_out_ms,
        segment.wait_ms(branch),
        segment.sync_ms,
        segment.merge_ms,
    )
    pairs = zip(TERMS[:6], terms_ms, strict=True)
    return tuple((look, name.split(" (")[0], term_ms) for (look, name), term_ms in pairs)


def term_bars(segments: Segments, fastest: str | None) -> Markup:
    """Return bars of each segment's latency by term."""
    longest_ms = max(_longest_ms(segment) for segment in segments)
    x = svg.AxisScale(0, longest_ms or 1.0, LEFT_PX, WIDTH_PX - RIGHT_PX)
    drawn: list[Markup] = []
    spoken: list[str] = []
    top = 6.0
    for number, segment in enumerate(segments):
        drawn.append(_segment(segment, number, top, x, fastest))
        spoken.append(f"{segment.end} {ms(segment.latency_ms)}, original {ms(segment.original_ms)}")
        rows = len(segment.branches) + (segment.original_ms is not None)
        top += ROW_PX * rows + BETWEEN_PX
    height = top + AXIS_PX - BETWEEN_PX / 2
    bottom = height - AXIS_PX
    axis = svg.time_axis(x, most=8, top=0, bottom=bottom, baseline=height - 12)
    title = "Predicted latency of each segment by term"
    return svg.svg(WIDTH_PX, height, title, "; ".join(spoken), axis, *drawn, class_="terms")


def _longest_ms(segment: ReportedSegment) -> float:
    terms_ms = segment.slowest_ms + segment.sync_ms + segment.merge_ms
    return max(segment.latency_ms, segment.original_ms or 0.0, terms_ms)


def _segment(
    segment: ReportedSegment, number: int, top: float, x: svg.AxisScale, fastest: str | None
) -> Markup:
    name = f"s{number} {svg.truncate(segment.end, 100, 12)}"
    drawn = [svg.text(0, top + 12, name, class_="strong")]
    y = top
    for branch in segment.branches:
        drawn.append(_branch_row(segment, branch, y, x))
        y += ROW_PX
    right_px = x(segment.latency_ms) + 8
    drawn.append(svg.text(right_px, top + 12, _total(segment), class_="small strong"))
    if segment.original_ms is not None:
        drawn.append(_original_row(segment.original_ms, y, x, fastest))
    return join(drawn)


def _total(segment: ReportedSegment) -> str:
    if not segment.original_ms:
        return ms(segment.latency_ms)
    change = segment.latency_ms / segment.original_ms - 1
    same = abs(change) < 0.0005
    return ms(segment.latency_ms) + ("" if same else f" ({signed_percent(change)})")


def _branch_row(
    segment: ReportedSegment, branch: ReportedBranch, y: float, x: svg.AxisScale
) -> Markup:
    drawn = [svg.text(LEFT_PX - 8, y + 12, branch.processor, class_="lane-name", anchor="end")]
    at_ms = 0.0
    for look, term, term_ms in terms_of(segment, branch):
        if term_ms > 0:
            left_px = x(at_ms)
            width = x(at_ms + term_ms) - left_px
            tip = f"{segment.end}, {branch.processor}: {term} {ms(term_ms)}"
            drawn.append(svg.rect(left_px, y, width, BAR_PX, radius=1, class_=look, tip=tip))
            if look in COPY_PATTERNS:  # stripes tell copies from compute without a second colour
                fill = f"url(#{COPY_PATTERNS[look]})"
                shape = (left_px, y, width, BAR_PX)
                drawn.append(svg.rect(*shape, radius=1, fill=fill, pointer_events="none"))
        at_ms += term_ms
    return svg.group(*drawn, class_=colour_class(branch.processor))


def _original_row(original_ms: float, y: float, x: svg.AxisScale, fastest: str | None) -> Markup:
    where = f" on {fastest}" if fastest else ""
    tip = f"original{where}: {ms(original_ms)}"
    end_px = x(original_ms)
    shape = (LEFT_PX, y, end_px - LEFT_PX, BAR_PX)
    name = svg.text(LEFT_PX - 8, y + 12, "original", class_="small", anchor="end")
    bar = svg.rect(*shape, radius=1, class_="term-original", tip=tip)
    return join((name, bar, svg.text(end_px + 8, y + 12, ms(original_ms), class_="small")))


def term_total(segments: Segments) -> str:
    """Return one sentence for the whole plan, along the slowest branch of every segment."""
    slowest = [max(segment.branches, key=lambda b: b.latency_ms) for segment in segments]
    terms_ms = {
        "compute": sum(branch.compute_ms for branch in slowest),
        "copies": sum(branch.transfer_in_ms + branch.transfer_out_ms for branch in slowest),
        "synchronisation": sum(segment.sync_ms for segment in segments),
        "merges": sum(segment.merge_ms for segment in segments),
    }
    listed = ", ".join(f"{ms(term_ms)} {name}" for name, term_ms in terms_ms.items())
    return f"Along the slowest branch of every segment: {listed}."


def term_table(segments: Segments, fastest: str | None) -> Markup:
    """Return the same terms as a table."""
    terms = ("in", "compute", "out", "wait", "sync", "merge")
    ends = ("segment", "branch ±", "original")
    header = ("segment", "branch", "depth × width", "MACs", *terms, *ends)
    rows: list[tuple[str, ...]] = []
    for number, segment in enumerate(segments):
        rows.extend(_table_row(segment, branch, number) for branch in segment.branches)
    where = f", original on {fastest}" if fastest else ""
    caption = f"Predicted milliseconds by segment and branch{where}"
    content = table(caption, header, rows, text_columns=frozenset({0, 1, 2}))
    return collapsible("The same as a table", content)


def _table_row(segment: ReportedSegment, branch: ReportedBranch, number: int) -> tuple[str, ...]:
    return (
        f"s{number} {segment.end}",
        branch.processor,
        branch.shape or UNKNOWN,
        amount(branch.macs),
        *(plain_ms(term_ms) for _, _, term_ms in terms_of(segment, branch)),
        plain_ms(segment.latency_ms),
        plain_ms(branch.error_ms),
        plain_ms(segment.original_ms),
    )
