"""Split a network into pipeline stages, one or more processors each, for a stream of inputs.

Stages are balanced by predicted latency, copies between processors included: the split with the
fastest slowest stage is found exactly, and what no split can beat is printed beside it. Without
--out nothing is written.

  nnstretch partition torchvision:resnet18 --soc mi9 --out net.nns     # as many stages as are best
  nnstretch partition torchvision:resnet18 --soc mi9 --stages 2 --processors cpu,dsp --out net.nns
  nnstretch partition net.py:make --input 1,3,64,64 --soc mi9                  # of another size
  nnstretch partition net.py:make --soc here --stages 2 --processors cpu,cpu        # cpu0 and cpu1
  nnstretch partition torchvision:resnet18 --soc mi9 --split layer1,conv2d:9              # by hand
  nnstretch partition torchvision:resnet18 --soc mi9 --split conv2d_5+conv2d_7           # at a set
  nnstretch partition net.py:make --soc mi9 --split conv2d..relu_3,conv2d_4..linear     # by ranges
  nnstretch partition stages.yaml --soc mi9 --stages 2 --out net.nns     # stages that are branched
  nnstretch partition net.py:make --soc mi9 --top 3 --out net.nns    # and net.2.nns, and net.3.nns
  nnstretch partition net.py:make --soc here --measure --out net.nns            # the fastest, here
  nnstretch partition net.py:make --soc here --stages 2 --cores s0=0 --cores s1=1 --out net.nns
  nnstretch partition net.py:make --soc mi9 --before camera:load --python-replicas before=2

--split takes cuts, modules, nodes, OP:N (the N-th call of an operator, counted from 0), sets of
tensors, or ranges of `inspect`'s operators. Stages share no processor, so a plan has as many as it
has stretches of segments without one in common: mostly a plan written by hand. --measure streams
items through candidates here and keeps the fastest. --cores names the cores of a stage. --before
and --after name Python stages, module:function, of which the bundle holds the names only; with
--python-replicas before=2 two threads load, items in turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.arguments import (
    SOC_HELP,
    add_fallback,
    add_inputs,
    add_model,
    names_of,
    whole_number,
)
from nnstretch.cli.loaded_model import is_plan, load_soc_of
from nnstretch.cli.output_path import check_writable
from nnstretch.cli.partition.options import (
    add_stage_arguments,
    check_stage_arguments,
    check_stage_names,
    stage_options_of,
)
from nnstretch.cli.partition.result_json import measured_json, result_json, rows_json
from nnstretch.cli.partition.show import show as show
from nnstretch.cli.progress import progress
from nnstretch.errors import BadInput
from nnstretch.pipeline import CALL, MAX_CAPACITY, MAX_THREADS

if TYPE_CHECKING:
    from torch import nn

    from nnstretch.capture import CapturedNetwork
    from nnstretch.export.onnx.network_file import NetworkFile
    from nnstretch.partition.measured import StreamTimes
    from nnstretch.partition.partition import Partition
    from nnstretch.partition.search.stage_costs import Corrections
    from nnstretch.soc import Soc

MOST_STAGES, MOST_CANDIDATES = 1000, 50


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add_model(parser)
    add = parser.add_argument
    add("--soc", required=True, help=SOC_HELP)
    add("--stages", type=whole_number, metavar="K", help="how many (default: as many as are best)")
    add(
        "--processors",
        type=names_of,
        default=(),
        help="e.g. cpu,dsp; cpu,cpu for two of a kind (default: all of the chip)",
    )
    add("--split", metavar="WHERE", help="by hand, see above; processors alone are chosen then")
    add(
        "--replicas",
        action="store_true",
        help="let processors that are left over double a stage, items in turn",
    )
    add(
        "--top",
        type=whole_number,
        default=1,
        metavar="N",
        help="this many candidates, the best first (default 1)",
    )
    add(
        "--measure",
        action="store_true",
        help="stream items through candidates on this machine, learn, keep the fastest",
    )
    add("--out", metavar="FILE.nns", help="the bundle to write")
    add("--weights", metavar="CKPT", help="safetensors of the network")
    add_stage_arguments(parser)
    add_fallback(parser)
    add_inputs(parser)


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data."""
    check(args)
    if is_plan(args.model):
        from nnstretch.cli.partition.plan_stages import plan_stages

        return plan_stages(args)
    return network_stages(args)


