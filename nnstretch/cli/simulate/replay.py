"""`simulate WORKLOAD --replay RECORD`: what a server did, beside what the simulator says of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.errors import Mismatch
from nnstretch.schedule.simulation.latencies import Latencies

if TYPE_CHECKING:
    from nnstretch.files.workload.service_record import ServiceRecord
    from nnstretch.files.workload.workload import WorkloadFile
    from nnstretch.schedule.simulation.simulate import SimulationResult

QUANTILES = ("mean", "p50", "p95", "p99")


def check_same_workload(record: ServiceRecord, workload: WorkloadFile, path: Path) -> None:
    """Refuse a record of another workload. Raises Mismatch naming what differs."""
    header = record.header
    recorded = {application.name for application in header.applications}
    named = {application.name for application in workload.applications}
    if recorded == named:
        return
    missing, more = sorted(named - recorded), sorted(recorded - named)
    faults = []
    if missing:
        faults.append(f"{', '.join(missing)} is not in it")
    if more:
        faults.append(f"{', '.join(more)} is not in the workload")
    raise Mismatch(f"{path} is a record of {header.workload}, --replay, {' and '.join(faults)}")


def replay_json(
    record: ServiceRecord, path: Path, source: str, results: list[SimulationResult]
) -> dict[str, Any]:
    """Return recorded and simulated latencies, and by how much these are off."""
    from nnstretch.schedule.simulation.replay import (
        recorded_latencies,
        recorded_utilisation,
        requests_in_order,
    )

    apps = []
    together = Latencies()
    for number, (name, requests) in enumerate(requests_in_order(record).items()):
        simulated = Latencies()
        for result in results:
            simulated.merge(result.runs[number].latencies)
        together.merge(simulated)
        recorded = recorded_latencies(requests)
        missed = sum(request.end in ("missed", "dropped") for request in requests)
        apps.append({"name": name, "recorded_misses": missed} | beside(recorded, simulated))
    return {
        "record": str(path),
        "durations": source,
        "recorded_policy": record.header.policy,
        "requests": len(record.requests),
        "recorded_utilisation": recorded_utilisation(record),
        "apps": apps,
    } | beside(recorded_latencies(record.requests), together)


def beside(recorded: Latencies, simulated: Latencies) -> dict[str, Any]:
    """Return two summaries and the error of the second, as a share of the first."""
    recorded_ms, simulated_ms = recorded.summary_ms(), simulated.summary_ms()
    errors: dict[str, float | None] = {}
    for name in QUANTILES:
        was_ms, now_ms = recorded_ms[name], simulated_ms[name]
        errors[name] = now_ms / was_ms - 1 if was_ms and now_ms is not None else None
    return {"recorded_ms": recorded_ms, "simulated_ms": simulated_ms, "error": errors}
