"""The best plans of every set of processors, as the manifests that a server schedules."""

from __future__ import annotations

from adaptive_runs import MAIN

from nnstretch.bundle.manifest import Manifest, Port, Subgraph
from nnstretch.cli.loaded_model import load_model_argument
from nnstretch.graph import TensorSpec
from nnstretch.soc import Soc
from nnstretch.stretch.search.constraints import SegmentLimits
from nnstretch.stretch.search.search import search
from nnstretch.trial import Trial

TEAMS = (("cpu", "gpu"), ("cpu", "dsp"), ("gpu", "dsp"), ("cpu", "gpu", "dsp"))
LONGEST = 0.5
"""Share of the network's MACs that may lie between two meeting points of plans that move: only at
a meeting point can a branch move.
"""


def plans_of(model: str, soc: Soc) -> tuple[dict[str, Manifest], dict[str, Manifest]]:
    """Return by team the fastest plans, and those to move among; both have the main plan."""
    analysis = load_model_argument(model).analysis
    fastest, moving = {}, {}
    for team in TEAMS:
        name = "+".join(team)
        fastest[name] = moving[name] = manifest_of(search(analysis, soc, team).plans[0].trial, soc)
        if name != MAIN:
            short_forks = search(analysis, soc, team, SegmentLimits(max_fork=LONGEST))
            moving[name] = manifest_of(short_forks.plans[0].trial, soc)
    return fastest, moving


def manifest_of(trial: Trial, soc: Soc) -> Manifest:
    """Return the manifest of a plan as `export` writes it, without its files."""
    host, spec = next(p.name for p in soc.processors if p.kind == "cpu"), TensorSpec((1,))
    cuts = [Port(f"cut{number}", spec) for number in range(len(trial.segments) + 1)]
    subs: list[Subgraph] = []
    for number, (segment, rows) in enumerate(zip(trial.segments, trial.alternatives, strict=True)):
        start, end = cuts[number : number + 2]
        names = [branch.processor for branch in segment.branches]
        branched = len(names) > 1
        ends = [Port(f"{end.name}@{name}", spec) if branched else end for name in names]
        times_us = [{name: cost.latency_us for name, cost in row.items()} for row in rows]
        for branch, target, alternatives in zip(segment.branches, ends, times_us, strict=False):
            predicted_us = {**alternatives, branch.processor: branch.latency_us}
            subs.append(subgraph(number, branch.processor, (start,), target, predicted_us))
        if branched:
            predicted_us = {**times_us[-1], host: segment.merge_us}
            subs.append(subgraph(number, host, tuple(ends), end, predicted_us, "merge"))
    sync_us = {n: s.sync_us for n, s in enumerate(trial.segments) if s.sync_us > 0}
    ports = ((cuts[0],), (cuts[-1],))
    return Manifest(trial.plan.model, soc.name, *ports, tuple(subs), 0.0, sync_us)


def subgraph(
    segment: int,
    processor: str,
    reads: tuple[Port, ...],
    writes: Port,
    predicted_us: dict[str, float],
    role: str = "branch",
) -> Subgraph:
    name = f"s{segment}.{'merge' if role == 'merge' else processor}"
    file = (f"{name}.onnx", "", 0)
    options = {"role": role, "segment": segment, "predicted_us": predicted_us}
    return Subgraph(name, processor, *file, reads, (writes,), **options)
