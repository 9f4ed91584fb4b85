"""What became of all requests, as JSON data."""

from __future__ import annotations

from typing import Any

from nnstretch.schedule.simulation.latencies import Latencies
from nnstretch.serve.network_server import NetworkServer
from nnstretch.serve.statistics import ApplicationStatistics

COUNTS = ("accepted", "answered", "refused", "failed", "cancelled", "lost", "deadline_misses")


def result_json(server: NetworkServer, elapsed_us: float) -> dict[str, Any]:
    """Return the result of a server that has been closed after `elapsed_us` of its clock."""
    served = server.applications
    rows = [application_json(name, application.statistics) for name, application in served.items()]
    together = Latencies()
    for application in served.values():
        together.merge(application.statistics.latencies)
    decided_us, tasks = server.decisions_s * 1e6, server.decided_tasks
    totals = {name: sum(row[name] for row in rows) for name in COUNTS}
    return {
        "policy": server.settings.policy,
        "queueing": server.settings.queueing,
        "seed": server.settings.seed,
        "apps": rows,
        **totals,
        "app_latency_ms": {row["name"]: row["latency_ms"] for row in rows},
        "latency_ms": together.summary_ms(),
        "elapsed_ms": elapsed_us / 1000,
        "throughput_per_s": totals["answered"] * 1e6 / elapsed_us if elapsed_us else 0.0,
        "scheduling_us": {"total": decided_us, "per_task": decided_us / tasks if tasks else 0.0},
        "tasks": tasks,
        "utilisation": {
            name: busy_us / elapsed_us if elapsed_us else 0.0
            for name, busy_us in server.busy_us.items()
        },
    }


def application_json(name: str, statistics: ApplicationStatistics) -> dict[str, Any]:
    """Return one application."""
    ends = statistics.ends
    return {
        "name": name,
        "accepted": statistics.accepted,
        "answered": statistics.answered,
        "refused": ends["refused"],
        "failed": statistics.failed,  # so that accepted ones add up; missed deadlines among them
        "deadline_misses": ends["missed"] + ends["dropped"],
        "cancelled": ends["cancelled"],
        "lost": statistics.lost,
        "latency_ms": statistics.latencies.summary_ms(),
    }