def network_stages(args: argparse.Namespace) -> dict[str, Any]:
    """Divide a network among processors, by prediction or by measuring, and write the bundles."""
    from nnstretch.partition.export import export_to_cut
    from nnstretch.partition.measured import best_measured
    from nnstretch.partition.partition import PartitionRequest, partitions
    from nnstretch.partition.split_points import stages_of_text
    from nnstretch.soc_instances import instantiate
    from nnstretch.stretch.cost.cost_model import CostModel

    outs = outputs(args)
    soc, names = instantiate(load_soc_of(args.soc), args.processors)
    module, captured = load(args)
    unit_of = None if args.split is None else stages_of_text(captured.graph, args.split)
    cost_model = CostModel(soc, args.fallback)
    request = PartitionRequest(args.stages, names, args.replicas)

    def propose(top: int, corrections: Corrections | None) -> Sequence[Partition]:
        wanted = replace(request, top=top)
        graph = captured.graph
        candidates = partitions(graph, soc, wanted, unit_of, cost_model, corrections)
        check_stage_names(args, *(len(candidate.stages) for candidate in candidates))
        return candidates

    several = args.measure or (args.top > 1 and outs)
    whole = export_to_cut(captured.graph, captured.weights, unit_of) if several else None

    def write(candidates: Sequence[Partition], paths: Sequence[Path]) -> list[float]:
        return write_bundles(args, candidates, paths, soc, module, captured, whole)

    if args.measure:
        measured = best_measured(outs, propose, write, stream)
        best = measured[0].partition
        rows = [measured_json(result) for result in measured]
    else:
        candidates = propose(args.top, None)
        best = candidates[0]
        rows = rows_json(candidates, outs, write(candidates, outs))
    return result_json(args, best, rows, soc, cost_model.fallbacks)


def check(args: argparse.Namespace) -> None:
    """Refuse options that do not go together, before anything is loaded. Raises BadInput."""
    for option, most in (
        ("stages", MOST_STAGES),
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
    check_stage_arguments(args)


def outputs(args: argparse.Namespace) -> list[Path]:
    """Return a path for each candidate: FILE.nns, FILE.2.nns, ..."""
    if args.out is None:
        return []
    out = Path(args.out)
    if not out.name:
        raise BadInput(f"--out is {args.out!r}, command line, name a file")
    others = [out.with_name(f"{out.stem}.{n}{out.suffix}") for n in range(2, args.top + 1)]
    for path in (out, *others):
        check_writable(path, args.model, args.weights, args.soc)
    return [out, *others]


def load(args: argparse.Namespace) -> tuple[nn.Module, CapturedNetwork]:
    """Load the network and capture its graph and weights."""
    from nnstretch.capture import load_model, trace
    from nnstretch.capture.example_inputs import example_inputs
    from nnstretch.capture.model_spec import spec_with
    from nnstretch.stretch.weights.weights_file import load_weights, seed_of_weights

    model = spec_with(args.model, args.input, args.outputs)
    module = load_model(model, seed_of_weights(args.weights))
    if args.weights is not None:
        load_weights(module, args.weights)
    return module, trace(module, example_inputs(model, module, args.input), model)


def write_bundles(
    args: argparse.Namespace,
    candidates: Sequence[Partition],
    paths: Sequence[Path],
    soc: Soc,
    module: nn.Module,
    captured: CapturedNetwork,
    whole: NetworkFile | None,
) -> list[float]:
    """Write each candidate's bundle; return their largest differences from the network."""
    if not paths:
        return []
    from nnstretch.partition.export import export_partition

    options = stage_options_of(args)
    errors = []
    with progress("exporting") as tick:
        for partition, path in zip(candidates, paths, strict=False):
            manifest = export_partition(
                partition,
                captured.weights,
                path,
                soc=soc,
                module=module,
                stage_options=options,
                progress=tick,
                network_file=whole,
            )
            errors.append(manifest.max_abs_error)
    return errors


def stream(paths: Sequence[Path], rounds: int) -> Sequence[StreamTimes]:
    """Stream items through bundles in turn and show progress."""
    from nnstretch.bench.pipelines import measure_candidates

    with progress(f"streaming {len(paths)} candidates") as tick:
        return measure_candidates(paths, rounds=rounds, tell=tick)
