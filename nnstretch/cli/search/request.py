"""The search that the arguments ask for."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from nnstretch.cli.arguments import quantity
from nnstretch.cli.loaded_model import load_model_argument, load_soc_of
from nnstretch.cli.search.arguments import MERGES
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from nnstretch.graph import Graph
    from nnstretch.soc import Soc
    from nnstretch.stretch.search.constraints import SegmentLimits
    from nnstretch.stretch.search.pareto import SearchRequest


def search_request(args: argparse.Namespace) -> SearchRequest:
    """Return the search that the arguments ask for. Raises BadInput when MODEL is a plan."""
    from nnstretch.stretch.search.pareto import SearchRequest

    soc = load_soc_of(args.soc)
    processors = args.processors or default_processors(soc)
    for name in processors:
        soc.processor(name)
    subject = load_model_argument(args.model, args.input, args.outputs)
    if subject.plan is not None:
        raise BadInput(
            f"cannot search {args.model}, it is a plan already, name its network"
            f" {subject.plan.model}"
        )
    graph = subject.graph
    limits = segment_limits(args, graph)
    bounds = {
        "min_macs": quantity(args.min_macs, graph.macs, "--min-macs", 0.0),
        "max_macs": quantity(args.max_macs, graph.macs, "--max-macs", math.inf),
        "min_params": quantity(args.min_params, graph.params, "--min-params", 0.0),
        "min_meetings": args.min_meetings,
    }
    max_params = None
    if args.max_params is not None:
        max_params = quantity(args.max_params, graph.params, "--max-params", math.inf)
    return SearchRequest(
        subject.analysis,
        soc,
        processors,
        limits,
        bounds,
        args.width_steps,
        MERGES[args.merge],
        args.fallback,
        max_params,
        args.time_limit,
        args.gap,
    )


def segment_limits(args: argparse.Namespace, graph: Graph) -> SegmentLimits:
    """Return the limits of segments that the arguments ask for.

    Raises BadInput where one is out of range.
    """
    from nnstretch.stretch.search.constraints import SegmentLimits

    max_fork = 1.0
    if args.max_fork is not None:
        fork_macs = quantity(args.max_fork, graph.macs, "--max-fork", math.inf)
        if fork_macs < 1:
            raise BadInput(
                f"--max-fork is {args.max_fork:.80}, command line, no work fits between two meeting"
                " points, write a share of the original's MACs such as 0.4x"
            )
        max_fork = min(1.0, fork_macs / max(1, graph.macs))
    return SegmentLimits(args.alpha, args.beta, args.min_depth, args.min_width, max_fork=max_fork)


def default_processors(soc: Soc) -> tuple[str, ...]:
    """Return cpu and dsp, the best pair on phones; without both, the chip's first two."""
    names = soc.processor_names
    return ("cpu", "dsp") if {"cpu", "dsp"} <= set(names) else names[:2]
