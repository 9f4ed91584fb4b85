"""Networks of a workload, loaded, with what their pieces cost on each processor."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.loaded_model import is_plan, load_model_argument
from nnstretch.cli.simulate.applications import check_chip, check_places, source_json
from nnstretch.cli.simulate.pool import Pool
from nnstretch.cli.simulate.timed_tasks import TimedTasks, bundle_tasks, placed
from nnstretch.cli.simulate.workload_files import GRAPHS, beside
from nnstretch.errors import BadInput
from nnstretch.files.workload.workload import ApplicationSettings, WorkloadFile
from nnstretch.schedule.loop.arrivals import Transfers
from nnstretch.schedule.simulation.application import (
    Application,
    ListedArrivals,
    own_tasks,
    own_times,
    own_transfers,
)
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.schedule.task_graph import task_graph
from nnstretch.task import TaskTimes, WorkKey

if TYPE_CHECKING:
    from nnstretch.bundle.bundle import Bundle
    from nnstretch.cli.loaded_model import LoadedModel
    from nnstretch.run.backends.registry import Choice
    from nnstretch.serve.served_network import ServedNetwork
    from nnstretch.soc import Soc

Tell = Callable[[str, float, float], None]
"""Progress callback: the phase, how much of it is done, and the total."""
MARGIN = 1.25
"""Factor by which an emulated clock goes slower than it has to."""


@dataclass(frozen=True, slots=True)
class LoadedApplications:
    """All that a server needs of a workload."""

    settings: SimulationSettings
    networks: Mapping[str, ServedNetwork]
    emulated: bool = False
    """Whether tasks take what a chip is predicted to take."""
    dilation: float = 1.0
    """How many times slower than the chip this host plays it."""
    source: dict[str, Any] = field(default_factory=dict)
    """Whether and by what an emulated chip is calibrated; empty where costs were measured here."""


def load_applications(
    workload: WorkloadFile,
    pool: Pool,
    factors: Mapping[str, float],
    soc: Soc | None,
    folder: Path,
    backend: Choice,
    tell: Tell,
) -> LoadedApplications:
    """Load every application of a workload.

    Costs are measured here, each piece alone; with a chip they are predicted. Raises what reading
    and exporting raise, and BadInput for what cannot be served.
    """
    from nnstretch.serve.model_names import check_model_names
    from nnstretch.serve.served_network import ServedNetwork

    check_model_names(settings.name for settings in workload.applications)
    names = [processor.name for processor in pool.processors]
    applications: list[Application] = []
    networks: dict[str, ServedNetwork] = {}
    times_us: dict[tuple[WorkKey, str], float] = {}
    all_transfers_us: dict[tuple[WorkKey, WorkKey], float] = {}
    dilation = 1.0
    for settings in workload.applications:
        bundle, transfers_us = bundle_of(settings, folder, soc, pool, tell)
        check_ports(bundle)
        network = networks[settings.name] = ServedNetwork(bundle, names, backend)
        tell(f"{settings.name}: measuring", 0, 1)
        measured_us = network.measured_us()
        if soc is None:
            timed = placed(settings, measured_tasks(bundle, measured_us, pool, factors), pool)
        else:
            timed = predicted_tasks(bundle, settings, pool)
            dilation = max(dilation, dilation_of(timed.times_us, measured_us, len(names)))
        check_places(settings, timed, pool)
        applications.append(application_of(settings, timed))
        times_us |= own_times(settings.name, timed.times_us)
        all_transfers_us |= own_transfers(settings.name, transfers_us)
    return LoadedApplications(
        SimulationSettings(
            *(tuple(applications), pool.processors, times_us, workload.policy),
            transfers_us=all_transfers_us,
            queueing=workload.queueing,
            seed=workload.seed,
            correction=workload.correction,
            wrong_costs=workload.wrong_costs,
        ),
        networks,
        soc is not None,
        dilation,
        {} if soc is None else source_json(workload, soc),
    )


def check_ports(bundle: Bundle) -> None:
    """Check that clients can send and get every tensor. Raises BadInput for a type that is none."""
    from nnstretch.serve.tensors import datatype_of

    for port in (*bundle.manifest.inputs, *bundle.manifest.outputs):
        datatype_of(port)


def application_of(settings: ApplicationSettings, timed: TimedTasks) -> Application:
    """Return an application whose requests clients bring."""
    return Application(
        settings.name,
        own_tasks(settings.name, timed.tasks),
        ListedArrivals(()),
        deadline_us=inf if settings.deadline_ms is None else settings.deadline_ms * 1000,
        priority=settings.priority,
        queue_limit=settings.queue_limit,
    )


def bundle_of(
    settings: ApplicationSettings, folder: Path, soc: Soc | None, pool: Pool, tell: Tell
) -> tuple[Bundle, Transfers]:
    """Return an application as a bundle: read, or made of a network or a plan; and what copies
    between processors take that its times are without.
    """
    from nnstretch.bundle.bundle import read_bundle

    model = settings.model
    if model is None or model.endswith(GRAPHS):
        what = "costs_ms" if model is None else model
        raise BadInput(
            f"{what} of application {settings.name}, serve, needed is a network that computes"
        )
    path = str(beside(model, folder))
    if model.endswith(".nns"):
        return read_bundle(path), {}
    tell(f"{settings.name}: capturing", 0, 1)
    subject = load_model_argument(path)
    if is_plan(model) and subject.plan is not None:
        return plan_bundle(settings, subject, soc, tell), {}
    return model_bundle(settings, subject, soc, pool, tell)


def plan_bundle(
    settings: ApplicationSettings, subject: LoadedModel, soc: Soc | None, tell: Tell
) -> Bundle:
    """Return a plan as a bundle, with its predicted times where there is a chip."""
    from nnstretch.bundle.bundle import read_bundle
    from nnstretch.export.bundle import export_bundle
    from nnstretch.export.subgraph_specs import ExportRequest
    from nnstretch.stretch.lowering.lower import lower

    assert subject.plan is not None
    lowered = lower(subject.analysis, subject.plan)
    trial = None if soc is None else subject.estimate(lowered, soc)
    module = subject.build_stretched(lowered, None)
    request = ExportRequest(module, subject.plan, trial=trial, soc=soc)
    request = replace(
        request, progress=lambda done, total, *_: tell(f"{settings.name}: exporting", done, total)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.nns"
        export_bundle(request, path)
        return replace(read_bundle(path), name=settings.name)


def model_bundle(
    settings: ApplicationSettings, subject: LoadedModel, soc: Soc | None, pool: Pool, tell: Tell
) -> tuple[Bundle, Transfers]:
    """Return a network as a bundle of the pieces that it is to be cut into, and what predicted
    copies between processors take.
    """
    from nnstretch.cli.simulate.network_tasks import network_tasks, stages_of_cut
    from nnstretch.partition.pieces import export_pieces
    from nnstretch.partition.split_graph import split_graph

    graph = subject.graph
    pieces = split_graph(graph, stages_of_cut(graph, settings.cut))
    bundle = export_pieces(
        graph,
        subject.captured.weights,
        pieces,
        lambda done, total: tell(f"{settings.name}: exporting", done, total),
    )
    if soc is None:
        return bundle, {}
    _, times_us, transfers_us = network_tasks(graph, settings.cut, pool, soc)
    subgraphs = []
    for sub in bundle.manifest.subgraphs:
        predicted_us = {name: us for (work, name), us in times_us.items() if work == sub.name}
        subgraphs.append(replace(sub, predicted_us=predicted_us))
    manifest = replace(bundle.manifest, subgraphs=tuple(subgraphs))
    return replace(bundle, manifest=manifest), transfers_us


def measured_tasks(
    bundle: Bundle, measured_us: Mapping[str, float], pool: Pool, factors: Mapping[str, float]
) -> TimedTasks:
    """Return a bundle's tasks, with what each takes a core of this host."""
    times_us: dict[tuple[WorkKey, str], float] = {}
    for name, time_us in measured_us.items():
        for processor in pool.processors:
            times_us[name, processor.name] = time_us * factors.get(processor.name, 1.0)
    return TimedTasks(task_graph(bundle.manifest), times_us, {})


def predicted_tasks(bundle: Bundle, settings: ApplicationSettings, pool: Pool) -> TimedTasks:
    """Return a bundle's tasks, with the times that it was exported with. Raises BadInput where
    there are none, or those of another chip.
    """
    if not bundle.manifest.is_predicted:
        raise BadInput(f"no predicted times, {settings.model}, export it with --soc")
    timed = bundle_tasks(bundle.manifest, pool)
    check_chip(settings, timed, pool)
    return placed(settings, timed, pool)


def dilation_of(times_us: TaskTimes, measured_us: Mapping[str, float], processors: int) -> float:
    """Return how much slower than the chip this host must play it to keep up."""
    from nnstretch.cli.serve.host_pool import host_cores

    shared = max(1.0, processors / len(host_cores()))
    most = 1.0
    for (work, _), time_us in times_us.items():
        most = max(most, MARGIN * shared * measured_us[str(work)] / max(time_us, 1.0))
    return most
