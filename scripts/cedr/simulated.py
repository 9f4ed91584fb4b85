"""Simulations of task graphs and networks, as the experiments ask for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from signal_apps import GraphTable

from nnstretch.cli.loaded_model import load_soc_of
from nnstretch.cli.simulate.applications import simulation_settings
from nnstretch.cli.simulate.result_json import result_json
from nnstretch.files.atomic import write_text
from nnstretch.files.decode import decode
from nnstretch.files.workload.workload import WorkloadFile
from nnstretch.schedule.loop.arrivals import Transfers
from nnstretch.schedule.simulation.simulate import Simulation
from nnstretch.trace import Span

NOT_CALIBRATED = "not calibrated: three published times of ZCU102 boards set the scale"
TYPES = ("cpu", "conv2d", "zip", "fft")
Pool = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Load:
    """An application of a workload: its model, when it arrives and how often."""

    name: str
    model: str
    arrivals: Mapping[str, Any]
    instances: int
    cut: str = "layers"


def at_once(name: str, model: str, instances: int) -> Load:
    """Return an application all of whose instances arrive at time 0."""
    return Load(name, model, {"times_ms": [0.0] * instances}, instances)


def write_graph(
    path: Path,
    table: GraphTable,
    reference: str,
    types: Sequence[str] = TYPES,
    transfers_us: Transfers | None = None,
) -> None:
    """Write a task graph as `nnstretch schedule` reads it, with processors of these types."""
    edges: list[dict[str, Any]] = []
    for source, target in table.needs:
        data = round((transfers_us or {}).get((source, target), 0.0), 3)
        edges.append({"from": source, "to": target} | ({"data": data} if data else {}))
    used = {kind for costs in table.costs.values() for kind in costs}
    document = {
        "name": path.stem,
        "reference": reference,
        "processors": {kind: kind for kind in types if kind in used},
        "tasks": table.tasks,
        "cost": table.costs,
        "edges": edges,
    }
    lines = [f'"{key}": {json.dumps(value)}' for key, value in document.items()]
    write_text(path, "{" + ",\n ".join(lines) + "}\n")


def workload(
    loads: Sequence[Load], pool: Pool, policy: str, soc: str | None = None
) -> WorkloadFile:
    """Return a workload of applications on a pool."""
    applications: list[dict[str, Any]] = []
    for load in loads:
        applications.append(
            {
                "name": load.name,
                "model": load.model,
                "arrivals": dict(load.arrivals),
                "instances": load.instances,
                "cut": load.cut,
            }
        )
    data = {"pool": dict(pool), "policy": policy, "applications": applications}
    if soc is not None:
        data["soc"] = soc
    file: WorkloadFile = decode(WorkloadFile, data, "workload")
    return file


def simulate(
    file: WorkloadFile, folder: Path, on_span: Callable[[Span], None] | None = None
) -> dict[str, Any]:
    """Simulate a workload whose models are in `folder`, and return the result as JSON data."""
    soc = None if file.soc is None else load_soc_of(file.soc)
    settings = simulation_settings(file, soc, folder)
    return result_json(settings, [Simulation(settings, on_span).run()])


def execution_ms(result: Mapping[str, Any]) -> float:
    """Return the mean execution time over instances of all applications, ms."""
    ended = sum(app["ended"] for app in result["apps"])
    return float(sum(app["execution_ms"] * app["ended"] for app in result["apps"]) / ended)
