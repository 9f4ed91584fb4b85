"""The result of `nnstretch serve` as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nnstretch.cli.progress import warn_uncalibrated
from nnstretch.cli.simulate.show import ms_cell

if TYPE_CHECKING:
    from rich.console import Console


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    from rich.table import Table

    warn_uncalibrated(result, console)
    ends = "refused, missed, failed, cancelled"
    table = Table("application", "answered", ends, "mean ms", "p50", "p95", "p99")
    for app in result["apps"]:
        latency = [ms_cell(app["latency_ms"][name]) for name in ("mean", "p50", "p95", "p99")]
        missed = app["deadline_misses"]  # counted among those that failed
        others = (app["refused"], missed, app["failed"] - missed, app["cancelled"])
        answered = f"{app['answered']} of {app['accepted']}"
        table.add_row(app["name"], answered, ", ".join(map(str, others)), *latency)
    console.print(table)
    used = ", ".join(f"{name} {share:.0%}" for name, share in result["utilisation"].items())
    decided = result["scheduling_us"]
    console.print(
        f"{result['policy']}: {result['throughput_per_s']:.4g} a second, busy {used};"
        f" {decided['per_task']:.2f} us of this host to decide a task; {result['lost']} lost"
    )
    if "record" in result:
        console.print(f"record in {result['record']}", highlight=False, soft_wrap=True)
    if "log" in result:
        console.print(f"logs in {result['log']}", highlight=False, soft_wrap=True)
