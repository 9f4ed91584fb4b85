"""Where the milliseconds of each segment go.

Transfer in, compute, transfer out, wait, synchronise, merge.
"""

from __future__ import annotations

from nnstretch.report.charts import svg
from nnstretch.report.charts.palette import colour_class
from nnstretch.report.format_numbers import (
    UNKNOWN,
    amount,
    ms,
    plain_ms,
    signed_percent,
    tick,
    ticks,
)
from nnstretch.report.html import Markup, collapsible, join, table
from nnstretch.report.load.data import ReportedBranch, ReportedSegment

WIDTH_PX, LEFT_PX, RIGHT_PX = 1120.0, 196.0, 150.0
ROW_PX, BAR_PX, BETWEEN_PX, AXIS_PX = 19.0, 15.0, 14.0, 28.0
TERMS = (
    ("term-in", "transfer in"),
    ("term-compute", "compute (colour of its processor)"),
    ("term-out", "transfer out"),
    ("term-wait", "wait for the slowest branch"),
    ("term-sync", "synchronise"),
    ("term-merge", "merge"),
    ("term-original", "the original layers"),
)


def terms_of(
    segment: ReportedSegment, branch: ReportedBranch
) -> tuple[tuple[str, str, float], ...]:
    """Return (class, name, ms) in order of time; they add up to the segment for every branch."""
    lengths = (
        branch.transfer_in_ms,
        branch.compute_ms,
        branch.transfer_out_ms,
        segment.wait_ms(branch),
        segment.sync_ms,
        segment.merge_ms,
    )
    return tuple(
        (look, name.split(" (")[0], length)
        for (look, name), length in zip(TERMS[:6], lengths, strict=True)
    )


def term_bars(segments: tuple[ReportedSegment, ...], fastest: str | None) -> Markup:
    """Return bars of each segment's latency by term."""
    longest_ms = max(
        max(s.latency_ms, s.original_ms or 0.0, s.slowest_ms + s.sync_ms + s.merge_ms)
        for s in segments
    )
    x = svg.AxisScale(0, longest_ms or 1.0, LEFT_PX, WIDTH_PX - RIGHT_PX)
    tops, top = [], 6.0
    for segment in segments:
        tops.append(top)
        top += ROW_PX * (len(segment.branches) + (segment.original_ms is not None)) + BETWEEN_PX
    height = top + AXIS_PX - BETWEEN_PX / 2
    spoken = "; ".join(
        f"{s.end} {ms(s.latency_ms)}, original {ms(s.original_ms)}" for s in segments
    )
    return svg.svg(
        WIDTH_PX,
        height,
        "Predicted latency of each segment by term",
        spoken,
        _axis(x, height),
        join(
            _segment(s, at, x, fastest, i)
            for i, (s, at) in enumerate(zip(segments, tops, strict=True))
        ),
        class_="terms",
    )


def _axis(x: svg.AxisScale, height: float) -> Markup:
    marks = []
    for tick_ms in ticks(x.low, x.high, 8):
        marks.append(svg.line(x(tick_ms), 0, x(tick_ms), height - AXIS_PX, class_="grid"))
        marks.append(
            svg.text(x(tick_ms), height - 12, tick(tick_ms), class_="small", anchor="middle")
        )
    return join((*marks, svg.text(x.end_px + 14, height - 12, "ms", class_="small")))


def _segment(
    segment: ReportedSegment, top: float, x: svg.AxisScale, fastest: str | None, number: int
) -> Markup:
    name = svg.text(0, top + 12, f"s{number} {svg.truncate(segment.end, 100, 12)}", class_="strong")
    rows, y = [name], top
    for branch in segment.branches:
        rows.append(_branch_row(segment, branch, y, x))
        y += ROW_PX
    rows.append(
        svg.text(x(segment.latency_ms) + 8, top + 12, _total(segment), class_="small strong")
    )
    if segment.original_ms is not None:
        rows.append(_original_row(segment.original_ms, y, x, fastest))
    return join(rows)


