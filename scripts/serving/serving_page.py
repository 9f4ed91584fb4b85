"""The page: tables of rows, and what they say against what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servers import NETWORKS
from serving_rows import ALONE, CONNECTIONS, LOADS, NETWORK_NAMES, POLICIES, REPLICATIONS, TODAY

from nnstretch.bench.markdown import markdown_table

Rows = Mapping[str, Mapping[str, Any]]
PREDICTIONS = {"replayed": 8, "drawn": 15, "blind": None}
"""By prediction, by how many percent its p95 may be off."""
MOST_ADDED_MS = 5.0
LEAST_GAIN = 1.8


def verdict(is_kept: bool) -> str:
    return "kept" if is_kept else "NOT kept"


def latency_cells(row: Mapping[str, Any]) -> list[str]:
    client = row["client_ms"]
    interval = f"{client['p95']:.1f} ({client['p95_low']:.1f} to {client['p95_high']:.1f})"
    return [f"{client['p50']:.1f}", interval, f"{client['p99']:.1f}", str(row["misses"])]


def latencies(rows: Rows) -> list[str]:
    heads = ("load", "who", "p50 ms", "p95 ms (95% interval)", "p99 ms", "misses")
    heads += ("utilisation", "us a decision", "HTTP adds, p50 ms", "client late, p95 ms")
    lines = []
    for load in LOADS:
        for policy in POLICIES:
            row = rows[f"served/{policy}/{load}"]
            used = ", ".join(f"{share:.0%}" for share in row["utilisation"].values())
            added_ms = row["client_ms"]["p50"] - row["server_ms"]["p50"]
            cells = [used, f"{row['decision_us']:.1f}", f"{added_ms:.1f}"]
            late = f"{row['client_late_p95_ms']:.1f}"
            lines.append([str(load), policy, *latency_cells(row), *cells, late])
        for name in TODAY:
            row = rows[f"today/{name}/{load}"]
            late = f"{row['client_late_p95_ms']:.1f}"
            lines.append([str(load), name, *latency_cells(row), "-", "-", "-", late])
    return markdown_table(heads, lines)


def error(row: Mapping[str, Any], name: str) -> float:
    return float(row[f"{name}_ms"]["p95"] / row["server_ms"]["p95"] - 1)


def predictions(rows: Rows) -> list[str]:
    heads = ("load", "policy", "server p50 ms", "server p95 ms")
    heads += ("replayed p95 ms", "arrivals and measured costs, p95 ms", "blind, p95 ms")
    lines = []
    for load in LOADS:
        for policy in POLICIES:
            row = rows[f"served/{policy}/{load}"]
            cells = [f"{row['server_ms']['p50']:.1f}", f"{row['server_ms']['p95']:.1f}"]
            for name in PREDICTIONS:
                cells.append(f"{row[f'{name}_ms']['p95']:.1f} ({error(row, name):+.1%})")
            lines.append([str(load), policy, *cells])
    return markdown_table(heads, lines)


GAINS = {
    "over HTTP, one core and two for server and clients": ("confined/1", "saturated/2"),
    "without HTTP and clients": ("inside/1", "inside/2"),
    "over HTTP, networks on one core, HTTP and clients on the other": (
        "saturated/1",
        "saturated/2",
    ),
}
"""Rows of one core and of two; the last gives HTTP and clients a second core in both."""


def saturated(rows: Rows) -> list[str]:
    heads = ("both networks in turns", "one core, a second", "two cores, a second", "gain")
    lines = []
    for what, (one, two) in GAINS.items():
        one_per_s, two_per_s = rows[one]["per_s"], rows[two]["per_s"]
        cells = [f"{one_per_s:.1f}", f"{two_per_s:.1f}", f"{two_per_s / one_per_s:.2f}"]
        lines.append([what, *cells])
    return markdown_table(heads, lines)


def alone(rows: Rows) -> list[str]:
    heads = ("one request at a time", "inside the server, p50 ms", "HTTP adds, p50 ms", "p95 ms")
    lines = []
    for network in NETWORK_NAMES:
        row = rows[f"alone/{network}"]
        cells = [f"{row[name]:.2f}" for name in ("inside_ms", "added_p50_ms", "added_p95_ms")]
        lines.append([network, *cells])
    return markdown_table(heads, lines)


def verdicts(rows: Rows) -> list[str]:
    served = [rows[f"served/{policy}/{load}"] for load in LOADS for policy in POLICIES]
    lines = []
    for name, most_percent in PREDICTIONS.items():
        worst = max((error(row, name) for row in served), key=abs)
        limit = "no limit"
        if most_percent is not None:
            limit = f"limit {most_percent}%, {verdict(abs(worst) * 100 <= most_percent)}"
        lines.append(f"- {name}: p95 off by {worst:+.1%} at worst; {limit}")
    added_ms = max(rows[f"alone/{network}"]["added_p50_ms"] for network in NETWORK_NAMES)
    is_kept = verdict(added_ms <= MOST_ADDED_MS)
    lines.append(
        f"- HTTP adds {added_ms:.2f} ms at the median; limit {MOST_ADDED_MS} ms, {is_kept}"
    )
    for what, (one, two) in GAINS.items():
        gain = rows[two]["per_s"] / rows[one]["per_s"]
        is_kept = verdict(gain >= LEAST_GAIN)
        lines.append(f"- saturated {what}: {gain:.2f} times; limit {LEAST_GAIN}, {is_kept}")
    for load in LOADS:
        for policy in ("eft", "heft_rt"):
            low = rows[f"served/{policy}/{load}"]["client_ms"]["p95_low"]
            high = rows[f"served/rr/{load}"]["client_ms"]["p95_high"]
            what = f"{policy} not above rr at p95, load {load}, within the intervals"
            lines.append(f"- {what}: {verdict(low <= high)}")
    return lines


def page(command: str, rows: Rows, capacity_per_s: float, requests: int) -> str:
    minutes = sum(row["took_s"] for row in rows.values()) / 60
    deadlines = ", ".join(f"{name} {ms} ms" for name, ms in NETWORKS.items())
    head = f"""# Networks served on two cores, and predicted

Made by `{command}` ({requests} requests a row, {minutes:.0f} minutes). ResNet-18 and MobileNetV2, 224 pixels, random weights, ONNX
Runtime with one thread each, equally many requests of both. Deadlines: {deadlines}; a request that is later than that misses.
Clients are a process for each network that does not import nnstretch; arrivals have exponential gaps of one seed, the same under
all policies; the load is a share of {capacity_per_s:.1f} requests a second, what {CONNECTIONS} clients got that asked as fast as answers came. A request is
600 KB of binary tensors. Server, clients and networks share the two cores. Latencies are the clients', from when a request was due,
queues before the client included; intervals by resampling blocks of requests.

## Latencies

"Today" is the same requests over the same HTTP server with ONNX Runtime alone: one thread that takes what came first, with both
cores inside operators; or a thread for each network, kept to a core of its own.
"""
    said = f"""
## Predictions

Of the server's own latencies, from whole request to end, without HTTP. Replayed: recorded arrivals, and each task takes what it
took. Arrivals and measured costs: recorded arrivals, and times drawn from the table that `simulate measure --record` makes of the
record. Blind: arrivals drawn, and costs of `simulate measure` before anything was served; {REPLICATIONS} runs.
"""
    rest = [*predictions(rows), "", "## Saturated, and what HTTP adds", ""]
    rest += [*saturated(rows), "", f"{ALONE} requests of each, one after another:", ""]
    rest += [*alone(rows), "", "## What was asked for", "", *verdicts(rows), ""]
    return "\n".join([head, *latencies(rows), said, *rest])
