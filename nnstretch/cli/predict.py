"""Predict latency on a chip, with the predictor's error beside it.

For a network: its latency on each processor alone. For a plan: every term of every segment.
For lists of deployed operators (--ops): the latency of every configuration in the file.

Kernels outside of what was measured (kind, window, channels, map, work) are named, and their errors
are wider: `outside` in the JSON, with the reason; `uncovered` are those of a kind never measured.

  nnstretch predict torchvision:resnet50 --soc mi9 --processors cpu,gpu,dsp
  nnstretch predict plan.yaml --soc mi9
  nnstretch predict --ops ops.csv --soc mi9
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
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
from nnstretch.cli.progress import show_machines, warn_uncalibrated
from nnstretch.errors import BadInput, UnsupportedOp, name_first

if TYPE_CHECKING:
    from nnstretch.graph import Graph
    from nnstretch.kernel import Kernel
    from nnstretch.soc import Soc
    from nnstretch.stretch.cost.cost_model import CostModel


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
    prices = price_kernels([(subject.graph, names)], cost_model)
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


@dataclass
class KernelPrices:
    """Kernels of graphs on their processors, as JSON data."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """Every kernel that has a price."""
    outside: list[dict[str, Any]] = field(default_factory=list)
    """Kernels of `rows` outside the measured range, with the feature that is."""
    uncovered: dict[str, None] = field(default_factory=dict)
    """Names of kernels of a kind that was never measured, with a price or without."""

    def add(self, kernel: Kernel, processor: str, cost_model: CostModel) -> None:
        """Add a kernel on a processor."""
        where = {"name": kernel.name, "kind": kernel.kind, "processor": processor}
        try:
            estimate = cost_model.estimate_kernel(kernel, processor)
        except UnsupportedOp:
            self.uncovered[kernel.name] = None
            return
        row: dict[str, Any] = where | {
            "latency_ms": estimate.latency_us / 1000,
            "error_ms": estimate.error_us / 1000,
        }
        if estimate.interval_us is not None:
            row["interval_ms"] = [bound / 1000 for bound in estimate.interval_us]
        self.rows.append(row)
        if reason := cost_model.outside(kernel, processor):
            self.outside.append(where | {"reason": reason})


def price_kernels(
    graphs: Sequence[tuple[Graph, tuple[str, ...]]], cost_model: CostModel
) -> KernelPrices:
    """Price the kernels of graphs on each of their processors, as its backend fuses them."""
    from nnstretch.stretch.cost.cost_model import unmeasured_kinds

    prices = KernelPrices()
    for graph, names in graphs:
        for name in names:
            kernels = cost_model.fuse_kernels(graph, name)
            for kernel in kernels:
                prices.add(kernel, name, cost_model)
            unmeasured = unmeasured_kinds(kernels, cost_model.soc, name)
            prices.uncovered.update(dict.fromkeys(unmeasured))
    return prices


def prices_json(
    prices: KernelPrices, cost_model: CostModel, processors: Sequence[str]
) -> dict[str, Any]:
    """Return prices, with the provenance of the predictors, as JSON data."""
    from nnstretch.predict.described import described_machines

    soc = cost_model.soc
    described = described_machines(soc, processors)
    return {
        "kernels": prices.rows,
        "uncovered": list(prices.uncovered),
        "outside": prices.outside,
        "fallbacks": cost_model.fallbacks,
        "provenance": soc.provenance,
        "calibrated": soc.calibrated,
        "noisy": soc.noisy,
        **({"accelerators": described} if described else {}),
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
    graphs = [(branch.graph, (branch.branch.processor,)) for branch in lowered.branches]
    prices = price_kernels(graphs, cost_model)
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


def show(result: dict[str, Any], console: Any) -> None:
    """Print the result for people."""
    from rich.table import Table

    if "plans" in result:
        table = Table("configuration", "predicted ms")
        for name, ms in result["plans"].items():
            table.add_row(name, f"{ms:.2f}")
        console.print(table)
    elif "plan_latency_ms" in result:
        show_segments(result, console)
    else:
        table = Table("processor", "predicted ms", "± ms")
        for name, ms in result["latency_ms"].items():
            error_ms = result["error_ms"][name]
            table.add_row(name, *(("-", "-") if ms is None else (f"{ms:.2f}", f"{error_ms:.2f}")))
        console.print(table)
    show_doubts(result, console)
    for name, kind in result.get("fallbacks", {}).items():
        console.print(
            f"[yellow]never measured, priced as the nearest kind ({kind}):[/yellow] {name}"
        )
    show_machines(result, console)
    warn_uncalibrated(result, console)
    console.print(f"source: {result['provenance']}")


def show_segments(result: dict[str, Any], console: Any) -> None:
    """Print a plan's latency and its terms, segment by segment."""
    from rich.table import Table

    console.print(
        f"[bold]{result['model']}[/bold] on {result['soc']}: {result['plan_latency_ms']:.2f} ms"
        f" ± {result['error_ms']:.2f} predicted"
    )
    table = Table("segment", "ms", "sync", "merge", "branches (in + compute + out, ms)")
    for segment in result["segments"]:
        branches: list[str] = []
        for branch in segment["branches"]:
            terms = (branch[f"{term}_ms"] for term in ("transfer_in", "compute", "transfer_out"))
            branches.append(branch["processor"] + " " + " + ".join(f"{ms:.2f}" for ms in terms))
        times = (f"{segment[f'{term}_ms']:.2f}" for term in ("latency", "sync", "merge"))
        table.add_row(f"{segment['start']} -> {segment['end']}", *times, "  |  ".join(branches))
    console.print(table)


def show_doubts(result: dict[str, Any], console: Any) -> None:
    """Print what speaks against a plan, and kernels without a price or outside of the measured."""
    for doubt in result.get("doubts", ()):
        console.print(f"[yellow]note:[/yellow] {doubt}")
    doubts: dict[tuple[str, str, str], list[str]] = {}
    for row in result.get("outside", ()):
        what, _, numbers = row["reason"].partition(" ")
        key = row["processor"], row["kind"], what if numbers[:1].isdigit() else row["reason"]
        doubts.setdefault(key, []).append(f"{row['name']} ({row['reason']})")
    priced = {row["name"] for row in result.get("kernels", ())}
    if refused := [name for name in result.get("uncovered", ()) if name not in priced]:
        console.print(f"[red]not counted, never measured:[/red] {', '.join(refused)}")
    if doubts:
        console.print("[yellow]outside of what was measured, so errors are wider:[/yellow]")
    for (processor, kind, _), kernels in doubts.items():
        console.print(f"  {processor}: {kind} {name_first(kernels)}")
