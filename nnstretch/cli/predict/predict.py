"""Predict latency on a chip, with the predictor's error beside it.

For a network: its latency on each processor alone. For a plan: every term of every segment; its
`kernels` are priced beside the other branches of their segment, so they add up to `compute_ms`.
For lists of deployed operators (--ops): the latency of every configuration in the file.

Kernels outside of what was measured (kind, window, channels, map, work) are named, and their errors
are wider: `outside` in the JSON, with the reason; `uncovered` are those of a kind never measured,
`unpriced` those without a price, by processor.

  nnstretch predict torchvision:resnet50 --soc mi9 --processors cpu,gpu,dsp
  nnstretch predict plan.yaml --soc mi9
  nnstretch predict --ops ops.csv --soc mi9
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from nnstretch.cli.arguments import (
    MODEL_HELP,
    SOC_HELP,
    add_fallback,
    add_inputs,
    names_of,
    naming_fallback,
)
from nnstretch.cli.loaded_model import LoadedModel, load_model_argument, load_soc_of
from nnstretch.cli.predict.kernel_prices import (
    PricedGraph,
    branches_beside_others,
    price_kernels,
    prices_json,
)
from nnstretch.cli.predict.show import show as show
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from nnstretch.soc import Soc


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help=MODEL_HELP)
    parser.add_argument(
        "--ops", metavar="OPS.csv", help="operator lists as deployed, instead of MODEL"
    )
    parser.add_argument("--soc", required=True, help=SOC_HELP)
    parser.add_argument(
        "--processors", type=names_of, help="e.g. cpu,gpu (default: all of the chip, or the plan's)"
    )
    add_fallback(parser)
    add_inputs(parser)


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data.

    Raises BadInput when the arguments contradict each other.
    """
    if (args.model is None) == (args.ops is None):
        raise BadInput("predict needs either MODEL or --ops, command line, give one of them")
    soc = load_soc_of(args.soc)
    if args.processors and len(set(args.processors)) != len(args.processors):
        raise BadInput(f"--processors is {','.join(args.processors)}, command line, name each once")
    for name in args.processors or ():
        soc.processor(name)
    if args.ops is not None:
        if args.processors or args.input or args.outputs or args.fallback:
            raise BadInput(
                "--ops stands alone, command line, an operator list names its own devices and"
                " shapes"
            )
        from nnstretch.predict import predict_ops

        return {
            "soc": soc.name,
            "plans": predict_ops(args.ops, soc),
            "provenance": soc.provenance,
            "calibrated": soc.calibrated,
            "noisy": soc.noisy,
        }
    subject = load_model_argument(args.model, args.input, args.outputs)
    if subject.plan is not None and args.processors:
        raise BadInput(
            f"--processors is {','.join(args.processors)}, command line, {args.model} is a plan and"
            " places its own branches"
        )
    if subject.plan is None:
        return network(subject, soc, args.processors, args.fallback)
    return plan_terms(subject, soc, args.fallback)


def network(
    subject: LoadedModel, soc: Soc, processors: tuple[str, ...] | None, fallback: str | None
) -> dict[str, Any]:
    """Predict a network on each processor and return it as JSON data."""
    from nnstretch.stretch.cost.cost_model import CostModel, uncovered_kernels

    names = processors or soc.processor_names
    cost_model = CostModel(soc, fallback)
    prices = price_kernels([PricedGraph(subject.graph, name) for name in names], cost_model)
    latency_ms: dict[str, float | None] = dict.fromkeys(names)
    error_ms = dict.fromkeys(names, 0.0)
    for row in prices.rows:
        error_ms[row["processor"]] += row["error_ms"]
    for name in names:
        if not uncovered_kernels(subject.graph, soc, (name,), cost_model):
            latency_ms[name] = cost_model.estimate_alone(subject.graph, name).latency_us / 1000
    return {
        "model": subject.spec,
        "soc": soc.name,
        "latency_ms": latency_ms,
        "error_ms": error_ms,
        **prices_json(prices, cost_model, names),
    }


def plan_terms(subject: LoadedModel, soc: Soc, fallback: str | None) -> dict[str, Any]:
    """Predict a plan and return its latency's terms as JSON data."""
    from nnstretch.files.trial_json import segments_json
    from nnstretch.stretch.cost.cost_model import CostModel, estimate_plan
    from nnstretch.stretch.lowering.lower import lower
    from nnstretch.stretch.search.constraints import MemoryLimit

    assert subject.plan is not None
    cost_model = CostModel(soc, fallback)
    for name in subject.plan.processors:
        soc.processor(name)
    lowered = lower(subject.analysis, subject.plan)
    with naming_fallback(fallback):
        trial = estimate_plan(lowered, soc, cost_model)
    prices = price_kernels(branches_beside_others(lowered, soc), cost_model)
    segments = segments_json(trial, lowered)
    doubts = ["plan or network have changed since the search"] if subject.is_stale else []
    if (violation := MemoryLimit(soc)(trial)) is not None:
        doubts.append(str(violation))
    return {
        "model": subject.spec,
        "soc": soc.name,
        "plan_latency_ms": trial.latency_us / 1000,
        "error_ms": sum(
            max(s["branches"], key=lambda b: b["latency_ms"])["error_ms"] for s in segments
        ),
        "macs": lowered.macs,
        "params": lowered.params,
        "segments": segments,
        **prices_json(prices, cost_model, subject.plan.processors),
        **({"doubts": doubts} if doubts else {}),
    }
