"""What is measured: one row of the page each, as JSON data for the journal."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from servers import NETWORKS, Bench, Served, arrivals_s, asked, kept_to

from nnstretch.bench.commands import run_verb
from nnstretch.cli.serve.applications import load_applications
from nnstretch.cli.serve.host_pool import host_pool
from nnstretch.files.workload.service_record import read_record
from nnstretch.files.workload.workload_yaml import read_workload
from nnstretch.serve.network_server import NetworkServer

NETWORK_NAMES = tuple(NETWORKS)
LOADS = (0.3, 0.5, 0.7)
POLICIES = ("rr", "met", "eft", "heft_rt", "least_slack")
TODAY = {
    "one runtime, both cores inside operators, FCFS": (2, False),
    "each network on a core of its own": (1, True),
}
CONNECTIONS = 8
ALONE = 200
BLOCK = 50
"""Requests in a row that an interval keeps together, as neighbours wait for each other."""
RESAMPLES = 400
REPLICATIONS = 5


def quantiles_ms(served: Sequence[Served]) -> dict[str, Any]:
    """Return what clients saw of answered requests, and an interval of the p95."""
    latencies = np.array([request.latency_ms for request in served if request.status == 200])
    p50, p95, p99 = map(float, np.percentile(latencies, [50, 95, 99]))
    draw = np.random.default_rng(0)
    blocks = [latencies[k : k + BLOCK] for k in range(0, len(latencies), BLOCK)]
    p95s = []
    for _ in range(RESAMPLES):
        chosen = draw.integers(len(blocks), size=len(blocks))
        p95s.append(np.percentile(np.concatenate([blocks[k] for k in chosen]), 95))
    low, high = map(float, np.percentile(p95s, [2.5, 97.5]))
    return {"p50": p50, "p95": p95, "p99": p99, "p95_low": low, "p95_high": high}


def misses(served: Sequence[Served]) -> int:
    """Return how many were not answered, or not before their deadline."""
    return sum(
        request.status != 200 or request.latency_ms > NETWORKS[request.network]
        for request in served
    )


def closed_loop(bench: Bench, networks: Sequence[str], requests: int, connections: int) -> Any:
    bodies = [bench.bodies[name] for name in networks]
    return {"bodies": bodies, "requests": requests, "connections": connections}


def throughput_per_s(times_s: Iterable[float]) -> float:
    """Return answers a second from when each came, without the first and the last tenth."""
    ends_s = sorted(times_s)
    skip = max(1, len(ends_s) // 10)
    kept = ends_s[skip:-skip]
    return (len(kept) - 1) / (kept[-1] - kept[0])


def saturated(bench: Bench, cores: int, requests: int, machine_cores: int = 2) -> dict[str, Any]:
    """Ask as fast as answers come, both networks in turns.

    The server, its HTTP and the clients have `machine_cores`; networks compute on `cores` of them.
    """
    with kept_to(machine_cores), bench.served("eft", cores) as (port, result):
        asked(port, [closed_loop(bench, list(NETWORKS), 20, CONNECTIONS)])
        served = asked(port, [closed_loop(bench, list(NETWORKS), requests, CONNECTIONS)])
    ends_s = [request.ended_s for request in served if request.status == 200]
    return {"per_s": throughput_per_s(ends_s), "answered": result["answered"]}


def saturated_inside(bench: Bench, cores: int, requests: int) -> dict[str, Any]:
    """Likewise without HTTP and without clients: what the scheduler and the processors reach."""
    workload = read_workload(bench.workload(cores))
    pool = host_pool(workload, None)
    loaded = load_applications(workload, pool, {}, None, bench.folder, None, lambda *_: None)
    room = threading.Semaphore(CONNECTIONS)
    ends_s: list[float] = []
    with NetworkServer(
        loaded.settings, loaded.networks, on_end=lambda end: ends_s.append(end.ended_us / 1e6)
    ) as server:
        inputs = {
            name: served.network.network.random_inputs(0)
            for name, served in server.applications.items()
        }
        for number in range(requests):
            room.acquire()
            name = list(NETWORKS)[number % len(NETWORKS)]
            reply = server.submit(name, inputs[name])
            assert reply is not None
            reply.add_done_callback(lambda _: room.release())
    return {"per_s": throughput_per_s(ends_s), "answered": len(ends_s)}


def alone(bench: Bench, network: str) -> dict[str, Any]:
    """Ask one after another; what a request takes beyond what the server says is HTTP's."""
    with bench.served("eft") as (port, _):
        served = asked(port, [closed_loop(bench, [network], ALONE, 1)])
    inside_ms = []
    for request in sorted(read_record(bench.record).requests, key=lambda row: row.arrived_us):
        inside_ms.append((request.ended_us - request.arrived_us) / 1000)
    outside_ms = [request.latency_ms for request in served]
    added_ms = np.subtract(outside_ms, inside_ms)
    p50, p95 = map(float, np.percentile(added_ms, [50, 95]))
    return {"inside_ms": float(np.median(inside_ms)), "added_p50_ms": p50, "added_p95_ms": p95}


