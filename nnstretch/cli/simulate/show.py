"""The result of `nnstretch simulate` as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nnstretch.cli.progress import warn_uncalibrated

if TYPE_CHECKING:
    from rich.console import Console


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    from rich.table import Table

    show_source(result, console)
    table = Table("application", "ended", "mean ms", "p50", "p95", "p99", "missed", "slowdown")
    for app in result["apps"]:
        ended = f"{app['ended']} of {app['arrived']}"
        table.add_row(app["name"], ended, *latency_cells(app))
    console.print(table)
    if result["replications"] > 1:
        runs = result["replications"]
        console.print(f"means of {runs} replications; instances are counted over all of them")
    used = ", ".join(f"{name} {share:.0%}" for name, share in result["utilisation"].items())
    console.print(f"{result['policy']}: makespan {result['makespan_ms']:.4g} ms, busy {used}")
    decided = result["scheduling_us"]
    console.print(
        f"{result['throughput_per_s']:.4g} a second, {result['open']['mean']:.3g} open on average;"
        f" {decided['per_task']:.2f} us of this host to decide a task"
    )
    if "replay" in result:
        show_replay(result["replay"], console)
    for what in ("report", "svg"):
        if what in result:
            console.print(f"{what} {result[what]}", highlight=False, soft_wrap=True)
    if "log" in result:
        console.print(f"logs in {result['log']}", highlight=False, soft_wrap=True)


def show_source(result: dict[str, Any], console: Console) -> None:
    """Print whether and by what the costs are calibrated, as far as chip and workload say."""
    if result["soc"] is not None:
        warn_uncalibrated(result, console)
    elif result.get("calibrated") is False:
        console.print("[yellow]the costs of this workload are not calibrated[/yellow]")
    if result.get("provenance"):
        console.print(f"source: {result['provenance']}")


def latency_cells(app: dict[str, Any]) -> list[str]:
    """Return what the table says of an application's latencies, misses and slowdown."""
    latency, interval = app["latency_ms"], app["latency_interval_95_ms"]
    misses, slowdown = str(app["deadline_misses"]), app["slowdown"]
    if not app["ended"]:
        return [*["-"] * 4, misses, "-"]
    mean = f"{latency['mean']:.4g}"
    if interval is not None:
        mean += f" ± {interval['mean'][1] - latency['mean']:.2g}"
    percentiles = [ms_cell(latency[name]) for name in ("p50", "p95", "p99")]
    return [mean, *percentiles, misses, "-" if slowdown is None else f"{slowdown:.2f}"]


def ms_cell(time_ms: float | None) -> str:
    """Return a latency; "-" where nothing has one."""
    return "-" if time_ms is None else f"{time_ms:.4g}"


def show_replay(replay: dict[str, Any], console: Console) -> None:
    """Print recorded beside simulated latencies."""
    from rich.table import Table

    table = Table("ms, recorded / simulated", "mean", "p50", "p95", "p99")
    for row in [*replay["apps"], {"name": "all", **replay}]:
        cells = []
        for name in ("mean", "p50", "p95", "p99"):
            error = row["error"][name]
            off = "" if error is None else f" {error:+.1%}"
            times = (ms_cell(row[what][name]) for what in ("recorded_ms", "simulated_ms"))
            cells.append(" / ".join(times) + off)
        table.add_row(row["name"], *cells)
    console.print(table)
    console.print(
        f"{replay['requests']} requests of {replay['record']}, served under"
        f" {replay['recorded_policy']}; {replay['durations']} durations",
        highlight=False,
        soft_wrap=True,
    )