def _total(segment: ReportedSegment) -> str:
    if not segment.original_ms or abs(segment.latency_ms / segment.original_ms - 1) < 0.0005:
        return ms(segment.latency_ms)
    return (
        f"{ms(segment.latency_ms)} ({signed_percent(segment.latency_ms / segment.original_ms - 1)})"
    )


def _branch_row(
    segment: ReportedSegment, branch: ReportedBranch, y: float, x: svg.AxisScale
) -> Markup:
    parts: list[Markup | None] = [
        svg.text(LEFT_PX - 8, y + 12, branch.processor, class_="lane-name", anchor="end")
    ]
    at_ms = 0.0
    for look, term, length_ms in terms_of(segment, branch):
        if length_ms > 0:
            left_px, right = x(at_ms), x(at_ms + length_ms)
            tip = f"{segment.end}, {branch.processor}: {term} {ms(length_ms)}"
            parts.append(
                svg.rect(left_px, y, right - left_px, BAR_PX, radius=1, class_=look, tip=tip)
            )
            parts.append(_texture(look, left_px, y, right - left_px))
        at_ms += length_ms
    return svg.group(*parts, class_=colour_class(branch.processor))


def _texture(look: str, left_px: float, y: float, width: float) -> Markup | None:
    """Return stripes over the processor's color, which tell copies from compute without a second
    color.
    """
    pattern = {"term-in": "copy-in", "term-out": "copy-out"}.get(look)
    if pattern is None:
        return None
    return svg.rect(
        left_px, y, width, BAR_PX, radius=1, fill=f"url(#{pattern})", pointer_events="none"
    )


def _original_row(original_ms: float, y: float, x: svg.AxisScale, fastest: str | None) -> Markup:
    where = f" on {fastest}" if fastest else ""
    name = svg.text(LEFT_PX - 8, y + 12, "original", class_="small", anchor="end")
    tip = f"original{where}: {ms(original_ms)}"
    bar = svg.rect(
        LEFT_PX, y, x(original_ms) - LEFT_PX, BAR_PX, radius=1, class_="term-original", tip=tip
    )
    return join((name, bar, svg.text(x(original_ms) + 8, y + 12, ms(original_ms), class_="small")))


def term_total(segments: tuple[ReportedSegment, ...]) -> str:
    """Return one sentence for the whole plan, along the slowest branch of every segment."""
    slowest = [max(segment.branches, key=lambda branch: branch.latency_ms) for segment in segments]
    parts = {
        "compute": sum(branch.compute_ms for branch in slowest),
        "copies": sum(branch.transfer_in_ms + branch.transfer_out_ms for branch in slowest),
        "synchronisation": sum(segment.sync_ms for segment in segments),
        "merges": sum(segment.merge_ms for segment in segments),
    }
    listed = ", ".join(f"{ms(length)} {name}" for name, length in parts.items())
    return f"Along the slowest branch of every segment: {listed}."


def term_table(segments: tuple[ReportedSegment, ...], fastest: str | None) -> Markup:
    """Return the same terms as a table."""
    terms = ("in", "compute", "out", "wait", "sync", "merge")
    header = (
        "segment",
        "branch",
        "depth × width",
        "MACs",
        *terms,
        "segment",
        "branch ±",
        "original",
    )
    rows = [_table_row(s, b, i) for i, s in enumerate(segments) for b in s.branches]
    where = f", original on {fastest}" if fastest else ""
    caption = f"Predicted milliseconds by segment and branch{where}"
    return collapsible(
        "The same as a table", table(caption, header, rows, text_columns=frozenset({0, 1, 2}))
    )


def _table_row(segment: ReportedSegment, branch: ReportedBranch, number: int) -> tuple[str, ...]:
    numbers = (plain_ms(length) for _, _, length in terms_of(segment, branch))
    shape = branch.shape or UNKNOWN
    ends = (plain_ms(segment.latency_ms), plain_ms(branch.error_ms), plain_ms(segment.original_ms))
    return (
        f"s{number} {segment.end}",
        branch.processor,
        shape,
        amount(branch.macs),
        *numbers,
        *ends,
    )
