"""What lies where in a buffer, from when to when: tensors as boxes over time and addresses."""

from __future__ import annotations

from nnstretch.report.charts import svg
from nnstretch.report.charts.palette import item_class
from nnstretch.report.chips.chip_view import ChipBuffer, TensorSpan
from nnstretch.report.format_numbers import amount, ms, ticks
from nnstretch.report.html import Markup, join

WIDTH_PX = 1120.0
LEFT_PX = 72.0
RIGHT_PX = 60.0
TOP_PX = 28.0
HEIGHT_PX = 260.0
MIB = float(1 << 20)
KIB = 1024.0


def memory_map(buffer: ChipBuffer, latency_us: float) -> Markup:
    """Draw the tensors of a buffer by address over time; slots of tile loops are pale."""
    x = svg.AxisScale(0, latency_us or 1.0, LEFT_PX, WIDTH_PX - RIGHT_PX)
    y = svg.AxisScale(0, buffer.size_bytes, HEIGHT_PX, TOP_PX)
    unit, name = (MIB, "MiB") if buffer.size_bytes >= MIB else (KIB, "KiB")
    most = most_bytes(buffer)
    title = f"{buffer.name}: at most {amount(most)}B of {amount(buffer.size_bytes)}B"
    drawn = [svg.text(0, 16, title, class_="strong")]
    for value in ticks(0, buffer.size_bytes / unit, 5):
        at_px = y(value * unit)
        drawn.append(svg.line(LEFT_PX, at_px, WIDTH_PX - RIGHT_PX, at_px, class_="grid"))
        words = f"{value:g} {name}"
        drawn.append(svg.text(LEFT_PX - 6, at_px + 4, words, class_="small", anchor="end"))
    drawn.append(
        svg.time_axis(
            x, per_unit=1000, most=12, top=TOP_PX, bottom=HEIGHT_PX, baseline=HEIGHT_PX + 16
        )
    )
    tensors = [t for t in buffer.tensors if not t.name.endswith(" slot")]
    slots = [t for t in buffer.tensors if t.name.endswith(" slot")]
    drawn.append(svg.group(*(_box(slot, x, y) for slot in slots), class_="ghost i-5"))
    for number, tensor in enumerate(tensors):
        drawn.append(svg.group(_box(tensor, x, y), class_=item_class(number)))
    spoken = f"{len(tensors)} tensors and {len(slots)} slots of tile loops"
    return svg.svg(WIDTH_PX, HEIGHT_PX + 26, title, spoken, *drawn, class_="gantt")


def most_bytes(buffer: ChipBuffer) -> float:
    """Return the most bytes that lie in a buffer at once."""
    changes: list[tuple[float, float]] = []
    for tensor in buffer.tensors:
        changes += [(tensor.start_us, tensor.size_bytes), (tensor.end_us, -tensor.size_bytes)]
    level = most = 0.0
    for _, change in sorted(changes):
        level += change
        most = max(most, level)
    return most


def _box(tensor: TensorSpan, x: svg.AxisScale, y: svg.AxisScale) -> Markup:
    left_px, top_px = x(tensor.start_us), y(tensor.address + tensor.size_bytes)
    width_px = max(x(tensor.end_us) - left_px, 0.6)
    height_px = max(y(tensor.address) - top_px, 0.6)
    tip = (
        f"{tensor.name}: {amount(tensor.size_bytes)}B at {tensor.address:.0f},"
        f" {ms(tensor.start_us / 1000)} to {ms(tensor.end_us / 1000)}"
    )
    drawn = [svg.rect(left_px, top_px, width_px, height_px, class_="box", tip=tip, radius=0)]
    room = height_px > 12 and svg.text_width(tensor.name) < width_px - 4
    if room and not tensor.name.endswith(" slot"):
        drawn.append(svg.text(left_px + 3, top_px + 11, tensor.name, class_="on-bar"))
    return join(drawn)
