"""What each sub-graph takes alone on its core.

The critical path that no schedule on this machine can beat.
"""

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
    """Return median latency of a session on the real clock, and its critical path of sub-graphs
    alone.

    In turns, so that both see one machine.
    """
    names, times, latencies_us = [processor.name for processor in session.processors], [], []
    bound_session = session.network.bound_and_filled(session.network.inputs(inputs))
    for _ in range(rounds):
        session.compute(
            session.network.inputs(inputs)
        )  # once uncounted: the sub-graphs alone have left the caches and cores as they like them
        session.compute(session.network.inputs(inputs))
        latencies_us.append(session.latency_us)
        times.append(isolated_us(session.manifest, bound_session, names))
    return median(latencies_us), isolated_critical_path_us(session.manifest, times)


def isolated_us(
    manifest: Manifest, bound_session: BoundNetwork, processors: Sequence[str]
) -> Times:
    """Measure each sub-graph alone: one processor after another runs all of its sub-graphs, on the
    core that `Threads` gives it, while the others rest.

    bound holds every tensor of the network (`Network.filled`): calls are those that a session
    makes, and change no tensor. The first sub-graph of each processor runs once more before, so
    that a core that slept is awake.

    Raises the first error of a backend.
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
    """Return the longest chain of needs at the median time of each sub-graph.

    Over all segments, the slowest branch and the merge.
    """
    typical = {name: median(times[name] for times in rounds) for name in rounds[0]}
    return critical_path_us(task_graph(manifest), lambda task: typical[task.subgraph])
