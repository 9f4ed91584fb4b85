"""The result of `nnstretch run` as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nnstretch.cli.progress import warn_uncalibrated
from nnstretch.cli.run import pipeline as run_pipeline
from nnstretch.cli.run import requests as run_requests

if TYPE_CHECKING:
    from rich.console import Console


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    if "requests" in result:
        run_requests.show(result, console)
    elif result["mode"] == "pipeline":
        run_pipeline.show(result, console)
    else:
        show_runs(result, console)


def show_runs(result: dict[str, Any], console: Console) -> None:
    """Print repeated runs of one input."""
    from rich.table import Table

    clock = f"{result['clock']} clock, times {result['timing']}"
    table = Table(title=f"{result['model']}, {result['mode']}, {clock}", show_header=False)
    for name, value in [*latency_rows(result), *host_rows(result)]:
        table.add_row(name, value)
    for name, use in result["processors"].items():
        busy = f"{use['busy_ms']:.3f} ms, {use['utilisation']:.0%}, {result['backend'][name]}"
        table.add_row(f"{name} busy", busy)
    console.print(table)
    warn_uncalibrated(result, console)
    for best in result.get("best", ()):
        console.print(f"{best['score']:9.3f}  {best['label']}", markup=False, highlight=False)


def latency_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return rows about latency, critical path and throughput."""
    rows = []
    if len(result["plans"]) > 1:
        rows.append(("plan", f"{result['plan']}, of {', '.join(result['plans'])}"))
    times = result["latency_ms"]
    percentiles = ", ".join(f"{name} {times[name]:.3f}" for name in ("min", "p90", "p99"))
    rows.append(("latency", f"median {times['median']:.3f} ms ({percentiles})"))
    if result["virtual_ms"] is not None:
        rows.append(("latency on the virtual clock", f"{result['virtual_ms']:.3f} ms"))
    path_ms = result["critical_path_us"] / 1e3
    path = f"{path_ms:.3f} ms of {result['latency_us'] / 1e3:.3f} ms, efficiency"
    path += f" {result['efficiency']:.3f}"
    rows.append((f"critical path, {result['critical_path_is']}", path))
    rows.append(("throughput", f"{result['throughput_per_s']:.1f} /s"))
    sequential = f"{result['sequential_throughput_per_s']:.1f} /s"
    rows.append((f"throughput one after another, {result['sequential_is']}", sequential))
    return rows


def host_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return rows about this host: overhead, dilation, overlap; and about the numbers."""
    late = f"{result['late_tasks']} tasks late in {result['repeats']} runs"
    rows = [
        ("dispatch per meeting point", f"{result['dispatch_overhead_us']:.0f} us of this host"),
        ("clock slowed down by", f"{result['dilation']:.2f}, {late}"),
    ]
    if overlap := result["overlap"]:
        why = f": {overlap['why']}" if overlap["why"] else ""
        speedup = f"{overlap['speedup']:.2f} of {overlap['possible']:.2f} possible"
        rows.append(("two branches at once", f"{speedup}, {overlap['cores']} cores{why}"))
    rows.append(("largest difference from the sequential run", f"{result['max_abs_error']:.2g}"))
    return rows
