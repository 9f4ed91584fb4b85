"""The page of one schedule inside an accelerator."""

from __future__ import annotations

import re
from math import inf

from nnstretch.report.chapters.elements import chapter, definition_list, fact_list, quiet
from nnstretch.report.charts import svg
from nnstretch.report.charts.line_chart import ChartAxis, ChartLine, line_chart
from nnstretch.report.chips.chip_view import ChipGroup, ChipSweep, ChipView
from nnstretch.report.chips.engine_gantt import engine_gantt
from nnstretch.report.chips.group_strip import group_strip
from nnstretch.report.chips.memory_map import memory_map
from nnstretch.report.format_numbers import amount, count, digits, ms, percent
from nnstretch.report.html import Markup, join, table
from nnstretch.report.page_shell import page_header, page_of_chapters

NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![0-9.])")
"""At the begin of a value with a unit: 1.5e3 of 1.5e3elements."""
MOST_POINTS = 14
"""Groups in the roofline: those that take longest."""
HEADS = ("group", "first", "last", "operators", "parts", "peak (MB)", "DDR (MB)", "time (ms)")


def chip_page(view: ChipView) -> str:
    """Return the whole page."""
    chapters = [
        ("groups", "Groups and parts", groups_chapter(view)),
        ("memory", "Memory", memory_chapter(view)),
        ("engines", "Engines", engines_chapter(view)),
        ("roofline", "Roofline", roofline_chapter(view)),
    ]
    if view.sweep is not None:
        chapters.append(("sweep", "Sweep", sweep_chapter(view.sweep)))
    chapters.append(("provenance", "Provenance", provenance_chapter(view)))
    chip = view.chip
    header = page_header(f"{chip.model} · {chip.accelerator} · {chip.policy}", "Inside one chip")
    return page_of_chapters(f"{chip.model} on {chip.accelerator}", header, chapters)


def groups_chapter(view: ChipView) -> Markup:
    """Return the groups along the network and their parts in order."""
    chip = view.chip
    reached = chip.throughput_per_s / chip.bound_per_s if chip.bound_per_s else 0.0
    rate = digits(chip.throughput_per_s)
    bound = f"{percent(reached, 0)} of what no schedule beats ({chip.bound_by})"
    says = f"{rate} inputs a second, {bound}. Modelled, not measured."
    rows = list(map(group_row, view.groups))
    drawing = svg.scrolling(group_strip(view), "Groups and parts")
    listed = table("Groups, all parts together", HEADS, rows, text_columns=frozenset({0, 1, 2}))
    return chapter("groups", "Groups and parts", says, drawing, listed)


def group_row(group: ChipGroup) -> tuple[str, ...]:
    """Return a group as a row of the table under HEADS."""
    return (
        group.name,
        group.first,
        group.last,
        count(group.operators),
        count(group.parts),
        f"{group.peak_bytes / 1e6:,.2f}",
        f"{group.ddr_bytes / 1e6:,.2f}",
        f"{group.taken_us / 1000:,.3f}",
    )


def memory_chapter(view: ChipView) -> Markup:
    """Return what lies in each buffer when."""
    says = (
        "Each box is a tensor from its first write to its last read, at its address; the names are"
        " those of the part that writes it. Pale boxes are slots of tile loops."
    )
    maps = [
        svg.scrolling(memory_map(buffer, view.latency_us), f"Memory of {buffer.name}")
        for buffer in view.buffers
    ]
    return chapter("memory", "Memory", says, join(maps))


def engines_chapter(view: ChipView) -> Markup:
    """Return the Gantt chart of engines."""
    says = "A bar is an engine's work for one layer of one part; colours tell groups apart."
    return chapter("engines", "Engines", says, svg.scrolling(engine_gantt(view), "Gantt chart"))


def roofline_chapter(view: ChipView) -> Markup:
    """Return rate over MACs per DDR byte, with one point a group."""
    says = (
        "The rate that matrix unit and DDR allow at so many multiply-accumulates a DDR byte, and"
        " where each group is."
    )
    placed: dict[str, tuple[float, float]] = {}
    for group in sorted(view.groups, key=lambda group: -group.taken_us):
        if (point := _intensity(group)) is not None:
            placed[group.name] = point
    ridge = view.peak_macs_per_us / view.ddr_bytes_per_us
    across = [ridge, *(point[0] for point in placed.values())]
    low, high = min(across) / 2, max(across) * 2
    roof = tuple(
        (x, min(view.peak_macs_per_us, x * view.ddr_bytes_per_us) / 1000)
        for x in (low, ridge, high)
    )
    lines = [ChartLine("roof", roof)]
    lines += [ChartLine(name, (point,)) for name, point in list(placed.items())[:MOST_POINTS]]
    drawing = line_chart(
        "Roofline of one cluster",
        ChartAxis("multiply-accumulates a DDR byte", logarithmic=True),
        ChartAxis("GMAC/s", logarithmic=True),
        lines,
    )
    absent = len(view.groups) - min(len(placed), MOST_POINTS)
    note = quiet(f"{absent} groups are not shown.") if absent else None
    return chapter("roofline", "Roofline", says, svg.scrolling(drawing, "Roofline"), note)


def _intensity(group: ChipGroup) -> tuple[float, float] | None:
    if not (group.macs and group.ddr_bytes and group.taken_us):
        return None
    point = group.macs / group.ddr_bytes, group.macs / group.taken_us / 1000
    return point if max(point) < inf else None


def sweep_chapter(sweep: ChipSweep) -> Markup:
    """Return the rate against a field of the machine, the knee marked."""
    says = f"Inputs a second against {sweep.field}; the knee is the first value near the best rate."
    points = [
        (_number(row.value), row.throughput_per_s)
        for row in sweep.rows
        if row.throughput_per_s is not None
    ]
    if len(points) < 2:
        return chapter("sweep", "Sweep", says, quiet("Fewer than two values fit."))
    lines = [ChartLine("inputs/s", tuple(points))]
    knee = [point for point in points if sweep.knee and point[0] == _number(sweep.knee)]
    if knee:
        lines.append(ChartLine(f"knee: {sweep.knee}", tuple(knee)))
    first = sweep.rows[0].value
    number = NUMBER.match(first)
    unit = first[number.end() :] if number else ""
    across = ChartAxis(f"{sweep.field}, {unit}" if unit else sweep.field, logarithmic=True)
    drawing = line_chart(f"Throughput against {sweep.field}", across, ChartAxis("inputs/s"), lines)
    return chapter("sweep", "Sweep", says, svg.scrolling(drawing, "Sweep"))


def _number(value: str) -> float:
    """Return the number at the begin of a value with a unit; 0.0 for one that cannot be drawn."""
    digits = NUMBER.match(value)
    number = float(digits[0]) if digits else 0.0
    return number if 1e-18 <= number <= 1e18 else 0.0


def provenance_chapter(view: ChipView) -> Markup:
    """Return what was scheduled, and which values of the machine are assumed."""
    chip = view.chip
    facts = [
        ("batch", count(chip.batch)),
        ("a cluster", f"{count(chip.per_cluster)} × {count(chip.iterations)}"),
        ("one pass", ms(view.latency_us / 1000)),
        ("overlap", chip.overlap),
        ("matrix peak", f"{amount(view.peak_macs_per_us * 1e6)}MAC/s"),
    ]
    says = "Every number follows from the description of the machine; none was measured."
    assumed = ", ".join(chip.assumed) or "none"
    terms = definition_list([("assumed values", assumed)])
    return chapter("provenance", "Provenance", says, fact_list(facts), terms)
