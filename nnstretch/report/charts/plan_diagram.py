"""The plan as a picture.

One small drawing per segment, side by side, so that the flow wraps like text.

Blocks in a row are the depth, their height grows with the square root of the width, lanes are
processors, and a dot where lanes join is a meeting point.
"""

from __future__ import annotations

from math import sqrt

from nnstretch.report.charts import svg
from nnstretch.report.charts.palette import colour_class
from nnstretch.report.format_numbers import amount, ms
from nnstretch.report.html import Markup, join, tag
from nnstretch.report.load.data import ReportedBranch, ReportedSegment

LANE_PX, HEAD_PX, FOOT_PX = 96.0, 40.0, 40.0
FORK_PX, JOIN_PX, EDGE_PX = 30.0, 34.0, 9.0
TALLEST_PX, SHORTEST_PX = 42.0, 12.0
WIDEST_ROW_PX, BLOCK_PX, GAP_PX = 240.0, 36.0, 3.0


def plan_picture(segments: tuple[ReportedSegment, ...]) -> Markup:
    """Return the picture of a plan's segments and branches."""
    lanes = max(len(segment.branches) for segment in segments)
    widest = max((b.width or 0 for s in segments for b in s.branches), default=0)
    height = HEAD_PX + lanes * LANE_PX + FOOT_PX
    return tag(
        "div", join(_segment(s, i, height, widest) for i, s in enumerate(segments)), class_="flow"
    )


def _segment(segment: ReportedSegment, number: int, height: float, widest: int) -> Markup:
    blocks = max(_row_px(branch) for branch in segment.branches)
    words = max(
        svg.text_width(label, 11) for branch in segment.branches for label in _labels(branch)
    )
    fork, join_px = (FORK_PX, JOIN_PX) if segment.branched else (EDGE_PX, EDGE_PX)
    inner = max(blocks, words, svg.text_width(_was(segment), 11) - fork - join_px + 10, 76.0)
    width = fork + inner + join_px
    middle = HEAD_PX + (height - HEAD_PX - FOOT_PX) / 2
    tops = [
        middle + (i - (len(segment.branches) - 1) / 2) * LANE_PX
        for i in range(len(segment.branches))
    ]
    drawn = join(
        _branch(branch, y, fork, inner, widest)
        for branch, y in zip(segment.branches, tops, strict=True)
    )
    return svg.svg(
        width,
        height,
        f"Segment {number}, {segment.start} to {segment.end}",
        _spoken(segment),
        join(_wires(y, middle, fork, inner, width) for y in tops),
        drawn,
        _head(segment, number, width),
        _meeting(segment, width, middle) if segment.branched else "",
        _foot(segment, width, height),
    )


def _labels(branch: ReportedBranch) -> tuple[str, ...]:
    return tuple(label for label in (branch.shape, ms(branch.latency_ms)) if label)


def _row_px(branch: ReportedBranch) -> float:
    depth = branch.depth or 1
    return min(depth * (BLOCK_PX + GAP_PX) - GAP_PX, WIDEST_ROW_PX) if branch.depth else 44.0


def _branch(branch: ReportedBranch, y: float, left_px: float, inner: float, widest: int) -> Markup:
    depth, row = branch.depth or 1, _row_px(branch)
    tall = (
        max(SHORTEST_PX, TALLEST_PX * sqrt(branch.width / widest))
        if branch.width and widest
        else 16.0
    )
    gap = GAP_PX if row / depth > 3 * GAP_PX else 0.5
    step = (row + gap) / depth
    start, centre = left_px + (inner - row) / 2, left_px + inner / 2
    boxes = (
        svg.rect(start + i * step, y - tall / 2, step - gap, tall, radius=3, class_="box")
        for i in range(depth)
    )
    name = svg.text(
        centre, y - TALLEST_PX / 2 - 6, branch.processor, class_="lane-name", anchor="middle"
    )
    below = (
        svg.text(centre, y + TALLEST_PX / 2 + 15 + 13 * i, label, class_="small", anchor="middle")
        for i, label in enumerate(_labels(branch))
    )
    tip = tag("title", f"{branch.processor}: {_details(branch)}")
    return svg.group(tip, join(boxes), name, join(below), class_=colour_class(branch.processor))


def _details(branch: ReportedBranch) -> str:
    shape = f"depth {branch.depth or 'as the original'}, width {branch.width or 'as the original'}"
    error = "" if branch.error_ms is None else f" ± {ms(branch.error_ms)}"
    return f"{shape}, {amount(branch.macs)} MACs, {ms(branch.latency_ms)}{error} predicted"


def _wires(y: float, middle: float, fork: float, inner: float, width: float) -> Markup:
    """Draw wires from the last meeting point through a branch's boxes to the next one."""
    right = fork + inner
    if y == middle:
        return svg.line(0, middle, width, middle, class_="wire")
    bend_in, bend_out = fork / 2, right + (width - right) * 0.35
    into = (
        f"M0,{middle:.1f} C{bend_in:.1f},{middle:.1f} {bend_in:.1f},{y:.1f} {fork:.1f},{y:.1f}"
        f" H{right:.1f}"
    )
    out = f"C{bend_out:.1f},{y:.1f} {bend_out:.1f},{middle:.1f} {width:.1f},{middle:.1f}"
    return svg.path(f"{into} {out}", class_="wire", fill="none")


def _meeting(segment: ReportedSegment, width: float, middle: float) -> Markup:
    tip = (
        f"meeting point {segment.end}, {segment.merge or 'merge'}: {ms(segment.sync_ms)}"
        f" synchronise, {ms(segment.merge_ms)} merge"
    )
    return svg.circle(width - 7, middle, 6, tip, class_="meet")


def _head(segment: ReportedSegment, number: int, width: float) -> Markup:
    name = svg.truncate(segment.end, width - 6, 12)
    kind = f"s{number} · {segment.merge or 'meets'}" if segment.branched else f"s{number}"
    centre = width / 2
    return join(
        (
            svg.text(centre, 15, name, class_="strong", anchor="middle"),
            svg.text(centre, 29, kind, class_="faint", anchor="middle"),
        )
    )


def _foot(segment: ReportedSegment, width: float, height: float) -> Markup:
    whole = svg.text(
        width / 2, height - 18, ms(segment.latency_ms), class_="strong", anchor="middle"
    )
    return join(
        (whole, svg.text(width / 2, height - 4, _was(segment), class_="faint", anchor="middle"))
    )


def _was(segment: ReportedSegment) -> str:
    return "" if segment.original_ms is None else f"was {ms(segment.original_ms)}"


def _spoken(segment: ReportedSegment) -> str:
    branches = "; ".join(f"{branch.processor}, {_details(branch)}" for branch in segment.branches)
    return f"{branches}. Segment {ms(segment.latency_ms)}, original {ms(segment.original_ms)}"
