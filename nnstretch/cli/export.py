"""Export a network or a plan: one ONNX file per sub-graph, in one bundle, each checked against the module.

Weights come from --weights (safetensors, as `nnstretch train` writes them); without, they are those
the model starts with. --soc adds the predicted latency of every sub-graph, which emulation needs.

  nnstretch export plan.yaml --weights runs/digits/weights.safetensors --soc mi9 --out net.nns
  nnstretch export torchvision:resnet18 --soc mi9 --processor dsp --out original.nns
"""

from __future__ import annotations

import argparse
from typing import Any

from nnstretch.cli.subjects import SOC_HELP, add_model, load_soc_of, load_subject, progress, shape_of, writable
from nnstretch.errors import BadInput

SUMMARY = "a bundle of ONNX sub-graphs, verified"
FORMATS = ("onnx",)


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--out", metavar="FILE.nns", required=True, help="the bundle to write")
    parser.add_argument(
        "--weights", metavar="CKPT", default=None, help="safetensors of the network, or of the stretched network for a plan"
    )
    parser.add_argument("--format", choices=FORMATS, default="onnx", help="file format of sub-graphs (default onnx)")
    parser.add_argument("--soc", default=None, help=SOC_HELP + "; default: the plan's own, if it names one")
    parser.add_argument("--processor", default=None, help="where a network without a plan runs (default: the chip's first, or cpu)")
    parser.add_argument("--input", type=shape_of, default=None, help="input shape, NCHW")


def main(args: argparse.Namespace) -> dict[str, Any]:
    from nnstretch.export.network import export
    from nnstretch.stretch import stretch, unbranched
    from nnstretch.stretch.lower import lower
    from nnstretch.stretch.pricing import price

    out = writable(args.out, args.model, args.weights)
    assert out is not None
    subject = load_subject(args.model, args.input)
    name = args.soc or (subject.plan.soc if subject.plan else None)
    soc = load_soc_of(name) if name else None
    if subject.plan is not None and args.processor is not None:
        raise BadInput(f"--processor is {args.processor}, command line, {args.model} is a plan and places its own branches")
    plan = subject.plan or unbranched(subject.graph, args.model, args.processor or (soc.processors[0].name if soc else "cpu"))
    module = weighted(subject, plan, args.weights, stretch)
    trial = price(lower(subject.stretcher, plan), soc) if soc else None
    with progress("exporting") as tick:
        manifest = export(module, plan, out, trial=trial, soc=soc, progress=tick)
    return {
        "bundle": str(out),
        "max_abs_error": manifest.max_abs_error,
        "predicted_ms": trial.latency_us / 1000 if trial else None,
        "subgraphs": [
            {
                "name": s.name,
                "processor": s.processor,
                "file": s.file,
                "bytes": s.size_bytes,
                "sha256": s.sha256,
                "max_abs_error": s.max_abs_error,
                "predicted_ms": s.predicted_us.get(s.processor, 0.0) / 1000 if trial else None,
            }
            for s in manifest.subgraphs
        ],
    }


def weighted(subject: Any, plan: Any, weights: str | None, stretch: Any) -> Any:
    """The stretched module with the weights asked for: of a plan its own; of a network the original's, which it inherits."""
    from nnstretch.train import load_weights

    if weights is None:
        return stretch(subject.module, plan)
    if subject.plan is None:
        load_weights(subject.module, weights)
        return stretch(subject.module, plan)
    module = stretch(subject.module, plan, inherit=False)
    load_weights(module, weights)
    return module


def show(result: dict[str, Any], console: Any) -> None:
    from rich.table import Table

    table = Table("sub-graph", "processor", "kB", "max error", "predicted ms")
    for s in result["subgraphs"]:
        predicted = "" if s["predicted_ms"] is None else f"{s['predicted_ms']:.2f}"
        table.add_row(s["name"], s["processor"], f"{s['bytes'] / 1000:,.0f}", f"{s['max_abs_error']:.1e}", predicted)
    console.print(table)
    console.print(f"{result['bundle']}  differs from the module by {result['max_abs_error']:.1e} at most")
