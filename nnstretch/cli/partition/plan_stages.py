"""`nnstretch partition PLAN.yaml`: stages that are themselves branched."""

from __future__ import annotations

import argparse
from typing import Any

from nnstretch.cli.loaded_model import load_model_argument, load_soc_of
from nnstretch.cli.output_path import check_writable
from nnstretch.cli.partition.options import check_stage_names, cores_of, stage_options_of
from nnstretch.cli.progress import progress
from nnstretch.errors import BadInput

NETWORK_ONLY = (
    "processors",
    "split",
    "replicas",
    "before",
    "after",
    "input",
    "outputs",
    "measure",
    "python_replicas",
)
"""Options that a plan answers itself, or that only whole networks have."""


def plan_stages(args: argparse.Namespace) -> dict[str, Any]:
    """Make a plan's segments stages of disjoint processors and return the result as JSON data.

    Raises NoPlan where segments share too many processors or exceed the memory of one, BadInput for
    options that do not fit.
    """
    from nnstretch.export.subgraph_specs import ExportRequest
    from nnstretch.partition.branched_stages import group_segments
    from nnstretch.partition.export import export_branched
    from nnstretch.partition.partition_json import branched_json
    from nnstretch.stretch.cost.cost_model import CostModel, estimate_plan
    from nnstretch.stretch.lowering.lower import lower

    check_plan_arguments(args)
    out = check_writable(args.out, args.model, args.weights, args.soc)
    subject = load_model_argument(args.model, weights=args.weights)
    soc = load_soc_of(args.soc)
    assert subject.plan is not None
    cost_model = CostModel(soc, args.fallback)
    lowered = lower(subject.analysis, subject.plan)
    trial = estimate_plan(lowered, soc, cost_model)
    module = subject.build_stretched(lowered, args.weights)
    request = ExportRequest(module, subject.plan, trial=trial, soc=soc)
    ranges = group_segments(trial, soc, request.host, args.stages)
    check_stage_names(args, len(ranges))
    error = None
    if out is not None:
        with progress("exporting") as tick:
            error = export_branched(request, trial, soc, ranges, out, stage_options_of(args), tick)
    return {
        "model": args.model,
        "soc": soc.name,
        **branched_json(trial, ranges),
        "bundle": args.out,
        "cores": {name: list(cores) for name, cores in cores_of(args.cores).items()},
        "max_abs_error": error,
        "candidates": [],
        "fallbacks": cost_model.fallbacks,
        "provenance": soc.provenance,
        "calibrated": soc.calibrated,
        "noisy": soc.noisy,
    }


def check_plan_arguments(args: argparse.Namespace) -> None:
    """Refuse options that only networks have. Raises BadInput."""
    options = [name for name in NETWORK_ONLY if getattr(args, name)]
    if args.top > 1:
        options.append("top")
    if options:
        raise BadInput(
            f"--{options[0].replace('_', '-')} with {args.model}, command line, a plan places"
            " its own branches"
        )
