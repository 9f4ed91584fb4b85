"""Branched stages: a plan's segments divided among stages of disjoint processors.

Segments keep their branches: a stage is a range of segments, and its processors are all that their
branches and merges use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, pairwise
from math import inf

from nnstretch.bundle.manifest import Manifest
from nnstretch.bundle.pipeline_view import torch_spec
from nnstretch.errors import NoPlan
from nnstretch.pipeline import PipelineSpec, PipelineStage, TensorDecl
from nnstretch.soc import Soc
from nnstretch.stretch.search.constraints import MemoryLimit
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
    where segments share too many processors, or their weights exceed the memory of one.
    """
    if (violation := MemoryLimit(soc)(trial)) is not None:
        raise NoPlan(f"no stages, plan of {trial.plan.model}, {violation}")
    used = [processors_used(cost, host) for cost in trial.segments]
    all_processors = frozenset[str]().union(*used)

    @cache
    def stage_us(first: int, last: int) -> float:
        elsewhere = all_processors.difference(*used[first:last])
        return sum(contended_us(cost, soc, elsewhere) for cost in trial.segments[first:last])

    counts = range(1, len(used) + 1) if stages is None else (stages,)
    groupings = {count: best_grouping(stage_us, used, count) for count in counts}
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
        ranges.append(SegmentRange(first, last, processors, stage_us(first, last)))
    return tuple(ranges)


def processors_used(cost: SegmentCost, host: str) -> frozenset[str]:
    """Return the processors of a segment, the merging host included."""
    processors = frozenset(cost.processors)
    return processors | {host} if len(cost.branches) > 1 else processors


def with_contention(
    manifest: Manifest, trial: Trial, soc: Soc, ranges: Sequence[SegmentRange]
) -> Manifest:
    """Return a plan's manifest with the times of branches while the whole pipeline computes."""
    all_processors = frozenset(chain.from_iterable(stage.processors for stage in ranges))
    elsewhere: dict[int, frozenset[str]] = {}
    for stage in ranges:
        segments = range(stage.first, stage.last)
        elsewhere |= dict.fromkeys(segments, all_processors.difference(stage.processors))
    subgraphs = []
    for sub in manifest.subgraphs:
        cost = trial.segments[sub.segment]
        compute_us = {branch.processor: branch.compute_us for branch in cost.branches}
        if sub.role == "branch" and sub.processor in sub.predicted_us.keys() & compute_us.keys():
            factor = contention_of(sub.processor, cost, soc, elsewhere[sub.segment])
            more_us = (factor - 1) * compute_us[sub.processor]
            time_us = sub.predicted_us[sub.processor] + more_us
            sub = replace(sub, predicted_us=sub.predicted_us | {sub.processor: time_us})
        subgraphs.append(sub)
    return replace(manifest, subgraphs=tuple(subgraphs))


def contention_of(processor: str, cost: SegmentCost, soc: Soc, elsewhere: frozenset[str]) -> float:
    """Return the factor by which a branch's compute grows while other stages compute elsewhere.

    Its own stage holds one item: what of it the segment does not use is idle. Of a neighbour that
    the branch did not have in its segment it is the most that it can be.
    """
    names = frozenset(cost.processors)
    busy = names | elsewhere
    slowing = soc.slowing(processor)
    more_busy = max([1.0, *(n.busy_factor for n in slowing if n.beside in busy)])
    less_busy = max([1.0, *(n.busy_factor for n in slowing if n.beside in names)])
    segment_factor = soc.contention_factor(names) if len(names) > 1 else 1.0
    pipeline_factor = soc.contention_factor(busy) if len(busy) > 1 else 1.0
    return pipeline_factor / segment_factor * more_busy / less_busy


def contended_us(cost: SegmentCost, soc: Soc, elsewhere: frozenset[str]) -> float:
    """Return a segment's latency while other stages compute elsewhere."""
    times_us = []
    for branch in cost.branches:
        factor = contention_of(branch.processor, cost, soc, elsewhere)
        times_us.append(branch.transfer_in_us + factor * branch.compute_us + branch.transfer_out_us)
    return max(times_us) + cost.sync_us + cost.merge_us


def best_grouping(
    stage_us: Callable[[int, int], float], used: Sequence[frozenset[str]], count: int
) -> tuple[float, tuple[int, ...]]:
    """Return the smallest bottleneck and the end of each stage; infinite where there is none.

    `stage_us` is the time of segments first to last - 1 as one stage.
    """

    @cache
    def solve(first: int, taken: frozenset[str], remaining: int) -> tuple[float, tuple[int, ...]]:
        if first == len(used):
            return (inf, ()) if remaining else (0.0, ())
        best: tuple[float, tuple[int, ...]] = (inf, ())
        processors: frozenset[str] = frozenset()
        for last in range(first + 1, len(used) + 1) if remaining else ():
            processors |= used[last - 1]
            if processors & taken:
                break
            bottleneck_us, ends = solve(last, taken | processors, remaining - 1)
            best = min(best, (max(bottleneck_us, stage_us(first, last)), (last, *ends)))
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
