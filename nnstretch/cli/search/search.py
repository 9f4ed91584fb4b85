"""Search the fastest branched structure of a network for a chip, and prove it.

Meeting points, processors, depths, widths and merges are chosen together over the whole space. A
speed-up is shown beside the original on its fastest processor and beside a single-branch network of
the same MACs: how much is concurrency, and how much is a smaller network. Ctrl-C ends a search with
the best plan so far and what nothing can beat (exit status 130).

  nnstretch search torchvision:resnet18 --soc mi9 --processors cpu,dsp --out plan.yaml
  nnstretch search torchvision:resnet50 --soc mi9 --processors cpu,gpu,dsp --min-macs 0.885x --top 3
  nnstretch search torchvision:resnet18 --soc mi9 --explain layer2        # why branches may, or may
  not, meet there
  nnstretch search torchvision:resnet18 --soc mi9 --sensitivity           # what alpha and beta
  change
  nnstretch search torchvision:resnet18 --soc mi9 --pareto macs,params --picture fronts.svg
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.arguments import SOC_HELP, add_fallback, add_model, names_of, quantity, shape_of
from nnstretch.cli.loaded_model import load_model_argument, load_soc_of
from nnstretch.cli.output_path import check_writable
from nnstretch.cli.progress import progress_stages
from nnstretch.cli.search.output import (
    as_json,
    explained_json,
    front_json,
    panel_of,
    sensitivity_json,
    show,
)
from nnstretch.errors import BadInput, NoPlan

if TYPE_CHECKING:
    from nnstretch.graph import Graph
    from nnstretch.soc import Soc
    from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
    from nnstretch.stretch.search.constraints import SegmentLimits
    from nnstretch.stretch.search.pareto import ParetoFront
    from nnstretch.stretch.search.search_result import SearchResult

SUMMARY = "the proven fastest branched structure for a chip"
MERGES = {"concat": ("concat",), "project": ("project",), "both": ("concat", "project")}
MEASURES = ("macs", "params")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add_model(parser)
    parser.add_argument("--soc", required=True, help=SOC_HELP)
    parser.add_argument(
        "--processors",
        type=names_of,
        default=None,
        help=(
            "any of the chip's (default cpu,dsp, or its first two); a segment may run on one of"
            " them, or in branches on any set of them"
        ),
    )
    parser.add_argument("--input", type=shape_of, default=None, help="input shape, NCHW")
    parser.add_argument(
        "--top",
        type=int,
        default=1,
        metavar="K",
        help=(
            "plans to list: the best, and K - 1 good ones that differ in where they branch, on"
            " what, or how they merge"
        ),
    )
    parser.add_argument(
        "--out",
        metavar="PLAN.yaml",
        default=None,
        help="where to write the best plan; also after Ctrl-C",
    )
    add_space(parser)
    add_bounds(parser)
    add_fallback(parser)
    add_views(parser)


def add_space(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the search space."""
    group = parser.add_argument_group("what is searched")
    group.add_argument(
        "--width-steps",
        type=int,
        default=None,
        metavar="N",
        help=(
            "widths tried per branch, evenly spread; faster and coarser (default: every multiple of"
            " 8 channels)"
        ),
    )
    group.add_argument(
        "--merge",
        choices=sorted(MERGES),
        default="both",
        help=(
            "how branches meet: concat lines their channels up, so a segment may come out narrower"
            " or wider; project brings each to its slice of the original width by a 1x1 convolution"
            " (default both)"
        ),
    )
    group.add_argument(
        "--alpha",
        type=float,
        default=0.5,
        help=(
            "copies, synchronising and merging of a segment over its original latency, at most"
            " (default 0.5); lower is stricter"
        ),
    )
    group.add_argument(
        "--beta",
        type=float,
        default=0.8,
        help=(
            "latency of a branch over the original segment's on the fastest processor, at most"
            " (default 0.8); lower is stricter"
        ),
    )
    group.add_argument(
        "--min-depth",
        type=float,
        default=0.3,
        help="share of blocks that a branch keeps, at least (default 0.3)",
    )
    group.add_argument(
        "--min-width",
        type=float,
        default=0.2,
        help="share of channels that a branch keeps, at least (default 0.2)",
    )