def open_loop(bench: Bench, load: float, capacity_per_s: float, requests: int) -> list[Any]:
    """Return what the clients of a load do: one process for each network, equally many requests."""
    rate_per_s = load * capacity_per_s / len(NETWORKS)
    orders = []
    for name in NETWORKS:
        times_s = arrivals_s(f"{name}/{load}", rate_per_s, requests // len(NETWORKS))
        orders.append({"bodies": [bench.bodies[name]], "arrivals_s": times_s})
    return orders


def client_cells(served: Sequence[Served]) -> dict[str, Any]:
    late_ms = [(request.sent_s - request.due_s) * 1000 for request in served]
    return {
        "requests": len(served),
        "misses": misses(served),
        "client_ms": quantiles_ms(served),
        "client_late_p95_ms": float(np.percentile(late_ms, 95)),
    }


def served_row(
    bench: Bench, policy: str, load: float, capacity_per_s: float, requests: int
) -> dict[str, Any]:
    """Serve one load under one policy, and predict it in three ways."""
    with bench.served(policy) as (port, result):
        served = asked(port, open_loop(bench, load, capacity_per_s, requests))
    row = client_cells(served)
    row["decision_us"] = result["scheduling_us"]["per_task"]
    return row | predictions(bench, policy, load, capacity_per_s, requests)


def predictions(
    bench: Bench, policy: str, load: float, capacity_per_s: float, requests: int
) -> dict[str, Any]:
    """Return the server's own latencies, and those that are predicted."""
    workload, record = bench.workload(), bench.record
    again = run_verb("simulate", workload, "--replay", record)["replay"]
    table = bench.folder / "recorded_costs.json"
    run_verb("simulate", "measure", workload, "--record", record, "--out", table)
    drawn = run_verb("simulate", workload, "--replay", record, "--costs", table)["replay"]
    gap_ms = 1000 * len(NETWORKS) / (load * capacity_per_s)
    bench.costs()
    blind = run_verb(
        *("simulate", bench.workload(gap_ms=gap_ms, instances=requests // len(NETWORKS))),
        *("--policy", policy, "--replications", REPLICATIONS),
    )
    return {
        "server_ms": again["recorded_ms"],
        "utilisation": again["recorded_utilisation"],
        "replayed_ms": again["simulated_ms"],
        "drawn_ms": drawn["simulated_ms"],
        "blind_ms": blind["app_latency_ms"],
    }


def today_row(
    bench: Bench, name: str, load: float, capacity_per_s: float, requests: int
) -> dict[str, Any]:
    """Serve one load as people do today."""
    with bench.today(*TODAY[name]) as port:
        asked(port, [closed_loop(bench, list(NETWORKS), 10, 1)])
        return client_cells(asked(port, open_loop(bench, load, capacity_per_s, requests)))
