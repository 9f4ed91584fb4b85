"""The best plans of every set of processors, as the manifests that a server schedules."""

from __future__ import annotations

from itertools import chain

from adaptive_runs import MAIN

from nnstretch.bundle.manifest import Manifest, Port, Subgraph
from nnstretch.cli.loaded_model import load_model_argument
from nnstretch.errors import NoPlan
from nnstretch.graph import TensorSpec
from nnstretch.soc import Soc
from nnstretch.stretch.search.search import search
from nnstretch.trial import Trial

TEAMS = (("cpu", "gpu"), ("cpu", "dsp"), ("gpu", "dsp"), ("cpu", "gpu", "dsp"))
TOP = 4
LONGEST = 2 / 3
"""Of so many of a team's best plans the first is taken in which no branch takes more than this
share: only at a meeting point can it move.
"""


def plans_of(model: str, soc: Soc) -> tuple[dict[str, Manifest], dict[str, Manifest]]:
    """Return by team the fastest plans, and those to move among; both have the main plan."""
    analysis = load_model_argument(model).analysis
    trials = {}
    for team in TEAMS:
        candidates = search(analysis, soc, team, top=TOP).plans
        trials["+".join(team)] = [candidate.trial for candidate in candidates]
    fastest = {name: manifest_of(best[0], soc) for name, best in trials.items()}
    moving = {
        name: manifest_of(movable(best, name), soc) for name, best in trials.items() if name != MAIN
    }
    return fastest, {name: moving.get(name, fastest[name]) for name in trials}


def movable(trials: list[Trial], team: str) -> Trial:
    """Return the fastest plan in which no branch is long. Raises NoPlan where all have one."""
    for trial in trials:
        branches = chain.from_iterable(segment.branches for segment in trial.segments)
        if max(branch.latency_us for branch in branches) <= LONGEST * trial.latency_us:
            return trial
    raise NoPlan(
        f"no plan of {team} without a branch of more than {LONGEST:.2f} of its latency, {TOP} best,"
        " search for more"
    )


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
