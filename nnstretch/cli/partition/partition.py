"""Split a network into pipeline stages, one or more processors each, for a stream of inputs.

Stages are balanced by predicted latency, copies between processors included: the split with the
fastest slowest stage is found exactly, and what no split can beat is printed beside it. Without
--out nothing is written.

  nnstretch partition torchvision:resnet18 --soc mi9 --out net.nns                        as many
  stages as are best
  nnstretch partition torchvision:resnet18 --soc mi9 --stages 2 --processors cpu,dsp --out net.nns
  nnstretch partition torchvision:resnet18 --soc host --stages 2 --processors cpu,cpu     two of one
  kind: cpu0, cpu1
  nnstretch partition net.py:make --soc mi9 --split layer1,conv2d:9 --out net.nns          by hand:
  cuts, modules, nodes, OP:N
  nnstretch partition net.py:make --soc mi9 --split add_1+relu_2 --out net.nns             at a set
  of tensors
  nnstretch partition net.py:make --soc mi9 --split conv2d..relu_3,conv2d_4..linear        by ranges
  of `inspect`'s operators
  nnstretch partition plan.yaml --soc mi9 --stages 2 --out net.nns                         stages
  that are branched themselves
  nnstretch partition net.py:make --soc mi9 --top 3 --out net.nns                          net.nns,
  net.2.nns, net.3.nns to be measured
  nnstretch partition net.py:make --soc host --measure --out net.nns
  candidates streamed here, the fastest kept
  nnstretch partition net.py:make --soc host --stages 2 --cores s0=0 --cores s1=1 --out net.nns
  each stage on a core that is named
  nnstretch partition net.py:make --soc mi9 --before camera:load --python-replicas before=2
  two threads load, items in turn

OP:N is the N-th call of an operator, counted from 0. --before and --after name Python stages,
module:function; the bundle holds their names only.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.common import (
    SOC_HELP,
    add_fallback,
    add_model,
    check_writable,
    is_plan,
    load_soc_of,
    names_of,
    progress,
    shape_of,
    warn_uncalibrated,
)
from nnstretch.cli.partition import options as of_stages
from nnstretch.errors import BadInput
from nnstretch.pipeline import CALL, DEFAULT_CAPACITY, MAX_CAPACITY, MAX_THREADS

if TYPE_CHECKING:
    from torch import nn

    from nnstretch.capture import CapturedNetwork
    from nnstretch.partition.partition import Partition, StageCost
    from nnstretch.partition.stage_costs import Corrections
    from nnstretch.soc import Soc
    from nnstretch.stretch.cost.cost_model import CostModel

SUMMARY = "pipeline stages for a stream of inputs, balanced over processors"
MOST, MOST_CANDIDATES = 1000, 50


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add_model(parser)
    parser.add_argument("--soc", required=True, help=SOC_HELP)
    parser.add_argument(
        "--stages",
        type=int,
        default=None,
        metavar="K",
        help="how many (default: as many as are best)",
    )
    parser.add_argument(
        "--processors",
        type=names_of,
        default=(),
        help="e.g. cpu,dsp; cpu,cpu for two of a kind (default: all of the chip)",
    )
    parser.add_argument(
        "--split",
        default=None,
        metavar="WHERE",
        help="by hand, see above; processors alone are chosen then",
    )
    parser.add_argument(
        "--replicas",
        action="store_true",
        help="let processors that are left over double a stage, items in turn",
    )
    parser.add_argument(
        "--top",
        type=int,
        default=1,
        metavar="N",
        help="this many candidates, the best first (default 1)",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="stream items through candidates on this machine, learn, keep the fastest",
    )
    parser.add_argument("--out", default=None, metavar="FILE.nns", help="the bundle to write")
    parser.add_argument(
        "--weights", metavar="CKPT", default=None, help="safetensors of the network"
    )
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="of each stage's backend (default 1)"
    )
    parser.add_argument(
        "--capacity",
        type=int,
        default=DEFAULT_CAPACITY,
        metavar="N",
        help=f"items that may wait in front of a stage (default {DEFAULT_CAPACITY})",
    )
    parser.add_argument(
        "--before",
        default="",
        metavar="MODULE:FUNCTION",
        help="Python stage that makes the network's inputs of an item",
    )
    parser.add_argument(
        "--after",
        default="",
        metavar="MODULE:FUNCTION",
        help="Python stage that makes a result of the network's outputs",
    )
    of_stages.add_arguments(parser)
    add_fallback(parser)
    parser.add_argument(
        "--input",
        type=shape_of,
        action="append",
        default=None,
        help="input shape, NCHW; once for each input",
    )


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data."""
    from nnstretch.partition.partition import PartitionRequest, partitions
    from nnstretch.partition.split_points import stages_of_text
    from nnstretch.soc_instances import instantiate
    from nnstretch.stretch.cost.cost_model import CostModel

    check(args)
    if is_plan(args.model):
        from nnstretch.cli.partition.plan_stages import plan_stages

        return plan_stages(args)
    outs = outputs(args)
    soc, names = instantiate(load_soc_of(args.soc), args.processors)
    module, captured = load(args)
    unit_of = None if args.split is None else stages_of_text(captured.graph, args.split)
    cost_model = CostModel(soc, args.fallback)

    def again(top: int, corrections: Corrections | None) -> Sequence[Partition]:
        candidates = partitions(
            captured.graph,
            soc,
            PartitionRequest(args.stages, names, args.replicas, top),
            unit_of,
            cost_model,
            corrections,
        )
        of_stages.check_names(args, *(len(candidate.stages) for candidate in candidates))
        return candidates

    if not args.measure:
        candidates = again(args.top, None)
        return result_of(
            args,
            candidates,
            outs,
            write(args, candidates, outs, soc, module, captured),
            soc,
            cost_model,
        )
    from nnstretch.cli.partition.measured import best_measured

    candidates, errors, measured = best_measured(
        outs, lambda new, paths: write(args, new, paths, soc, module, captured), again
    )
    result = result_of(args, candidates, outs, errors, soc, cost_model)
    for row, candidate in zip(result["candidates"], measured, strict=True):
        row |= {
            "measured_ms": candidate.period_us / 1e3,
            "measured_stages_ms": [time_us / 1e3 for time_us in candidate.service_us],
        }
    return result | {
        name: result["candidates"][0][name] for name in ("measured_ms", "measured_stages_ms")
    }


