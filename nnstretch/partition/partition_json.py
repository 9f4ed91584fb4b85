"""Partitions and branched stages as JSON data: the fields of the contract."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from nnstretch.graph import TensorSpec
from nnstretch.partition.branched_stages import SegmentRange
from nnstretch.partition.partition import Partition
from nnstretch.trial import Trial


def partition_json(partition: Partition) -> dict[str, Any]:
    """Return stages, bottleneck, balance, latency and throughput of a partition."""
    bottleneck_us = partition.bottleneck_us
    return {
        "stages": [stage_json(partition, number) for number in range(len(partition.stages))],
        "bottleneck_ms": bottleneck_us / 1000,
        "balance": partition.balance,
        "latency_ms": partition.latency_us / 1000,
        "throughput_per_s": ratio(1e6, bottleneck_us),
    }


def ratio(time_us: float | None, bottleneck_us: float) -> float | None:
    """Return a time over the bottleneck, None where one is not known or the other takes none."""
    return time_us / bottleneck_us if time_us is not None and bottleneck_us else None


def limits_json(partition: Partition) -> dict[str, Any]:
    """Return a partition beside single processors, the ideal and the lower bound."""
    bottleneck_us, ideal_us, fastest = (
        partition.bottleneck_us,
        partition.ideal_us,
        partition.fastest,
    )
    single_us = None if fastest is None else partition.single_us[fastest]
    return {
        "single_ms": {name: time_us / 1000 for name, time_us in partition.single_us.items()},
        "fastest": fastest,
        "speedup_vs_fastest": ratio(single_us, bottleneck_us),
        "ideal_ms": None if ideal_us is None else ideal_us / 1000,
        "share_of_ideal": ratio(ideal_us, bottleneck_us),
        "bound_ms": partition.bound_us / 1000,
        "proven": partition.proven,
        "why_open": partition.why_open,
        "split_at": "layers",
    }


def stage_json(partition: Partition, number: int) -> dict[str, Any]:
    """Return one stage; compute and copies are those of its slowest replica."""
    stage = partition.stages[number]
    subgraph = partition.subgraphs[number]
    slowest = max(stage.shares, key=lambda share: share.latency_us)
    specs = subgraph.specs()
    return {
        "processor": stage.shares[0].processor,
        "processors": [share.processor for share in stage.shares],
        "start": stage.start,
        "end": stage.end,
        "latency_ms": stage.latency_us / 1000,
        "period_ms": stage.period_us / 1000,
        "compute_ms": slowest.compute_us / 1000,
        "transfer_in_ms": slowest.transfer_in_us / 1000,
        "transfer_out_ms": slowest.transfer_out_us / 1000,
        "error_ms": slowest.error_us / 1000,
        "macs": stage.macs,
        "params": stage.params,
        "inputs": [tensor_json(value.name, value.spec) for value in subgraph.inputs],
        "outputs": [tensor_json(name, specs[name]) for name in subgraph.outputs],
    }


def tensor_json(name: str, spec: TensorSpec) -> dict[str, Any]:
    """Return name and shape of a tensor."""
    return {"name": name, "shape": list(spec.shape)}


def branched_json(trial: Trial, ranges: Sequence[SegmentRange]) -> dict[str, Any]:
    """Return branched stages with the fields of `partition_json` and `limits_json`."""
    latency_us = sum(stage.latency_us for stage in ranges)
    bottleneck_us = max(stage.latency_us for stage in ranges)
    return {
        "stages": [branched_stage_json(trial, stage) for stage in ranges],
        "bottleneck_ms": bottleneck_us / 1000,
        "balance": ratio(latency_us / len(ranges), bottleneck_us) or 1.0,
        "latency_ms": latency_us / 1000,
        "throughput_per_s": ratio(1e6, bottleneck_us),
        "single_ms": {},
        "fastest": None,
        "speedup_vs_fastest": None,
        "ideal_ms": None,
        "share_of_ideal": None,
        "bound_ms": None,
        "proven": True,
        "why_open": "",
        "split_at": "segments",
    }


def branched_stage_json(trial: Trial, stage: SegmentRange) -> dict[str, Any]:
    """Return one branched stage; a transfer is the longest of its first or last segment."""
    segments = trial.segments[stage.first : stage.last]
    branches = list(chain.from_iterable(segment.branches for segment in segments))
    errors_us = [max(branch.error_us for branch in segment.branches) for segment in segments]
    return {
        "processor": stage.processors[0],
        "processors": list(stage.processors),
        "start": segments[0].start,
        "end": segments[-1].end,
        "latency_ms": stage.latency_us / 1000,
        "period_ms": stage.latency_us / 1000,
        "transfer_in_ms": max(branch.transfer_in_us for branch in segments[0].branches) / 1000,
        "transfer_out_ms": max(branch.transfer_out_us for branch in segments[-1].branches) / 1000,
        "error_ms": sum(errors_us) / 1000,
        "macs": sum(branch.macs for branch in branches),
        "params": sum(branch.params for branch in branches),
        "branched": any(len(segment.branches) > 1 for segment in segments),
    }
