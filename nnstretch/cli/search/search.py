"""Search the fastest branched structure of a network for a chip, and prove it.

Meeting points, processors, depths, widths and merges are chosen together over the whole space. A
speed-up is shown beside the original on its fastest processor and beside a single-branch network of
the same MACs: how much is concurrency, and how much is a smaller network. Ctrl-C ends a search with
the best plan so far and what nothing can beat (exit status 130), as does --time-limit (status 0).
Where either comes before the first plan, the original stands in for it, and older files stay.

  nnstretch search torchvision:resnet18 --soc mi9 --processors cpu,dsp --out plan.yaml
  nnstretch search torchvision:resnet50 --soc mi9 --processors cpu,gpu,dsp --min-macs 0.885x --top 3
  nnstretch search torchvision:resnet18 --soc mi9 --explain layer2        # why branches may meet
  nnstretch search torchvision:resnet18 --soc mi9 --sensitivity           # to alpha and beta
  nnstretch search torchvision:resnet18 --soc mi9 --pareto macs,params --picture fronts.svg
  nnstretch search torchvision:resnet50 --soc examples/accelerator/phone  # a described NPU
  nnstretch search torchvision:resnet50 --soc mi9 --gap 0.01              # good enough, at once
  nnstretch search net.py:make --soc mi9 --max-fork 0.4x --min-meetings 4 --top 3 --out-dir plans

On a described accelerator the search adds up kernels; its ten best plans are priced again with
whole branches as scheduled there, and both figures are shown, in the order of the latter.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.output_path import check_apart, check_writable
from nnstretch.cli.progress import progress_stages
from nnstretch.cli.search.arguments import PARETO_STEPS
from nnstretch.cli.search.arguments import arguments as arguments
from nnstretch.cli.search.picture import draw_front
from nnstretch.cli.search.plan_files import check_folder, plan_paths, write_plans
from nnstretch.cli.search.request import search_request
from nnstretch.cli.search.result_json import as_json, explained_json, front_json, sensitivity_json
from nnstretch.cli.search.show import show as show
from nnstretch.cli.search.whole_branches import (
    PLANS,
    described_processors,
    whole_branches_json,
)
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from nnstretch.predict.described import DescribedAccelerator
    from nnstretch.stretch.search.pareto import ParetoFront, SearchRequest
    from nnstretch.stretch.search.search_result import SearchResult


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data."""
    picture, out = outputs(args)
    check_folder(args)
    try:
        question = search_request(args)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"there is no plan yet of {args.model}") from None
    if args.explain is not None:
        # An unknown cut is refused at once, not after a search.
        question.analysis.cut(args.explain)
    with progress_stages(ticking=True) as tick:
        described = described_processors(question.soc, question.processors)
        result = question({}, tick, max(args.top, PLANS) if described else args.top)
        check_takes_time(result, question)
        not_written = write_plans(args, question.analysis.graph, result, out)
        repriced = priced_whole(question, result, described, tick)
        result = replace(result, plans=result.plans[: args.top])
        answer = as_json(result, question.analysis, question.soc, args.model) | repriced
        answer |= views(args, question, result, picture, tick)
        not_written += answer.get("not_written", [])
        return answer | ({"not_written": not_written} if not_written else {})


def check_takes_time(result: SearchResult, question: SearchRequest) -> None:
    """Check that a network takes time at all. Raises BadInput where no branches can be faster."""
    if not result.original_us[result.fastest]:
        raise BadInput(
            f"cannot search {question.analysis.graph.name}, it takes no time on {result.fastest} of"
            f" {question.soc.name}, so no branches are faster; partition and export take it"
        )


def priced_whole(
    question: SearchRequest,
    result: SearchResult,
    described: Mapping[str, DescribedAccelerator],
    tick: Any,
) -> dict[str, Any]:
    """Price the best plans again where branches lie on described accelerators, as JSON data."""
    from nnstretch.predict.described import described_machines
    from nnstretch.stretch.cost.cost_model import CostModel

    if not described or result.interrupted:
        return {}
    tick("whole branches", 0, 1)
    cost_model = CostModel(question.soc, question.fallback)
    rows = whole_branches_json(result.plans, question.analysis, cost_model, tuple(described))
    machines = described_machines(question.soc, tuple(described))
    return {"whole_branches": rows, "accelerators": machines}


def views(
    args: argparse.Namespace,
    question: SearchRequest,
    result: SearchResult,
    picture: Path | None,
    tick: Any,
) -> dict[str, Any]:
    """Compute explanation, sensitivity and fronts where asked for; stop at an interrupt."""
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
            original = original_amount(question, measure)
            steps = args.pareto_steps or PARETO_STEPS
            front = trace_front(question, measure, original, steps, tick)
            fronts.append(front)
            stopped = front.interrupted
    if args.pareto:
        views_json["pareto"] = [front_json(f, result, question.soc) for f in fronts]
        missing = draw_front(fronts, result, question.analysis.graph, picture)
        views_json |= {"not_written": missing} if missing else {}
    return views_json | {"interrupted": stopped}


def original_amount(question: SearchRequest, measure: str) -> int:
    """Return the original's MACs or parameters, or how often branches may meet at most."""
    if measure == "meetings":
        return len(question.analysis.block_ends) - 1
    return int(getattr(question.analysis.graph, measure))


def explain_cut(cut: str, question: SearchRequest) -> list[dict[str, Any]]:
    """Return why branches may or may not meet at a cut, as JSON data."""
    from nnstretch.stretch.cost.cost_model import CostModel
    from nnstretch.stretch.search.explain import explain
    from nnstretch.stretch.search.space.search_space import SearchSpace

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
    if args.top < 1:
        raise BadInput(f"--top is {args.top}, command line, it must be 1 or more")
    steps = args.pareto_steps
    if steps is not None and not args.pareto:
        raise BadInput(
            f"--pareto-steps {steps} without --pareto, command line, there is no front, ask for one"
            " with --pareto macs"
        )
    if steps is not None and not 2 <= steps <= 1000:
        raise BadInput(f"--pareto-steps is {steps}, command line, it must be 2 to 1000")
    if "meetings" in args.pareto and args.processors and len(args.processors) == 1:
        raise BadInput(
            f"--pareto meetings with --processors {args.processors[0]}, command line, nothing"
            " branches on one processor"
        )
    # The first is the best plan, too.
    plans = plan_paths(args.out_dir, args.top)[1:]
    check_apart(args.out, args.picture, args.out_dir, *plans)
    sources = args.model, args.soc
    return check_writable(args.picture, *sources), check_writable(args.out, *sources)
