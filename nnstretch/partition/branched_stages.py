"""Stages that are themselves branched.

A plan's segments, divided among stages of disjoint processors.

Segments of a plan keep their branches, so a stage is a run of segments and its processors are all
that its branches and merges use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import inf

from nnstretch.bundle.manifest import Manifest, Subgraph
from nnstretch.bundle.pipeline_view import torch_spec
from nnstretch.errors import NoPlan
from nnstretch.pipeline import DEFAULT_CAPACITY, PipelineSpec, PipelineStage, TensorDecl
from nnstretch.soc import Soc
from nnstretch.trial import SegmentCost, Trial


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Segments first to last - 1 as one stage."""

    first: int
    last: int
    processors: tuple[str, ...]
    latency_us: float
    """One item through all of them, while every other stage computes, too."""


def group_segments(
    trial: Trial, soc: Soc, host: str, stages: int | None
) -> tuple[SegmentRange, ...]:
    """Return the division with the fastest slowest stage, no processor in two; exact.

    Raises NoPlan where every one shares processors.

    `host` merges; `stages` None tries every number of them, and prefers the fewest.
    """
    used = [processors_used(cost, host) for cost in trial.segments]
    together = frozenset().union(*used)
    times_us = [busy_time_us(cost, soc, together) for cost in trial.segments]
    counts = range(1, len(used) + 1) if stages is None else (stages,)
    count, borders = min(
        ((n, best_grouping(times_us, used, n)) for n in counts),
        key=lambda group: (group[1][0], group[0]),
    )
    if borders[0] == inf:
        shared = [name for name in sorted(together) if sum(name in names for names in used) > 1]
        raise NoPlan(
            f"no {count} stages of disjoint processors, plan of {trial.plan.model}, its segments"
            f" share {', '.join(shared) or 'none'}"
        )
    ends = [0, *borders[1]]
    return tuple(
        SegmentRange(
            first,
            last,
            tuple(sorted(frozenset().union(*used[first:last]))),
            sum(times_us[first:last]),
        )
        for first, last in pairwise(ends)
    )


def processors_used(cost: SegmentCost, host: str) -> frozenset[str]:
    """Return the processors of a segment, the merging host included."""
    return frozenset(
        [branch.processor for branch in cost.branches] + ([host] if len(cost.branches) > 1 else [])
    )


def with_contention(manifest: Manifest, trial: Trial, soc: Soc, host: str) -> Manifest:
    """Return a plan's bundle with the times that its branches take while all processors of the
    pipeline compute, as `busy_us` has them.
    """
    together = frozenset[str]().union(*(processors_used(cost, host) for cost in trial.segments))

    def one(sub: Subgraph) -> Subgraph:
        cost = trial.segments[sub.segment]
        compute_us = {branch.processor: branch.compute_us for branch in cost.branches}
        if (
            sub.role != "branch"
            or sub.processor not in sub.predicted_us
            or sub.processor not in compute_us
        ):
            return sub
        more_us = (contention_of(cost, soc, together) - 1) * compute_us[sub.processor]
        return replace(
            sub,
            predicted_us=sub.predicted_us
            | {sub.processor: sub.predicted_us[sub.processor] + more_us},
        )

    return replace(manifest, subgraphs=tuple(map(one, manifest.subgraphs)))


def contention_of(cost: SegmentCost, soc: Soc, together: frozenset[str]) -> float:
    """Return the factor by which a segment's compute grows while all processors of the pipeline
    compute.
    """
    names = frozenset(branch.processor for branch in cost.branches)
    alone = soc.contention_factor(names) if len(names) > 1 else 1.0
    return (soc.contention_factor(together) if len(together) > 1 else 1.0) / alone


def busy_time_us(cost: SegmentCost, soc: Soc, together: frozenset[str]) -> float:
    """Return a segment while all processors of the pipeline compute, not its own alone."""
    factor = contention_of(cost, soc, together)
    slowest = max(
        branch.transfer_in_us + factor * branch.compute_us + branch.transfer_out_us
        for branch in cost.branches
    )
    return slowest + cost.sync_us + cost.merge_us


def best_grouping(
    times_us: Sequence[float], used: Sequence[frozenset[str]], count: int
) -> tuple[float, tuple[int, ...]]:
    """Return smallest bottleneck and where stages end; infinite where there is none."""

    @cache
    def rest(first: int, taken: frozenset[str], remaining: int) -> tuple[float, tuple[int, ...]]:
        if first == len(times_us):
            return (0.0, ()) if not remaining else (inf, ())
        best: tuple[float, tuple[int, ...]] = (inf, ())
        own_processors: frozenset[str] = frozenset()
        for last in range(first + 1, len(times_us) + 1) if remaining else ():
            own_processors |= used[last - 1]
            if own_processors & taken:
                break
            bottleneck_us, ends = rest(last, taken | own_processors, remaining - 1)
            best = min(best, (max(bottleneck_us, sum(times_us[first:last])), (last, *ends)))
        return best

    return rest(0, frozenset(), count)


def pipeline_of(
    manifest: Manifest,
    runs: Sequence[SegmentRange],
    threads: int = 1,
    capacity: int = DEFAULT_CAPACITY,
    cores: Mapping[str, tuple[int, ...]] | None = None,
) -> PipelineSpec:
    """Return the pipeline of a branched bundle; `cores` by stage, where it is bound to some."""
    members = [
        tuple(sub.name for sub in manifest.subgraphs if run.first <= sub.segment < run.last)
        for run in runs
    ]
    stages = tuple(
        PipelineStage(
            f"s{number}",
            names,
            threads=threads,
            cores=(cores or {}).get(f"s{number}", ()),
            capacity=capacity,
        )
        for number, names in enumerate(members)
    )
    inputs = tuple(TensorDecl(port.name, torch_spec(port)) for port in manifest.inputs)
    return PipelineSpec(stages, inputs, tuple(port.name for port in manifest.outputs))
