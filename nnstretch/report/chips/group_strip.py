"""Groups along the network, each with its parts, above the order in which parts run."""

from __future__ import annotations

from nnstretch.report.charts import svg
from nnstretch.report.charts.palette import item_class
from nnstretch.report.chips.chip_view import ChipGroup, ChipKernel, ChipView
from nnstretch.report.format_numbers import amount, count, ms
from nnstretch.report.html import Markup, join

WIDTH_PX = 1120.0
RIGHT_PX = 60.0
PART_PX = 9.0
MOST_PARTS = 16
TOP_PX = 30.0
KERNEL_PX = 26.0


def group_strip(view: ChipView) -> Markup:
    """Draw groups along the operators of a network, and its kernels along time."""
    operators = sum(group.operators for group in view.groups)
    along = svg.AxisScale(0, operators, 0, WIDTH_PX - RIGHT_PX)
    base_px = TOP_PX + min(max(g.parts for g in view.groups), MOST_PARTS) * PART_PX
    title = f"Groups along {operators} operators: {len(view.groups)}, a stripe for each part"
    drawn = [svg.text(0, 16, title, class_="strong")]
    start = 0
    for number, group in enumerate(view.groups):
        drawn.append(_group(group, number, (along(start), along(start + group.operators)), base_px))
        start += group.operators
    top_px = base_px + 62
    words = f"Parts in the order in which they run: {len(view.kernels)}"
    drawn.append(svg.text(0, top_px - 10, words, class_="strong"))
    x = svg.AxisScale(0, view.latency_us or 1.0, 0, WIDTH_PX - RIGHT_PX)
    bottom_px = top_px + KERNEL_PX + 4
    drawn.append(
        svg.time_axis(
            x, per_unit=1000, most=12, top=top_px, bottom=bottom_px, baseline=bottom_px + 14
        )
    )
    drawn.extend(_kernel(kernel, x, top_px) for kernel in view.kernels)
    spoken = ", ".join(f"{group.name} in {group.parts}" for group in view.groups[:20])
    height = bottom_px + 24
    return svg.svg(WIDTH_PX, height, title, spoken, *drawn, class_="gantt")


def _group(group: ChipGroup, number: int, sides_px: tuple[float, float], base_px: float) -> Markup:
    left_px, right_px = sides_px
    shown = min(group.parts, MOST_PARTS)
    tip = (
        f"{group.name}: {group.first} to {group.last}, operators: {count(group.operators)},"
        f" parts: {count(group.parts)}, peak {amount(group.peak_bytes)}B"
    )
    stripes: list[Markup] = []
    for part in range(shown):
        top_px = base_px - (part + 1) * PART_PX
        width_px = max(right_px - left_px - 1.5, 1.0)
        stripes.append(svg.rect(left_px, top_px, width_px, PART_PX - 1.5, class_="box", tip=tip))
    labels: list[Markup] = []
    for line, words in enumerate((f"{group.name} × {group.parts}", group.first)):
        if svg.text_width(words) < right_px - left_px:
            labels.append(svg.text(left_px, base_px + 14 + 14 * line, words, class_="small"))
    return svg.group(*stripes, *labels, class_=item_class(number))


def _kernel(kernel: ChipKernel, x: svg.AxisScale, top_px: float) -> Markup:
    left_px = x(kernel.start_us)
    width_px = max(x(kernel.end_us) - left_px, 1.0)
    tip = f"{kernel.name}: {ms((kernel.end_us - kernel.start_us) / 1000)}"
    drawn = [svg.rect(left_px, top_px, width_px, KERNEL_PX, class_="bar", tip=tip)]
    if svg.text_width(kernel.name) < width_px - 4:
        middle_px = left_px + width_px / 2
        words = svg.text(middle_px, top_px + 17, kernel.name, class_="on-bar", anchor="middle")
        drawn.append(words)
    return svg.group(join(drawn), class_=item_class(kernel.group))
