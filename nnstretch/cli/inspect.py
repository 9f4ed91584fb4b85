"""Show what a network is made of: operators, cuts (possible meeting points), units and repeats.

A cut is named by the outermost module whose output it is; the last is `output`. A unit marked as a
repeat may be dropped when a branch is made shallower.

  nnstretch inspect torchvision:resnet18
  nnstretch inspect net.py:make --input 1,3,64,64 --json
"""

from __future__ import annotations

import argparse
from typing import Any

from nnstretch.cli.arguments import add_model, shape_of
from nnstretch.cli.loaded_model import load_model_argument

SUMMARY = "operators, cuts, units and repeats of a network"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add_model(parser)
    parser.add_argument(
        "--input",
        type=shape_of,
        default=None,
        help="input shape, NCHW (default: the network's own, else 1,3,224,224)",
    )


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data."""
    from nnstretch.structure.blocks import find_units
    from nnstretch.structure.cuts import find_cuts

    subject = load_model_argument(args.model, args.input)
    graph = subject.graph if subject.plan is None else stretched_graph(subject)
    params = {w.name: w.spec.elements for w in graph.weights if w.trainable}
    unused = (
        sum(p.numel() for p in subject.module.parameters()) - graph.params
        if subject.plan is None
        else 0
    )
    return {
        "model": args.model,
        "input_shape": list(graph.inputs[0].spec.shape),
        "macs": graph.macs,
        "params": graph.params,
        "unused_params": unused,
        "ops": [
            {
                "name": node.name,
                "op": node.op,
                "module": node.module,
                "macs": node.macs,
                "params": sum(params.get(name, 0) for name in node.inputs),
                "output_shape": list(node.output.shape),
            }
            for node in graph.nodes
        ],
        "cuts": [cut.name for cut in find_cuts(graph)],
        "units": [
            {
                "start": u.start.name,
                "end": u.end.name,
                "macs": u.macs,
                "params": u.params,
                "repeat_of": u.repeat_of,
            }
            for u in find_units(graph)
        ],
    }


def stretched_graph(subject: Any) -> Any:
    """Return the branched network that a plan makes."""
    import torch

    from nnstretch.capture.torch_export import capture
    from nnstretch.stretch.lowering.lower import lower
    from nnstretch.stretch.weights.branched_module import build_module

    network = build_module(lower(subject.analysis, subject.plan))
    return capture(network, torch.zeros(subject.plan.input_shape), subject.spec)


def show(result: dict[str, Any], console: Any) -> None:
    """Print the result for people."""
    from rich.table import Table

    shape = "x".join(map(str, result["input_shape"]))
    console.print(
        f"[bold]{result['model']}[/bold]  input {shape}  {result['macs'] / 1e6:,.1f} MMACs "
        f" {result['params'] / 1e6:,.2f} M parameters"
    )
    if result["unused_params"]:
        console.print(
            f"{result['unused_params']:,} parameters of the module take no part in evaluation"
        )
    table = Table("unit ends at", "MMACs", "parameters", "repeat of")
    for unit in result["units"]:
        table.add_row(
            unit["end"],
            f"{unit['macs'] / 1e6:,.1f}",
            f"{unit['params']:,}",
            unit["repeat_of"] or "",
        )
    console.print(table)
