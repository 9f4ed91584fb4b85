"""Fronts of a search as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnstretch.graph import Graph
    from nnstretch.report.charts.pareto_chart import ParetoPanel
    from nnstretch.stretch.search.pareto import ParetoFront
    from nnstretch.stretch.search.search_result import SearchResult

NAMES = {"macs": "MACs", "params": "parameters", "meetings": "meeting points"}


def panel_of(front: ParetoFront, result: SearchResult, graph: Graph) -> ParetoPanel:
    """Return a front as a panel of the picture."""
    from nnstretch.report.charts.pareto_chart import ParetoMark, ParetoPanel
    from nnstretch.report.format_numbers import amount

    name = NAMES[front.measure]
    counts = front.measure == "meetings"
    total = 1 if counts else getattr(graph, front.measure)
    marks = tuple(
        ParetoMark(
            p.measured(front.measure) / total,
            p.trial.latency_us / 1000,
            p.found.iso_mac.latency_us / 1000,
            p.optimal,
        )
        for p in front.points
    )
    across = f"{name} of the plan"
    return ParetoPanel(
        f"{graph.name}: latency against {name}",
        across if counts else f"{across} over the original's {amount(total)}",
        result.fastest,
        result.original_us[result.fastest] / 1000,
        marks,
        "" if counts else "x",
        0.0 if counts else 1.0,
    )


def draw_front(
    fronts: list[ParetoFront], result: SearchResult, graph: Graph, picture: Path | None
) -> list[str]:
    """Draw the fronts into a file where one is asked for; return why it is not written."""
    if picture is None:
        return []
    if not any(f.points for f in fronts):
        return [f"cannot draw {picture}, fronts of {graph.name}, there is no point on any"]
    from nnstretch.files.atomic import write_text
    from nnstretch.report.charts.pareto_chart import front_picture

    panels = tuple(panel_of(f, result, graph) for f in fronts if f.points)
    write_text(picture, front_picture(panels) + "\n")
    return []