def add_bounds(parser: argparse.ArgumentParser) -> None:
    """Add the limits of the whole plan."""
    group = parser.add_argument_group(
        "what the whole network must keep",
        "absolute (1.6e9), or a ratio to the original's (0.885x)",
    )
    group.add_argument(
        "--min-macs",
        default=None,
        metavar="N|Rx",
        help="MACs of the whole plan at least; more of them, more accuracy",
    )
    group.add_argument(
        "--max-macs", default=None, metavar="N|Rx", help="MACs of the whole plan at most"
    )
    group.add_argument(
        "--min-params", default=None, metavar="N|Rx", help="parameters of the whole plan at least"
    )


def add_views(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that ask for more than plans."""
    group = parser.add_argument_group("more than the best plan")
    group.add_argument(
        "--explain",
        metavar="CUT",
        default=None,
        help=(
            "for every segment that ends at this cut: the rule that forbids branches there, with"
            " its demand and limit, or how many branches are left and how fast the best are;"
            " `nnstretch inspect MODEL` lists the cuts"
        ),
    )
    group.add_argument(
        "--sensitivity",
        action="store_true",
        help="best latency for every pair of several alphas and betas: twelve searches",
    )
    group.add_argument(
        "--pareto",
        type=measures_of,
        default=(),
        metavar="macs,params",
        help=(
            "the front of latency against MACs, parameters, or each: one search a step, from 0.5x"
            " to 1.2x of the original's"
        ),
    )
    group.add_argument(
        "--pareto-steps",
        type=int,
        default=8,
        metavar="N",
        help="searches behind a front (default 8)",
    )
    group.add_argument(
        "--picture", metavar="FILE.svg", default=None, help="draw the fronts of --pareto"
    )


def measures_of(text: str) -> tuple[str, ...]:
    """Parse the measures of --pareto. Raises ArgumentTypeError when one is unknown."""
    names = tuple(dict.fromkeys(names_of(text)))
    if unknown := [name for name in names if name not in MEASURES]:
        raise argparse.ArgumentTypeError(
            f"{unknown[0]!r} is no measure of a front, it is macs or params; memory and energy are"
            " columns of both"
        )
    return names


@dataclass(frozen=True)
class SearchRequest:
    """What is searched, everything settled; called, it searches.

    `settings` replace limits and tighten bounds.
    """

    analysis: NetworkAnalysis
    soc: Soc
    processors: tuple[str, ...]
    limits: SegmentLimits
    bounds: Mapping[str, float]
    width_steps: int | None
    merges: tuple[str, ...]
    fallback: str | None

    def __call__(self, settings: Mapping[str, float], progress: Any, top: int = 1) -> SearchResult:
        from nnstretch.stretch.search.search import search

        limits = replace(
            self.limits,
            **{name: value for name, value in settings.items() if name not in self.bounds},
        )
        bounds = {
            name: max(value, settings.get(name, value)) for name, value in self.bounds.items()
        }
        if settings and bounds["min_macs"] > bounds["max_macs"]:
            raise NoPlan(
                f"MACs cannot be at least {bounds['min_macs']:.4g} and at most"
                f" {bounds['max_macs']:.4g}, search bounds"
            )
        return search(
            self.analysis,
            self.soc,
            self.processors,
            limits,
            top=top,
            width_steps=self.width_steps,
            progress=progress,
            fallback=self.fallback,
            merges=self.merges,
            **bounds,
        )


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data."""
    from nnstretch.files.plan_prediction import predicted_section
    from nnstretch.files.plan_yaml import write_plan
    from nnstretch.predict.load_soc import soc_sha256

    picture, out = outputs(args)
    question = search_request(args)
    if args.explain is not None:
        question.analysis.cut(args.explain)  # refused at once, not after a search
    with progress_stages(ticking=True) as tick:
        result = question({}, tick, args.top)
        if out is not None:
            trial = result.plans[0].trial
            predicted = None
            if args.fallback is None:  # other verbs refuse kernels that were never measured
                graph = question.analysis.graph
                predicted = predicted_section(trial, graph, soc_sha256(args.soc))
            write_plan(out, trial.plan, predicted)
        return as_json(result, question.analysis, question.soc, args.model) | views(
            args, question, result, picture, tick
        )


def views(
    args: argparse.Namespace,
    question: SearchRequest,
    result: SearchResult,
    picture: Path | None,
    tick: Any,
) -> dict[str, Any]:
    """Compute what was asked for beside the best plan; nothing more after an interrupt."""
    from nnstretch.stretch.search.pareto import sensitivity, trace_front

    views_json: dict[str, Any] = {}
    stopped = result.interrupted
    if args.explain is not None and not stopped:
        tick(f"explaining {args.explain}", 0, 1)
        try:
            views_json["explained"] = explain_cut(args.explain, question)
        except KeyboardInterrupt:
            stopped = True
    if args.sensitivity and not stopped:
        rows, stopped = sensitivity(question, tick)
        views_json["sensitivity"] = [sensitivity_json(row) for row in rows]
    fronts: list[ParetoFront] = []
    for measure in () if stopped else args.pareto:
        if not stopped:
            fronts.append(
                trace_front(
                    question,
                    measure,
                    getattr(question.analysis.graph, measure),
                    args.pareto_steps,
                    tick,
                )
            )
            stopped = fronts[-1].interrupted
    if args.pareto:
        views_json["pareto"] = [front_json(f, result, question.soc) for f in fronts]
        draw_front(fronts, result, question.analysis.graph, picture)
    return views_json | {"interrupted": stopped}


def draw_front(
    fronts: list[ParetoFront], result: SearchResult, graph: Graph, picture: Path | None
) -> None:
    """Draw the fronts into a file where one is asked for."""
    if picture is not None and any(f.points for f in fronts):
        from nnstretch.files.atomic import write_text
        from nnstretch.report.charts.pareto_chart import front_picture

        write_text(
            picture,
            front_picture(tuple(panel_of(f, result, graph) for f in fronts if f.points)) + "\n",
        )


def explain_cut(cut: str, question: SearchRequest) -> list[dict[str, Any]]:
    """Return why branches may or may not meet at a cut, as JSON data."""
    from nnstretch.stretch.cost.cost_model import CostModel
    from nnstretch.stretch.search.explain import explain
    from nnstretch.stretch.search.search_space import SearchSpace

    cost_model = CostModel(question.soc, question.fallback)
    space = SearchSpace(
        question.analysis,
        cost_model,
        question.processors,
        question.limits,
        question.width_steps,
        question.merges,
    )
    return explained_json(explain(space, cut))


def outputs(args: argparse.Namespace) -> tuple[Path | None, Path | None]:
    """Return the paths of the picture and the plan. Raises BadInput before any long work."""
    if args.picture is not None and not args.pareto:
        raise BadInput(
            f"cannot draw {args.picture}, there is no front, ask for one with --pareto macs"
        )
    if args.picture is not None and not args.picture.endswith(".svg"):
        raise BadInput(f"cannot draw {args.picture}, --picture, its name must end in .svg")
    if not 2 <= args.pareto_steps <= 1000:
        raise BadInput(f"--pareto-steps is {args.pareto_steps}, command line, it must be 2 to 1000")
    if args.picture is not None and args.picture == args.out:
        raise BadInput(f"cannot write {args.out}, --out and --picture, they need a file each")
    return check_writable(args.picture, args.model), check_writable(args.out, args.model)


def search_request(args: argparse.Namespace) -> SearchRequest:
    """Return the search that the arguments ask for. Raises BadInput when MODEL is a plan."""
    from nnstretch.stretch.search.constraints import SegmentLimits

    soc = load_soc_of(args.soc)
    limits = SegmentLimits(args.alpha, args.beta, args.min_depth, args.min_width)
    processors = args.processors or default_processors(soc)
    for name in processors:
        soc.processor(name)
    subject = load_model_argument(args.model, args.input)
    if subject.plan is not None:
        raise BadInput(
            f"cannot search {args.model}, it is a plan already, name its network"
            f" {subject.plan.model}"
        )
    graph = subject.graph
    bounds = {
        "min_macs": quantity(args.min_macs, graph.macs, "--min-macs", 0.0),
        "max_macs": quantity(args.max_macs, graph.macs, "--max-macs", math.inf),
        "min_params": quantity(args.min_params, graph.params, "--min-params", 0.0),
    }
    return SearchRequest(
        subject.analysis,
        soc,
        processors,
        limits,
        bounds,
        args.width_steps,
        MERGES[args.merge],
        args.fallback,
    )


def default_processors(soc: Soc) -> tuple[str, ...]:
    """Return the pair that wins on phones, where the chip has it; else its first two."""
    names = tuple(processor.name for processor in soc.processors)
    return ("cpu", "dsp") if {"cpu", "dsp"} <= set(names) else names[:2]


__all__ = ["SUMMARY", "arguments", "default_processors", "main", "show"]
