"""Tables and pictures of a sweep: means over trials, with 95% intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnstretch.bench.markdown import markdown_table
from nnstretch.files.atomic import write_text
from nnstretch.report.charts.line_chart import ChartAxis, ChartLine, line_chart
from nnstretch.report.style import stand_alone
from nnstretch.schedule.simulation.replications import measured

HEADS = ("pool", "policy", "rate", "trials", "mean ms", "±", "p95 ms", "makespan ms", "a second")
Key = tuple[str, str, float]
"""Pool, policy, rate."""


def write_tables(folder: Path, rows: Sequence[dict[str, Any]]) -> list[Path]:
    """Write the table and a picture for each pool; return the files."""
    groups: dict[Key, list[dict[str, Any]]] = {}
    for row in rows:
        if "result" in row:
            key = (pool_name(row["pool"]), row["policy"], row["rate"])
            groups.setdefault(key, []).append(row["result"])
    files: list[Path] = []
    lines = ["# Sweep", "", *markdown_table(HEADS, [cells(*item) for item in groups.items()]), ""]
    for number, pool in enumerate(dict.fromkeys(key[0] for key in groups)):
        file = folder / f"latency_{number}.svg"
        write_text(file, picture(pool, groups))
        lines += [f"![Mean latency on {pool}]({file.name})", ""]
        files.append(file)
    for row in rows:
        if "error" in row:
            where = f"{pool_name(row['pool'])}, {row['policy']}, rate {row['rate']:g}"
            lines += [f"Failed: {where}, trial {row['trial']}: {row['error']}", ""]
    write_text(folder / "sweep.md", "\n".join(lines))
    return [folder / "sweep.md", *files]


def pool_name(pool: dict[str, int] | None) -> str:
    """Return a pool in words."""
    if pool is None:
        return "as described"
    return " + ".join(f"{count} {kind}" for kind, count in pool.items())


def cells(key: Key, results: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return a row of the table."""
    latency = measured([result["app_latency_ms"]["mean"] for result in results])
    width = "" if latency.half_width is None else f"{latency.half_width:.3g}"
    p95 = measured([result["app_latency_ms"]["p95"] for result in results]).mean
    makespan = measured([result["makespan_ms"] for result in results]).mean
    throughput = measured([result["throughput_per_s"] for result in results]).mean
    numbers = (f"{latency.mean:.4g}", width, f"{p95:.4g}", f"{makespan:.4g}", f"{throughput:.4g}")
    return key[0], key[1], f"{key[2]:g}", str(len(results)), *numbers


def picture(pool: str, groups: dict[Key, list[dict[str, Any]]]) -> str:
    """Return mean latency against the rate on one pool, a line for each policy."""
    points: dict[str, list[tuple[float, float]]] = {}
    for (where, policy, rate), results in groups.items():
        if where == pool:
            latency = measured([result["app_latency_ms"]["mean"] for result in results])
            points.setdefault(policy, []).append((rate, latency.mean))
    lines = [ChartLine(policy, tuple(sorted(line))) for policy, line in points.items()]
    across, upward = ChartAxis("times as fast as the workload"), ChartAxis("mean latency, ms")
    return stand_alone(line_chart(f"Latency on {pool}", across, upward, lines))
