"""The plan as a picture: one small drawing per segment, side by side, so that it wraps like text.

Blocks in a row are the depth, their height grows with the square root of the width, lanes are
processors, and a dot where lanes join is a meeting point.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from nnstretch.report.charts import svg
from nnstretch.report.charts.palette import colour_class
from nnstretch.report.format_numbers import amount, ms
from nnstretch.report.html import Markup, join, tag
from nnstretch.report.load.data import ReportedBranch, ReportedSegment

LANE_PX = 96.0
HEAD_PX = 40.0
FOOT_PX = 40.0
FORK_PX = 30.0
JOIN_PX = 34.0
EDGE_PX = 9.0
TALLEST_PX = 42.0
SHORTEST_PX = 12.0
WIDEST_ROW_PX = 240.0
MOST_BOXES = 100
"""Boxes of a branch that are drawn, however deep it is."""
BLOCK_PX = 36.0
GAP_PX = 3.0


@dataclass(frozen=True, slots=True)
class SegmentFrame:
    """Where the parts of one segment's drawing lie, px."""

    fork: float
    """Left edge of the boxes."""
    inner: float
    """Width of the boxes' room."""
    width: float
    middle: float
    height: float


def plan_picture(segments: tuple[ReportedSegment, ...]) -> Markup:
    """Return the picture of a plan's segments and branches."""
    lanes = max(len(segment.branches) for segment in segments)
    widest = 0
    for segment in segments:
        widest = max(widest, *(branch.width or 0 for branch in segment.branches))
    drawn = (_segment(segment, i, lanes, widest) for i, segment in enumerate(segments))
    return tag("div", join(drawn), class_="flow")


def _segment(segment: ReportedSegment, number: int, lanes: int, widest: int) -> Markup:
    frame = _frame(segment, lanes)
    wires: list[Markup] = []
    branches: list[Markup] = []
    for i, branch in enumerate(segment.branches):
        y = frame.middle + (i - (len(segment.branches) - 1) / 2) * LANE_PX
        wires.append(_wire(y, frame))
        branches.append(_branch(branch, y, frame, widest))
    meeting = _meeting(segment, frame) if segment.branched else None
    title = f"Segment {number}, {segment.start} to {segment.end}"
    labels = (_head(segment, number, frame.width), meeting or "", _foot(segment, frame))
    drawn = (*wires, *branches, *labels)
    return svg.svg(frame.width, frame.height, title, _spoken(segment), *drawn)


def _frame(segment: ReportedSegment, lanes: int) -> SegmentFrame:
    """Return room for the longest row of boxes and the longest label."""
    fork = FORK_PX if segment.branched else EDGE_PX
    join_px = JOIN_PX if segment.branched else EDGE_PX
    inner = max(76.0, svg.text_width(_was(segment), 11) - fork - join_px + 10)
    for branch in segment.branches:
        words = (svg.text_width(label, 11) for label in _labels(branch))
        inner = max(inner, _row_px(branch), *words)
    middle = HEAD_PX + lanes * LANE_PX / 2
    height = HEAD_PX + lanes * LANE_PX + FOOT_PX
    return SegmentFrame(fork, inner, fork + inner + join_px, middle, height)


def _labels(branch: ReportedBranch) -> tuple[str, ...]:
    latency = ms(branch.latency_ms)
    return (branch.shape, latency) if branch.shape else (latency,)


def _row_px(branch: ReportedBranch) -> float:
    if not branch.depth:
        return 44.0
    return min(branch.depth * (BLOCK_PX + GAP_PX) - GAP_PX, WIDEST_ROW_PX)


def _branch(branch: ReportedBranch, y: float, frame: SegmentFrame, widest: int) -> Markup:
    depth = min(branch.depth or 1, MOST_BOXES)
    row_px = _row_px(branch)
    tall = 16.0
    if branch.width and widest:
        tall = max(SHORTEST_PX, TALLEST_PX * sqrt(branch.width / widest))
    gap = GAP_PX if row_px / depth > 3 * GAP_PX else 0.5
    step = (row_px + gap) / depth
    start = frame.fork + (frame.inner - row_px) / 2
    centre = frame.fork + frame.inner / 2
    top = y - tall / 2
    drawn = [tag("title", f"{branch.processor}: {_details(branch)}")]
    for i in range(depth):
        drawn.append(svg.rect(start + i * step, top, step - gap, tall, radius=3, class_="box"))
    name_y = y - TALLEST_PX / 2 - 6
    drawn.append(svg.text(centre, name_y, branch.processor, class_="lane-name", anchor="middle"))
    for i, label in enumerate(_labels(branch)):
        label_y = y + TALLEST_PX / 2 + 15 + 13 * i
        drawn.append(svg.text(centre, label_y, label, class_="small", anchor="middle"))
    return svg.group(*drawn, class_=colour_class(branch.processor))


def _details(branch: ReportedBranch) -> str:
    shape = f"depth {branch.depth or 'as the original'}, width {branch.width or 'as the original'}"
    error = "" if branch.error_ms is None else f" ± {ms(branch.error_ms)}"
    return f"{shape}, {amount(branch.macs)} MACs, {ms(branch.latency_ms)}{error} predicted"


def _wire(y: float, frame: SegmentFrame) -> Markup:
    """Draw the line from the last meeting point through a branch's boxes to the next one."""
    fork = frame.fork
    width = frame.width
    middle = frame.middle
    if y == middle:
        return svg.line(0, middle, width, middle, class_="wire")
    right = fork + frame.inner
    bend_in = fork / 2
    bend_out = right + (width - right) * 0.35
    into = f"C{bend_in:.1f},{middle:.1f} {bend_in:.1f},{y:.1f} {fork:.1f},{y:.1f} H{right:.1f}"
    out = f"C{bend_out:.1f},{y:.1f} {bend_out:.1f},{middle:.1f} {width:.1f},{middle:.1f}"
    return svg.path(f"M0,{middle:.1f} {into} {out}", class_="wire", fill="none")


def _meeting(segment: ReportedSegment, frame: SegmentFrame) -> Markup:
    costs = f"{ms(segment.sync_ms)} synchronise, {ms(segment.merge_ms)} merge"
    tip = f"meeting point {segment.end}, {segment.merge or 'merge'}: {costs}"
    return svg.circle(frame.width - 7, frame.middle, 6, tip, class_="meet")


def _head(segment: ReportedSegment, number: int, width: float) -> Markup:
    kind = f"s{number} · {segment.merge or 'meets'}" if segment.branched else f"s{number}"
    end = svg.truncate(segment.end, width - 6, 12)
    name = svg.text(width / 2, 15, end, class_="strong", anchor="middle")
    return join((name, svg.text(width / 2, 29, kind, class_="faint", anchor="middle")))


def _foot(segment: ReportedSegment, frame: SegmentFrame) -> Markup:
    centre = frame.width / 2
    latency = ms(segment.latency_ms)
    whole = svg.text(centre, frame.height - 18, latency, class_="strong", anchor="middle")
    was = svg.text(centre, frame.height - 4, _was(segment), class_="faint", anchor="middle")
    return join((whole, was))


def _was(segment: ReportedSegment) -> str:
    return "" if segment.original_ms is None else f"was {ms(segment.original_ms)}"


def _spoken(segment: ReportedSegment) -> str:
    branches = "; ".join(f"{branch.processor}, {_details(branch)}" for branch in segment.branches)
    return f"{branches}. Segment {ms(segment.latency_ms)}, original {ms(segment.original_ms)}"
