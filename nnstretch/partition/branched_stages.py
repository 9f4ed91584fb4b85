"""Branched stages: a plan's segments divided among stages of disjoint processors.

Segments keep their branches: a stage is a range of segments, and its processors are all that their
branches and merges use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import inf

from nnstretch.bundle.manifest import Manifest
from nnstretch.bundle.pipeline_view import torch_spec
from nnstretch.errors import NoPlan
from nnstretch.pipeline import PipelineSpec, PipelineStage, TensorDecl
from nnstretch.soc import Soc
from nnstretch.trial import SegmentCost, Trial


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Segments first to last - 1 as one stage."""

    first: int
    last: int
    processors: tuple[str, ...]
    latency_us: float
    """One item through all of them while every other stage computes, too."""


def group_segments(
    trial: Trial, soc: Soc, host: str, stages: int | None
) -> tuple[SegmentRange, ...]:
    """Find the stages of disjoint processors with the smallest bottleneck; exact.

    `host` merges; `stages` None tries every number of them, and prefers the fewest. Raises NoPlan
    where segments share too many processors.
    """
    used = [processors_used(cost, host) for cost in trial.segments]
    all_processors = frozenset[str]().union(*used)
    times_us = [contended_us(cost, soc, all_processors) for cost in trial.segments]
    counts = range(1, len(used) + 1) if stages is None else (stages,)
    groupings = {count: best_grouping(times_us, used, count) for count in counts}
    count = min(groupings, key=lambda number: (groupings[number][0], number))
    bottleneck_us, ends = groupings[count]
    if bottleneck_us == inf:
        shared = [
            name for name in sorted(all_processors) if sum(name in names for names in used) > 1
        ]
        raise NoPlan(
            f"no {count} stages of disjoint processors, plan of {trial.plan.model}, its segments"
            f" share {', '.join(shared) or 'none'}"
        )
    ranges = []
    for first, last in pairwise([0, *ends]):
        processors = tuple(sorted(frozenset[str]().union(*used[first:last])))
        ranges.append(SegmentRange(first, last, processors, sum(times_us[first:last])))
    return tuple(ranges)


def processors_used(cost: SegmentCost, host: str) -> frozenset[str]:
    """Return the processors of a segment, the merging host included."""
    processors = frozenset(cost.processors)
    return processors | {host} if len(cost.branches) > 1 else processors


def with_contention(manifest: Manifest, trial: Trial, soc: Soc, host: str) -> Manifest:
    """Return a plan's manifest with the times of branches while the whole pipeline computes."""
    used = [processors_used(cost, host) for cost in trial.segments]
    all_processors = frozenset[str]().union(*used)
    subgraphs = []
    for sub in manifest.subgraphs:
        cost = trial.segments[sub.segment]
        compute_us = {branch.processor: branch.compute_us for branch in cost.branches}
        if sub.role == "branch" and sub.processor in sub.predicted_us.keys() & compute_us.keys():
            factor = contention_of(sub.processor, cost, soc, all_processors)
            more_us = (factor - 1) * compute_us[sub.processor]
            time_us = sub.predicted_us[sub.processor] + more_us
            sub = replace(sub, predicted_us=sub.predicted_us | {sub.processor: time_us})
        subgraphs.append(sub)
    return replace(manifest, subgraphs=tuple(subgraphs))


def contention_of(
    processor: str, cost: SegmentCost, soc: Soc, all_processors: frozenset[str]
) -> float:
    """Return the factor by which a branch's compute grows while the whole pipeline computes.

    Of a neighbour that the branch did not have in its segment it is the most that it can be.
    """
    names = frozenset(cost.processors)
    slowing = soc.slowing(processor)
    more_busy = max([1.0, *(n.busy_factor for n in slowing if n.beside in all_processors)])
    less_busy = max([1.0, *(n.busy_factor for n in slowing if n.beside in names)])
    segment_factor = soc.contention_factor(names) if len(names) > 1 else 1.0
    pipeline_factor = soc.contention_factor(all_processors) if len(all_processors) > 1 else 1.0
    return pipeline_factor / segment_factor * more_busy / less_busy


def contended_us(cost: SegmentCost, soc: Soc, all_processors: frozenset[str]) -> float:
    """Return a segment's latency while the whole pipeline computes."""
    times_us = []
    for branch in cost.branches:
        factor = contention_of(branch.processor, cost, soc, all_processors)
        times_us.append(branch.transfer_in_us + factor * branch.compute_us + branch.transfer_out_us)
    return max(times_us) + cost.sync_us + cost.merge_us


def best_grouping(
    times_us: Sequence[float], used: Sequence[frozenset[str]], count: int
) -> tuple[float, tuple[int, ...]]:
    """Return the smallest bottleneck and the end of each stage; infinite where there is none."""

    @cache
    def solve(first: int, taken: frozenset[str], remaining: int) -> tuple[float, tuple[int, ...]]:
        if first == len(times_us):
            return (inf, ()) if remaining else (0.0, ())
        best: tuple[float, tuple[int, ...]] = (inf, ())
        processors: frozenset[str] = frozenset()
        for last in range(first + 1, len(times_us) + 1) if remaining else ():
            processors |= used[last - 1]
            if processors & taken:
                break
            bottleneck_us, ends = solve(last, taken | processors, remaining - 1)
            best = min(best, (max(bottleneck_us, sum(times_us[first:last])), (last, *ends)))
        return best

    return solve(0, frozenset(), count)


def pipeline_of(
    manifest: Manifest,
    ranges: Sequence[SegmentRange],
    threads: int,
    capacity: int,
    cores: Mapping[str, tuple[int, ...]],
) -> PipelineSpec:
    """Return the pipeline of a branched bundle; `cores` are CPU cores by stage."""
    stages = []
    for number, stage in enumerate(ranges):
        name = f"s{number}"
        segments = range(stage.first, stage.last)
        members = tuple(sub.name for sub in manifest.subgraphs if sub.segment in segments)
        cores_of_stage = cores.get(name, ())
        stages.append(
            PipelineStage(name, members, threads=threads, cores=cores_of_stage, capacity=capacity)
        )
    inputs = tuple(TensorDecl(port.name, torch_spec(port)) for port in manifest.inputs)
    return PipelineSpec(tuple(stages), inputs, manifest.output_names)
