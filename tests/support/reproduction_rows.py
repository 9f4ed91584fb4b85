"""Rows of a comparison of published and searched plans."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from comparison_rows import (
    COMBINATIONS,
    Bound,
    Original,
    Published,
    Row,
    Searched,
    Task,
    combination_of,
)

from nnstretch.stretch.search.constraints import SegmentLimits

DEFAULTS = asdict(SegmentLimits())


FOUND = {
    "latency_us": 50.0,
    "error_us": 2.0,
    "macs": 800,
    "params": 400,
    "iso_mac_us": 90.0,
    "optimal": True,
}


USED = {"processors": ("cpu", "dsp"), "meetings": 1}


def original(network: str = "R-34", **us: float) -> Original:
    alone = {"cpu": 100.0, "gpu": 200.0, "dsp": 125.0} | us
    return Original(
        network, "torchvision:resnet34", 1000, 500, alone, dict.fromkeys(alone, 1.0), {"cpu": 101.0}
    )


def plan(
    config: str, macs: int = 700, params: int = 300, us: float = 80.0, **more: Any
) -> Published:
    network, _, _ = config.rpartition("-")
    combination = combination_of(config)
    assert combination is not None
    return Published(
        config,
        network,
        combination,
        macs,
        params,
        us,
        1.0,
        None,
        processors=COMBINATIONS[combination],
        **more,
    )


def searched(task: Task, code: str = "now", **more: Any) -> Searched:
    row = Searched(task.network, task.combination, task.bound.source, DEFAULTS, code)
    return replace(row, **FOUND | USED | more)


def row_of(published: Published | None = None, **more: Any) -> Row:
    task = Task("R-34", "C+D", Bound("R-34-CD", 700, 300, borrowed=published is None))
    return Row(original(), task, published, searched(task, **more))