def check(args: argparse.Namespace) -> None:
    """Refuse options that do not go together, before anything is loaded. Raises BadInput."""
    for option, most in (
        ("stages", MOST),
        ("top", MOST_CANDIDATES),
        ("threads", MAX_THREADS),
        ("capacity", MAX_CAPACITY),
    ):
        value = getattr(args, option)
        if value is not None and not 1 <= value <= most:
            raise BadInput(f"--{option} is {value}, command line, write a number from 1 to {most}")
    if args.measure and (args.out is None or args.before or args.after):
        why = (
            "without --out" if args.out is None else "with a Python stage, which nobody passes here"
        )
        raise BadInput(
            f"--measure {why}, command line, it streams items through the bundles that are written"
        )
    for option in ("before", "after"):
        if getattr(args, option) and not CALL.fullmatch(getattr(args, option)):
            raise BadInput(
                f"--{option} is {getattr(args, option)!r}, command line, write MODULE:FUNCTION"
            )
    of_stages.check(args)


def outputs(args: argparse.Namespace) -> list[Path]:
    """Return a path for each candidate: FILE.nns, FILE.2.nns, ..."""
    out = check_writable(args.out, args.model, args.weights)
    if out is None:
        return []
    others = [out.with_name(f"{out.stem}.{rank}{out.suffix}") for rank in range(2, args.top + 1)]
    return [
        out,
        *(
            path
            for other in others
            if (path := check_writable(other, args.model, args.weights)) is not None
        ),
    ]


def load(args: argparse.Namespace) -> tuple[nn.Module, CapturedNetwork]:
    """Return the network, its graph and its weights.

    Raises BadInput when the input does not fit into memory.
    """
    import torch

    from nnstretch.capture import default_input, load_model, trace

    module = load_model(args.model)
    if args.weights is not None:
        from nnstretch.train import load_weights

        load_weights(module, args.weights)
    known = getattr(module, "captured_graph", None)
    try:
        if args.input is None and known is not None:
            examples = tuple(
                torch.zeros(value.spec.shape, dtype=getattr(torch, value.spec.dtype))
                for value in known.inputs
            )
        else:
            examples = tuple(
                torch.zeros(shape) for shape in args.input or [default_input(args.model, module)]
            )
    except RuntimeError as error:
        raise BadInput(
            f"input of {args.model} is too large, command line, {str(error).splitlines()[0][:120]}"
        ) from error
    return module, trace(module, examples, args.model)


def write(
    args: argparse.Namespace,
    candidates: Sequence[Partition],
    outs: Sequence[Path],
    soc: Soc,
    module: nn.Module,
    captured: CapturedNetwork,
) -> list[float]:
    """Write every candidate's bundle; return how far each is from the network."""
    if not outs:
        return []
    from nnstretch.partition.export import StageOptions, export_partition

    cores, replicas = of_stages.cores_of(args.cores), of_stages.replicas_of(args.python_replicas)
    stage_options, errors = (
        StageOptions(
            args.threads, args.capacity, args.before, args.after, cores=cores, replicas=replicas
        ),
        [],
    )
    with progress("exporting") as tick:
        for partition, out in zip(candidates, outs, strict=False):
            manifest = export_partition(
                partition,
                captured.weights,
                out,
                soc=soc,
                module=module,
                stage_options=stage_options,
                progress=tick,
            )
            errors.append(manifest.max_abs_error)
    return errors


