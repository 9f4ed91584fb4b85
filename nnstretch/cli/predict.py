"""Predict latency on a chip, with the predictor's error beside it.

For a network: its latency on each processor alone. For a plan: every term of every segment.
For lists of deployed operators (--ops): the latency of every configuration in the file.

  nnstretch predict torchvision:resnet50 --soc mi9 --processors cpu,gpu,dsp
  nnstretch predict plan.yaml --soc mi9
  nnstretch predict --ops ops.csv --soc mi9
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nnstretch.cli.subjects import (
    MODEL_HELP,
    SOC_HELP,
    Subject,
    add_fallback,
    load_soc_of,
    load_subject,
    names_of,
    shape_of,
    warn_uncalibrated,
)
from nnstretch.errors import BadInput, UnsupportedOp

if TYPE_CHECKING:
    from nnstretch.soc import Soc
    from nnstretch.stretch.pricing import Pricer

SUMMARY = "latency of a network, a plan or operator lists on a chip"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help=MODEL_HELP)
    parser.add_argument("--ops", metavar="OPS.csv", help="operator lists as deployed, instead of MODEL")
    parser.add_argument("--soc", required=True, help=SOC_HELP)
    parser.add_argument("--processors", type=names_of, default=None, help="e.g. cpu,gpu (default: all of the chip, or the plan's)")
    add_fallback(parser)
    parser.add_argument("--input", type=shape_of, default=None, help="input shape, NCHW")


def main(args: argparse.Namespace) -> dict[str, Any]:
    if (args.model is None) == (args.ops is None):
        raise BadInput("predict needs either MODEL or --ops, command line, give one of them")
    soc = load_soc_of(args.soc)
    if args.processors and len(set(args.processors)) != len(args.processors):
        raise BadInput(f"--processors is {','.join(args.processors)}, command line, name each once")
    for name in args.processors or ():
        soc.processor(name)
    if args.ops is not None:
        if args.processors or args.input or args.fallback:
            raise BadInput("--ops stands alone, command line, an operator list names its own devices and shapes")
        from nnstretch.predict import predict_ops

        return {"soc": soc.name, "plans": predict_ops(args.ops, soc), "provenance": soc.provenance, "calibrated": soc.calibrated}
    subject = load_subject(args.model, args.input)
    if subject.plan is not None and args.processors:
        raise BadInput(f"--processors is {','.join(args.processors)}, command line, {args.model} is a plan and places its own branches")
    if subject.plan is None:
        return network(subject, soc, args.processors, args.fallback)
    return plan_terms(subject, soc, args.fallback)


def network(subject: Subject, soc: Soc, processors: tuple[str, ...] | None, fallback: str | None) -> dict[str, Any]:
    from nnstretch.stretch.lower import lower, unbranched
    from nnstretch.stretch.pricing import Pricer, price, uncovered

    names = processors or tuple(p.name for p in soc.processors)
    pricer = Pricer(soc, fallback)
    missing = uncovered(subject.graph, soc, names, pricer)
    rows = kernel_rows([(subject.graph, names)], pricer)
    gone = {name: uncovered(subject.graph, soc, (name,), pricer) for name in names}
    latency_ms: dict[str, float | None] = dict.fromkeys(names)
    for name in names:
        if not gone[name]:
            latency_ms[name] = price(lower(subject.stretcher, unbranched(subject.graph, subject.spec, name)), soc, pricer).latency_us / 1000
    error_ms = {name: sum(row["error_ms"] for row in rows if row["processor"] == name) for name in names}
    return {
        "model": subject.spec, "soc": soc.name, "latency_ms": latency_ms, "error_ms": error_ms, "kernels": rows,
        "uncovered": list(missing), "fallbacks": pricer.replaced, "provenance": soc.provenance, "calibrated": soc.calibrated,
    }  # fmt: skip


def kernel_rows(graphs: Sequence[tuple[Any, tuple[str, ...]]], pricer: Pricer) -> list[dict[str, Any]]:
    """One row a kernel and processor, as its backend fuses them; what is uncovered has no row."""
    rows: list[dict[str, Any]] = []
    for graph, name in ((graph, name) for graph, names in graphs for name in names):
        for kernel in pricer.kernels(graph, name):
            try:
                estimate = pricer.kernel(kernel, name)
            except UnsupportedOp:
                continue
            ms = estimate.latency_us / 1000
            row = {"name": kernel.name, "kind": kernel.kind, "processor": name, "latency_ms": ms, "error_ms": estimate.error_us / 1000}
            if estimate.interval_us is not None:
                row["interval_ms"] = [bound / 1000 for bound in estimate.interval_us]
            rows.append(row)
    return rows


def plan_terms(subject: Subject, soc: Soc, fallback: str | None) -> dict[str, Any]:
    from nnstretch.cli.tables import segments_json
    from nnstretch.stretch.lower import lower
    from nnstretch.stretch.pricing import Pricer, price

    assert subject.plan is not None
    pricer = Pricer(soc, fallback)
    for name in subject.plan.processors:
        soc.processor(name)
    lowered = lower(subject.stretcher, subject.plan)
    trial = price(lowered, soc, pricer)
    graphs = [(b.graph, (b.branch.processor,)) for s in lowered.segments for b in s.branches]
    rows = kernel_rows(graphs, pricer)
    segments = segments_json(trial, lowered)
    return {
        "model": subject.spec, "soc": soc.name, "plan_latency_ms": trial.latency_us / 1000,
        "error_ms": sum(max(s["branches"], key=lambda b: b["latency_ms"])["error_ms"] for s in segments),
        "macs": lowered.macs, "params": lowered.params, "segments": segments, "kernels": rows, "uncovered": [],
        "fallbacks": pricer.replaced, "provenance": soc.provenance, "calibrated": soc.calibrated,
    }  # fmt: skip


def show(result: dict[str, Any], console: Any) -> None:
    from rich.table import Table

    if "plans" in result:
        table = Table("configuration", "predicted ms")
        for name, ms in result["plans"].items():
            table.add_row(name, f"{ms:.2f}")
    elif "plan_latency_ms" in result:
        console.print(
            f"[bold]{result['model']}[/bold] on {result['soc']}: {result['plan_latency_ms']:.2f} ms ± {result['error_ms']:.2f} predicted"
        )
        table = Table("segment", "ms", "sync", "merge", "branches (in + compute + out, ms)")
        for s in result["segments"]:
            parts = "  |  ".join(
                f"{b['processor']} {b['transfer_in_ms']:.2f} + {b['compute_ms']:.2f} + {b['transfer_out_ms']:.2f}" for b in s["branches"]
            )
            table.add_row(f"{s['start']} -> {s['end']}", f"{s['latency_ms']:.2f}", f"{s['sync_ms']:.2f}", f"{s['merge_ms']:.2f}", parts)
    else:
        table = Table("processor", "predicted ms", "± ms")
        for name, ms in result["latency_ms"].items():
            table.add_row(name, *(("-", "-") if ms is None else (f"{ms:.2f}", f"{result['error_ms'][name]:.2f}")))
    console.print(table)
    if result.get("uncovered"):
        console.print(f"[red]not counted, never measured:[/red] {', '.join(result['uncovered'])}")
    for name, kind in result.get("fallbacks", {}).items():
        console.print(f"[yellow]never measured, priced as the nearest kind ({kind}):[/yellow] {name}")
    warn_uncalibrated(result, console)
    console.print(f"source: {result['provenance']}")
