"""Search the fastest branched structure of a network for a chip, and prove it.

Meeting points, depths and widths are chosen together over the whole space. A speed-up is shown
beside the original on its fastest processor and beside a single-branch network of the same MACs:
how much is concurrency, and how much is a smaller network.

  nnstretch search torchvision:resnet18 --soc mi9 --processors cpu,dsp --out plan.yaml
  nnstretch search torchvision:resnet50 --soc mi9 --processors cpu,gpu --min-macs 0.885x --top 3
"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from nnstretch.cli.subjects import (
    SOC_HELP,
    add_fallback,
    add_model,
    load_soc_of,
    load_subject,
    names_of,
    progress,
    quantity,
    shape_of,
    warn_uncalibrated,
    writable,
)
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from nnstretch.soc import Soc
    from nnstretch.stretch.optimum import Found, SearchResult

SUMMARY = "the proven fastest branched structure for a chip"


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--soc", required=True, help=SOC_HELP)
    parser.add_argument(
        "--processors",
        type=names_of,
        default=None,
        help="default cpu,dsp, or the chip's first two; of more than two, every pair is tried per segment",
    )
    parser.add_argument("--input", type=shape_of, default=None, help="input shape, NCHW")
    parser.add_argument("--top", type=int, default=1, metavar="K", help="how many plans to list")
    parser.add_argument(
        "--alpha", type=float, default=0.5, help="communication of a segment over its original latency, at most (default 0.5)"
    )
    parser.add_argument("--beta", type=float, default=0.8, help="latency of a branch over the original segment's, at most (default 0.8)")
    parser.add_argument("--min-depth", type=float, default=0.3, help="share of blocks that a branch keeps, at least (default 0.3)")
    parser.add_argument("--min-width", type=float, default=0.2, help="share of channels that a branch keeps, at least (default 0.2)")
    parser.add_argument("--min-macs", default=None, metavar="N|Rx", help="MACs of the whole plan at least, absolute or as 0.885x")
    parser.add_argument("--max-macs", default=None, metavar="N|Rx", help="MACs of the whole plan at most")
    parser.add_argument("--min-params", default=None, metavar="N|Rx", help="parameters of the whole plan at least")
    parser.add_argument("--width-steps", type=int, default=10, metavar="N", help="widths tried per branch (default 10)")
    add_fallback(parser)
    parser.add_argument("--out", metavar="PLAN.yaml", default=None, help="where to write the best plan")


def main(args: argparse.Namespace) -> dict[str, Any]:
    from nnstretch.planfile import write_plan
    from nnstretch.stretch.constraints import Limits
    from nnstretch.stretch.optimum import search

    out = writable(args.out, args.model)
    soc = load_soc_of(args.soc)
    limits = Limits(args.alpha, args.beta, args.min_depth, args.min_width)
    processors = args.processors or usual(soc)
    for name in processors:
        soc.processor(name)
    subject = load_subject(args.model, args.input)
    if subject.plan is not None:
        raise BadInput(f"cannot search {args.model}, it is a plan already, name its network {subject.plan.model}")
    graph = subject.graph
    stretcher = subject.stretcher
    with progress("pricing segments") as tick:
        result = search(
            stretcher,
            soc,
            processors,
            limits,
            min_macs=quantity(args.min_macs, graph.macs, "--min-macs", 0.0),
            max_macs=quantity(args.max_macs, graph.macs, "--max-macs", math.inf),
            min_params=quantity(args.min_params, graph.params, "--min-params", 0.0),
            top=args.top,
            width_steps=args.width_steps,
            progress=tick,
            fallback=args.fallback,
        )
    if out is not None:
        write_plan(out, result.plans[0].trial.plan)
    return as_json(result, stretcher, soc, args.model)


def usual(soc: Soc) -> tuple[str, ...]:
    """The pair that wins on phones, where the chip has it; else its first two."""
    names = tuple(processor.name for processor in soc.processors)
    return ("cpu", "dsp") if {"cpu", "dsp"} <= set(names) else names[:2]


def as_json(result: SearchResult, stretcher: Any, soc: Any, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "soc": soc.name,
        "processors": list(result.original_us),
        "provenance": soc.provenance,
        "calibrated": soc.calibrated,
        "original": {
            "macs": result.original.macs,
            "params": result.original.params,
            "latency_ms": {name: us / 1000 for name, us in result.original_us.items()},
            "error_ms": {name: us / 1000 for name, us in result.original_error_us.items()},
            "fastest": result.fastest,
        },
        "space": {"log10_size": result.log10_size, "refused": result.refused},
        "fallbacks": dict(result.fallbacks),
        "limits": {"alpha": result.limits.alpha, "beta": result.limits.beta},
        "optimal": result.optimal,
        "lower_bound_ms": result.lower_bound_us / 1000,
        "search_s": result.search_s,
        "plans": [plan_json(found, result, stretcher) for found in result.plans],
    }


def plan_json(found: Found, result: SearchResult, stretcher: Any) -> dict[str, Any]:
    from nnstretch.cli.tables import segments_json
    from nnstretch.stretch.lower import lower

    trial = found.trial
    return {
        "latency_ms": trial.latency_us / 1000,
        "error_ms": found.error_us / 1000,
        "macs": trial.macs,
        "params": trial.params,
        "speedup_vs_fastest": result.original_us[result.fastest] / trial.latency_us,
        "iso_mac_latency_ms": found.iso_mac.latency_us / 1000,
        "iso_mac_processor": found.iso_mac.processor,
        "speedup_vs_iso_mac": found.iso_mac.latency_us / trial.latency_us,
        "segments": segments_json(trial, lower(stretcher, trial.plan)),
    }


def show(result: dict[str, Any], console: Any) -> None:
    from rich.table import Table

    original = result["original"]
    alone = ", ".join(f"{name} {ms:.2f} ms" for name, ms in original["latency_ms"].items())
    console.print(f"[bold]{result['model']}[/bold] on {result['soc']}, predicted: original alone {alone}")
    proof = "proven optimal" if result["optimal"] else f"not proven, lower bound {result['lower_bound_ms']:.2f} ms"
    console.print(f"10^{result['space']['log10_size']:.1f} plans in {result['search_s']:.1f} s, {proof}")
    table = Table("plan", "ms", "± ms", "MACs", "parameters", "vs fastest alone", "vs equal MACs")
    for number, plan in enumerate(result["plans"], 1):
        table.add_row(
            str(number),
            f"{plan['latency_ms']:.2f}",
            f"{plan['error_ms']:.2f}",
            f"{plan['macs'] / original['macs']:.3f}x",
            f"{plan['params'] / original['params']:.3f}x",
            f"{plan['speedup_vs_fastest']:.2f}x",
            f"{plan['speedup_vs_iso_mac']:.2f}x",
        )
    console.print(table)
    for segment in result["plans"][0]["segments"]:
        branches = " | ".join(f"{b['processor']} {b['depth']} x {b['width']}" for b in segment["branches"])
        console.print(f"  {segment['start']} -> {segment['end']}  \\[{branches}]  {segment['latency_ms']:.2f} ms")
    refused = ", ".join(f"{name} {count:,}" for name, count in result["space"]["refused"].items())
    for name, kind in result["fallbacks"].items():
        console.print(f"[yellow]never measured, priced as the nearest kind ({kind}):[/yellow] {name}")
    warn_uncalibrated(result, console)
    console.print(f"refused: {refused or 'nothing'}\nsource: {result['provenance']}")
