"""Latency of each sub-graph alone on its core: the critical path that no schedule can beat."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from nnstretch.bundle.manifest import Manifest
from nnstretch.run.bound_memory import BoundNetwork
from nnstretch.run.loaded_network import Given
from nnstretch.schedule import critical_path_us, task_graph
from nnstretch.schedule.cpu_affinity import core_per_thread, pin

if TYPE_CHECKING:
    from nnstretch.run.session import Session

Times = dict[str, float]
"""Microseconds by sub-graph."""


def latency_and_critical_path_us(
    session: Session, inputs: Given, rounds: int
) -> tuple[float, float]:
    """Return the median latency of a session on the real clock, and its isolated critical path.

    Both are measured in turns, so that they see one state of the machine.
    """
    names = [processor.name for processor in session.processors]
    latencies_us: list[float] = []
    times: list[Times] = []
    bound_session = session.network.bound_and_filled(session.network.inputs(inputs))
    for _ in range(rounds):
        # Once uncounted: the isolated runs have left caches and cores as they like them.
        session.compute(session.network.inputs(inputs))
        session.compute(session.network.inputs(inputs))
        latencies_us.append(session.latency_us)
        times.append(isolated_us(session.manifest, bound_session, names))
    return median(latencies_us), isolated_critical_path_us(session.manifest, times)


def isolated_us(
    manifest: Manifest, bound_session: BoundNetwork, processors: Sequence[str]
) -> Times:
    """Measure each sub-graph while all other processors rest, on the core of its processor.

    The first sub-graph of each processor runs once more before, to wake the core. Raises the first
    error of a backend.
    """
    times: Times = {}
    errors: list[BaseException] = []

    def serve(core: set[int] | None, names: Sequence[str]) -> None:
        pin(core)
        try:
            bound_session.calls[names[0]]()
            for name in names:
                begin_s = perf_counter()
                bound_session.calls[name]()
                times[name] = (perf_counter() - begin_s) * 1e6
        except BaseException as error:
            errors.append(error)

    for processor, core in zip(processors, core_per_thread(len(processors)), strict=True):
        if names := [sub.name for sub in manifest.subgraphs if sub.processor == processor]:
            worker = threading.Thread(
                target=serve, args=(core, names), name=f"nnstretch-alone-{processor}", daemon=True
            )
            worker.start()
            worker.join()
    if errors:
        raise errors[0]
    return times


def isolated_critical_path_us(manifest: Manifest, rounds: Sequence[Mapping[str, float]]) -> float:
    """Return the critical path at the median time of each sub-graph, us."""
    typical = {name: median(times[name] for times in rounds) for name in rounds[0]}
    return critical_path_us(task_graph(manifest), lambda task: typical[task.subgraph])