def result_of(
    args: argparse.Namespace,
    candidates: Sequence[Partition],
    outs: Sequence[Path],
    errors: Sequence[float],
    soc: Soc,
    cost_model: CostModel,
) -> dict[str, Any]:
    """Return the partitions as JSON data."""
    best = candidates[0]
    fastest_us = best.single_us[best.fastest] if best.fastest is not None else None
    return {
        "model": args.model,
        "soc": soc.name,
        **numbers(best),
        "single_ms": {name: time_us / 1000 for name, time_us in best.single_us.items()},
        "fastest": best.fastest,
        "speedup_vs_fastest": fastest_us / best.bottleneck_us if fastest_us is not None else None,
        "ideal_ms": best.ideal_us / 1000 if best.ideal_us is not None else None,
        "share_of_ideal": best.ideal_us / best.bottleneck_us if best.ideal_us is not None else None,
        "bound_ms": best.bound_us / 1000,
        "proven": best.proven,
        "why_open": best.why_open,
        "bundle": args.out,
        "cores": {name: list(bound) for name, bound in of_stages.cores_of(args.cores).items()},
        "max_abs_error": errors[0] if errors else None,
        "candidates": [
            {
                **numbers(candidate),
                "bundle": str(outs[rank]) if rank < len(outs) else None,
                "max_abs_error": errors[rank] if rank < len(errors) else None,
            }
            for rank, candidate in enumerate(candidates)
        ],
        "fallbacks": cost_model.fallbacks,
        "provenance": soc.provenance,
        "calibrated": soc.calibrated,
    }


def numbers(partition: Partition) -> dict[str, Any]:
    """Return stages and bottleneck of a partition as JSON data."""
    return {
        "stages": [stage_json(partition, number) for number in range(len(partition.stages))],
        "bottleneck_ms": partition.bottleneck_us / 1000,
        "balance": partition.balance,
        "latency_ms": partition.latency_us / 1000,
        "throughput_per_s": 1e6 / partition.bottleneck_us if partition.bottleneck_us else None,
    }


def stage_json(partition: Partition, number: int) -> dict[str, Any]:
    """Return a stage as JSON data."""
    stage: StageCost = partition.stages[number]
    piece, slowest = (
        partition.subgraphs[number],
        max(stage.shares, key=lambda share: share.latency_us),
    )
    specs = piece.specs()
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
        "inputs": [{"name": value.name, "shape": list(value.spec.shape)} for value in piece.inputs],
        "outputs": [{"name": name, "shape": list(specs[name].shape)} for name in piece.outputs],
    }


def show(result: dict[str, Any], console: Any) -> None:
    """Print the result for people."""
    from rich.table import Table

    table = Table(
        "stage",
        "from",
        "to",
        "MMACs",
        "processor",
        "latency ms",
        "transfer ms",
        "± ms",
        title=f"{result['model']} on {result['soc']}",
    )
    for number, stage in enumerate(result["stages"]):
        transfer_ms = stage["transfer_in_ms"] + stage["transfer_out_ms"]
        names = " | ".join(stage["processors"])
        row = [
            f"{stage['macs'] / 1e6:,.1f}",
            names,
            *(f"{ms:.2f}" for ms in (stage["latency_ms"], transfer_ms, stage["error_ms"])),
        ]
        table.add_row(str(number), stage["start"], stage["end"], *row)
    console.print(table)
    proven = (
        f"not proven best: {result['why_open']}"
        if result["why_open"]
        else "no split between layers is better"
    )
    limit = (
        f"; no pipeline beats {result['bound_ms']:.2f} ms" if result["bound_ms"] is not None else ""
    )
    console.print(f"a result every {result['bottleneck_ms']:.2f} ms predicted ({proven}){limit}")
    if "measured_ms" in result:
        console.print(
            f"a result every {result['measured_ms']:.2f} ms measured here,"
            f" {result['bottleneck_ms'] / result['measured_ms'] - 1:+.1%} predicted"
        )
    console.print(
        f"balance {result['balance']:.3f}, one item takes {result['latency_ms']:.2f} ms,"
        f" {result['throughput_per_s'] or 0:.1f} items/s"
    )
    if result["speedup_vs_fastest"] is not None:
        console.print(
            f"{result['speedup_vs_fastest']:.2f}x the throughput of {result['fastest']} alone"
        )
    if result["share_of_ideal"] is not None:
        console.print(
            f"{result['share_of_ideal']:.1%} of the rates of all its processors added up"
            f" ({result['ideal_ms']:.2f} ms)"
        )
    for rank, candidate in enumerate(result["candidates"][1:], 2):
        borders = ", ".join(
            f"{stage['processor']} to {stage['end']}" for stage in candidate["stages"]
        )
        measured = (
            f"{candidate['measured_ms']:.2f} ms measured, " if "measured_ms" in candidate else ""
        )
        console.print(
            f"candidate {rank}: {measured}{candidate['bottleneck_ms']:.2f} ms, balance"
            f" {candidate['balance']:.3f}, {borders} {candidate['bundle'] or ''}"
        )
    if result["bundle"] is not None:
        console.print(
            f"{result['bundle']} written, largest difference from the network"
            f" {result['max_abs_error']:.2g}"
        )
    for name, kind in result["fallbacks"].items():
        console.print(
            f"[yellow]never measured, priced as the nearest kind ({kind}):[/yellow] {name}"
        )
    warn_uncalibrated(result, console)
    console.print(f"source: {result['provenance']}")
