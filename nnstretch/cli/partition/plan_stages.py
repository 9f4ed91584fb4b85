"""`nnstretch partition PLAN.yaml`: stages that are themselves branched."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.common import check_writable, load_model_argument, load_soc_of, progress
from nnstretch.cli.partition.options import check_names, cores_of
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from nnstretch.export.subgraph_specs import ExportRequest
    from nnstretch.partition.branched_stages import SegmentRange
    from nnstretch.trial import Trial

ALONE = (
    "processors",
    "split",
    "replicas",
    "before",
    "after",
    "input",
    "measure",
    "python_replicas",
)
"""Options that a plan answers itself, or that only whole networks have."""


def plan_stages(args: argparse.Namespace) -> dict[str, Any]:
    """Return a plan's segments as stages of disjoint processors.

    Raises NoPlan where segments share too much, BadInput for options that do not fit.
    """
    from nnstretch.cli.export import load_weights_into
    from nnstretch.export.subgraph_specs import ExportRequest
    from nnstretch.partition.branched_stages import group_segments
    from nnstretch.stretch import stretch
    from nnstretch.stretch.cost.cost_model import CostModel, estimate_plan
    from nnstretch.stretch.lowering.lower import lower

    if options_given := [name for name in ALONE if getattr(args, name)] + (
        ["top"] if args.top > 1 else []
    ):
        raise BadInput(
            f"--{options_given[0].replace('_', '-')} with {args.model}, command line, a plan places"
            " its own branches"
        )
    out = check_writable(args.out, args.model, args.weights)
    subject, soc = load_model_argument(args.model), load_soc_of(args.soc)
    assert subject.plan is not None
    cost_model = CostModel(soc, args.fallback)
    trial = estimate_plan(lower(subject.analysis, subject.plan), soc, cost_model)
    request = ExportRequest(
        load_weights_into(subject, subject.plan, args.weights, stretch),
        subject.plan,
        trial=trial,
        soc=soc,
    )
    runs = group_segments(trial, soc, request.host, args.stages)
    check_names(args, len(runs))
    error = write(args, request, runs, out)
    bottleneck_us = max(run.latency_us for run in runs)
    return {
        "model": args.model,
        "soc": soc.name,
        "stages": [stage_json(trial, run) for run in runs],
        "bottleneck_ms": bottleneck_us / 1000,
        "balance": sum(run.latency_us for run in runs) / len(runs) / bottleneck_us,
        "latency_ms": sum(run.latency_us for run in runs) / 1000,
        "throughput_per_s": 1e6 / bottleneck_us,
        **dict.fromkeys(
            ("fastest", "speedup_vs_fastest", "ideal_ms", "share_of_ideal", "bound_ms")
        ),
        "single_ms": {},
        "proven": True,
        "why_open": "",
        "bundle": args.out,
        "cores": {name: list(bound) for name, bound in cores_of(args.cores).items()},
        "max_abs_error": error,
        "candidates": [],
        "fallbacks": cost_model.fallbacks,
        "provenance": soc.provenance,
        "calibrated": soc.calibrated,
    }


def write(
    args: argparse.Namespace, request: ExportRequest, runs: Sequence[SegmentRange], out: Path | None
) -> float | None:
    """Write the plan's own bundle, with its pipeline."""
    if out is None:
        return None
    from nnstretch.bundle.bundle import read_bundle, write_bundle
    from nnstretch.export.bundle import export
    from nnstretch.partition.branched_stages import pipeline_of, with_contention

    with progress("exporting") as tick:
        export(
            request.module, request.plan, out, trial=request.trial, soc=request.soc, progress=tick
        )
    bundle = read_bundle(out)
    manifest = (
        bundle.manifest
        if request.trial is None or request.soc is None
        else with_contention(bundle.manifest, request.trial, request.soc, request.host)
    )
    pipeline = pipeline_of(manifest, runs, args.threads, args.capacity, cores_of(args.cores))
    write_bundle(out, replace(manifest, pipeline=pipeline), bundle.files)
    return bundle.manifest.max_abs_error


def stage_json(trial: Trial, run: SegmentRange) -> dict[str, Any]:
    """Return a stage of a plan as JSON data."""
    segments = trial.segments[run.first : run.last]
    branches = [branch for segment in segments for branch in segment.branches]
    return {
        "processor": run.processors[0],
        "processors": list(run.processors),
        "start": segments[0].start,
        "end": segments[-1].end,
        "latency_ms": run.latency_us / 1000,
        "period_ms": run.latency_us / 1000,
        "transfer_in_ms": max(branch.transfer_in_us for branch in segments[0].branches) / 1000,
        "transfer_out_ms": max(branch.transfer_out_us for branch in segments[-1].branches) / 1000,
        "error_ms": (
            sum(max(branch.error_us for branch in segment.branches) for segment in segments) / 1000
        ),
        "macs": sum(branch.macs for branch in branches),
        "params": sum(branch.params for branch in branches),
        "branched": any(len(segment.branches) > 1 for segment in segments),
    }
