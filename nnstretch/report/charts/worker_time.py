"""Where each worker of a pipeline spends its time, as bars of one length."""

from __future__ import annotations

from nnstretch.report.charts import svg
from nnstretch.report.charts.palette import legend
from nnstretch.report.format_numbers import ms, percent
from nnstretch.report.html import Markup, join, tag
from nnstretch.report.load.pipeline_data import StageRow

TITLE = "Where each worker's time goes"
WIDTH_PX = 1120.0
LEFT_PX = 118.0
ROW_PX = 26.0
NAME_PX = 110.0
PARTS = (
    ("wait-busy", "busy"),
    ("wait-starved", "starved: waits for an item"),
    ("wait-blocked", "blocked: waits for room behind it"),
)


def worker_time(stages: tuple[StageRow, ...]) -> Markup | None:
    """Draw busy, starved and blocked time; None where a virtual clock does not say."""
    if not any(sum(_parts_ms(stage)) for stage in stages):
        return None
    x = svg.AxisScale(0, 1, LEFT_PX, WIDTH_PX - 12)
    rows = join(_row(stage, number * ROW_PX, x) for number, stage in enumerate(stages))
    spoken = "; ".join(f"{stage.name}: {_spoken(stage)}" for stage in stages)
    drawing = svg.svg(WIDTH_PX, ROW_PX * len(stages), TITLE, spoken, rows, class_="terms")
    return join((tag("h3", TITLE), legend(PARTS), svg.scrolling(drawing, TITLE)))


def _parts_ms(stage: StageRow) -> tuple[float, ...]:
    return stage.busy_ms or 0.0, stage.starved_ms or 0.0, stage.blocked_ms or 0.0


def _shares(stage: StageRow) -> tuple[tuple[str, str, float, float], ...]:
    """Return look, name, ms and share of each part."""
    parts_ms = _parts_ms(stage)
    whole_ms = sum(parts_ms) or 1.0
    shares: list[tuple[str, str, float, float]] = []
    for (look, name), part_ms in zip(PARTS, parts_ms, strict=True):
        shares.append((look, name.split(":")[0], part_ms, part_ms / whole_ms))
    return tuple(shares)


def _spoken(stage: StageRow) -> str:
    return ", ".join(f"{name} {percent(share, 0)}" for _, name, _, share in _shares(stage))


def _row(stage: StageRow, top: float, x: svg.AxisScale) -> Markup:
    label = svg.truncate(stage.name, 106, 12)
    drawn = [svg.text(NAME_PX, top + 16, label, class_="lane-name", anchor="end")]
    at = 0.0
    for look, name, part_ms, share in _shares(stage):
        tip = f"{stage.name}: {name} {ms(part_ms)}, {percent(share, 0)}"
        width = x(at + share) - x(at)
        drawn.append(svg.rect(x(at), top + 3, width, 19, class_=look, tip=tip))
        at += share
    return svg.group(*drawn)
