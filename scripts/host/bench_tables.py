"""The JSON of `nnstretch bench` as rows of a table."""

from __future__ import annotations

from typing import Any

HEADS = (
    *("network", "backend", "what", "median ms", "quartiles ms"),
    *("speed-up over the original on one core", "95% interval"),
)


def bench_rows(label: str, result: dict[str, Any]) -> list[list[str]]:
    """Return a row for each contender, and one for the critical path."""
    rows = []
    for variant in result["variants"]:
        name = f"{variant['backend']} {variant['precision']}"
        for what, times in variant["contenders"].items():
            low, high = times["speedup_interval"]
            spread = f"{times['q1_ms']:.2f} to {times['q3_ms']:.2f}"
            gain = (f"{times['speedup']:.2f}x", f"{low:.2f} to {high:.2f}")
            rows.append([label, name, what, f"{times['median_ms']:.2f}", spread, *gain])
        limit = (
            f"critical path, {variant['efficiency']:.3f} of branches at once,"
            f" {variant['dispatch_us']:.0f} us per meeting point"
        )
        rows.append([label, name, limit, f"{variant['critical_path_ms']:.2f}", "", "", ""])
    return rows
