"""Export a network or a plan.

One file per sub-graph, ONNX or LiteRT, in one bundle, each checked against the module.

Weights come from --weights (safetensors, as `nnstretch train` writes them); without, they are those
the model starts with. --soc adds the predicted latency of every sub-graph, which emulation needs.
--int8 measures the ranges of activations on calibration images; sub-graphs that touch share a
scale, so merges change no bit. Where --calibration is the recipe that the network was trained by,
its held-out images judge int8 by accuracy (--max-drop); elsewhere its signal-to-noise ratio does
(--min-snr).

  nnstretch export plan.yaml --weights runs/digits/weights.safetensors --soc mi9 --out net.nns
  nnstretch export torchvision:resnet18 --soc mi9 --processor dsp --out original.nns
  nnstretch export plan.yaml --format litert --int8 --calibration photos --out net.nns
  nnstretch export plan.yaml --single net.onnx
  nnstretch export torchvision:resnet18 --format cpp --out r18     C++17 that builds without Python
  nnstretch export b.yaml --soc mi9 --out net.nns --also a.nns    two plans in one bundle: main, and
  a
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.bundle.manifest import FORMATS, plans_by_name
from nnstretch.bundle.variants import load_variants
from nnstretch.cli.arguments import (
    CALIBRATION_IMAGES,
    SOC_HELP,
    add_inputs,
    add_model,
    finite_number,
    whole_number,
)
from nnstretch.cli.export.cpp import (
    FORMAT,
    add_cpp_arguments,
    check_cpp,
    show_cpp,
    write_cpp,
)
from nnstretch.cli.loaded_model import load_model_argument, load_soc_of
from nnstretch.cli.output_path import check_writable
from nnstretch.cli.progress import progress
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from nnstretch.bundle.manifest import Manifest
    from nnstretch.export.bundle import ExportedBundle
    from nnstretch.export.single_file import SingleFile
    from nnstretch.export.subgraph_specs import ExportRequest

HELD_OUT_IMAGES = 1000
"""On which int8 is judged; all of a smaller data set."""
SUMMARY = "a bundle of ONNX or LiteRT sub-graphs, or a folder of C++, verified"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add_model(parser)
    parser.add_argument(
        "--out",
        metavar="FILE.nns|FOLDER",
        default=None,
        help="the bundle to write; a folder for --format cpp",
    )
    parser.add_argument(
        "--single",
        metavar="FILE.onnx|FILE.tflite",
        default=None,
        help="the whole network as one file, beside --out or instead of it",
    )
    parser.add_argument(
        "--also",
        metavar="FILE.nns",
        action="append",
        default=[],
        help="add the plans of this bundle, named after it, to --out; repeatable",
    )
    parser.add_argument(
        "--weights",
        metavar="CKPT",
        default=None,
        help="safetensors of the network, or of the stretched network for a plan",
    )
    parser.add_argument(
        "--format",
        choices=(*FORMATS, FORMAT),
        default="onnx",
        help="file format of sub-graphs (default onnx), or cpp: a folder of C++",
    )
    add_cpp_arguments(parser)
    parser.add_argument(
        "--int8", action="store_true", help="int8 weights and activations (--format litert)"
    )
    parser.add_argument(
        "--calibration",
        metavar="WHAT",
        default=None,
        help=(
            "images on which int8 measures ranges: a folder of images, or a recipe (digits,"
            " RECIPE.yaml)"
        ),
    )
    parser.add_argument(
        "--calibration-images",
        type=whole_number,
        default=CALIBRATION_IMAGES,
        metavar="N",
        help=f"how many of them (default {CALIBRATION_IMAGES})",
    )
    parser.add_argument(
        "--max-drop",
        type=finite_number,
        default=1.0,
        metavar="POINTS",
        help=(
            "accuracy that int8 may lose on held-out images, where --calibration is a recipe that"
            " has labels and the network knows its classes (default 1.0)"
        ),
    )
    parser.add_argument(
        "--min-snr",
        type=finite_number,
        default=None,
        metavar="DB",
        help="signal-to-noise ratio that int8 must have where no label judges it (default 10)",
    )
    parser.add_argument(
        "--soc", default=None, help=SOC_HELP + "; default: the plan's own, if it names one"
    )
    parser.add_argument(
        "--processor",
        default=None,
        help="where a network without a plan runs (default: the chip's first, or cpu)",
    )
    add_inputs(parser)


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data."""
    check_cpp(args)
    check(args)
    if args.format == FORMAT:
        return write_cpp(args, export_request(args))
    out, single = (
        check_writable(path, args.model, args.weights, *args.also)
        for path in (args.out, args.single)
    )
    also = load_variants(args.also)
    request = export_request(args)
    written, single_file = None, None
    with progress("exporting") as tick:
        request = replace(request, progress=tick)
        if out is not None:
            from nnstretch.export.bundle import export_bundle

            written = export_bundle(request, out, also)
        if single is not None:
            from nnstretch.export.single_file import export_single, format_of

            single_file = export_single(replace(request, format=format_of(single)), single)
    return result_of(args, request, written, single_file)


def check(args: argparse.Namespace) -> None:
    """Refuse options that do not go together, before anything is loaded. Raises BadInput."""
    if args.out is None and args.single is None:
        raise BadInput("nothing to write, command line, give --out FILE.nns or --single FILE")
    if args.also and args.out is None:
        raise BadInput(
            f"--also {args.also[0]} without --out, command line, only a bundle holds several plans"
        )
    if args.single is not None:
        from nnstretch.export.single_file import format_of

        if format_of(args.single) == "onnx" and args.int8:
            raise BadInput(
                f"--int8 with --single {args.single}, command line, only a .tflite can be int8"
            )
    if (
        args.out is not None
        and args.single is not None
        and Path(args.out).resolve() == Path(args.single).resolve()
    ):
        raise BadInput(f"--single is {args.single}, command line, it is --out, too")
    if args.int8 and args.format != "litert":
        raise BadInput(
            f"--int8 with --format {args.format}, command line, only --format litert has it"
        )
    if args.int8 and args.calibration is None:
        raise BadInput(
            "--int8 without --calibration, command line, ranges of activations are measured on"
            " images: --calibration FOLDER of images, or a recipe such as digits (its training"
            " images)"
        )
    if args.calibration is not None and not args.int8:
        raise BadInput(
            f"--calibration {args.calibration} without --int8, command line, float needs no"
            " calibration"
        )


def export_request(args: argparse.Namespace) -> ExportRequest:
    """Return the network with its weights, and what it is predicted to take.

    Raises BadInput when --processor is given with a plan.
    """
    from nnstretch.export.subgraph_specs import ExportRequest
    from nnstretch.stretch import single_processor_plan
    from nnstretch.stretch.lowering.lower import lower
    from nnstretch.stretch.weights.weights_file import read_image_task

    subject = load_model_argument(args.model, args.input, args.outputs)
    name = args.soc or (subject.plan.soc if subject.plan else None)
    soc = load_soc_of(name) if name else None
    if subject.plan is not None and args.processor is not None:
        raise BadInput(
            f"--processor is {args.processor}, command line, {args.model} is a plan and places its"
            " own branches"
        )
    plan = subject.plan or single_processor_plan(
        subject.graph,
        subject.graph.name,
        args.processor or (soc.processors[0].name if soc else "cpu"),
    )
    lowered = lower(subject.analysis, plan)
    calibration, held_out = None, None
    if args.int8:
        from nnstretch.train.data.calibration import open_calibration, open_held_out

        calibration = open_calibration(args.calibration, args.calibration_images, plan.input_shape)
        held_out = open_held_out(args.calibration, HELD_OUT_IMAGES, plan.input_shape[2])
    module = subject.build_stretched(lowered, args.weights)
    trial = subject.estimate(lowered, soc, name) if soc and name else None
    file_format = "onnx" if args.format == FORMAT else args.format
    return ExportRequest(
        *(module, plan, file_format, args.int8, calibration, trial, soc),
        least_snr_db=args.min_snr,
        held_out=held_out,
        max_drop=args.max_drop,
        image_task=read_image_task(args.weights) if args.weights else None,
    )


def result_of(
    args: argparse.Namespace,
    request: ExportRequest,
    written: ExportedBundle | None,
    single_file: SingleFile | None,
) -> dict[str, Any]:
    """Return what was exported as JSON data."""
    outcomes = [done for done in (written, single_file) if done is not None]
    accuracy = outcomes[0].accuracy
    largest = (
        written.manifest.max_abs_error
        if written is not None
        else single_file.max_abs_error
        if single_file is not None
        else None
    )
    return {
        "bundle": args.out,
        "format": request.format if written is not None else None,
        "int8": request.int8,
        "max_abs_error": largest,
        "int8_snr_db": outcomes[0].int8_snr_db,
        "accuracy": None if accuracy is None else asdict(accuracy),
        "calibration_images": len(request.calibration.indices) if request.int8 else None,  # type: ignore[union-attr]
        "predicted_ms": request.trial.latency_us / 1000 if request.trial else None,
        "single": {"file": args.single, **asdict(single_file)} if single_file is not None else None,
        "plans": list(plans_by_name(written.manifest)) if written is not None else [],
        "subgraphs": (
            rows_of(written.manifest, request.trial is not None) if written is not None else []
        ),
    }


def rows_of(manifest: Manifest, predicted: bool) -> list[dict[str, Any]]:
    """Return one row for each sub-graph: file, size and predicted latency."""
    return [
        {
            "name": s.name,
            "processor": s.processor,
            "file": s.file,
            "bytes": s.size_bytes,
            "sha256": s.sha256,
            "max_abs_error": s.max_abs_error,
            "predicted_ms": s.predicted_us.get(s.processor, 0.0) / 1000 if predicted else None,
        }
        for s in manifest.subgraphs
    ]


def show(result: dict[str, Any], console: Any) -> None:
    """Print the result for people."""
    from rich.table import Table

    if result["format"] == FORMAT:
        show_cpp(result, console)
        return
    if result["bundle"] is not None:
        table = Table("sub-graph", "processor", "kB", "max error", "predicted ms")
        for s in result["subgraphs"]:
            predicted = "" if s["predicted_ms"] is None else f"{s['predicted_ms']:.2f}"
            table.add_row(
                s["name"],
                s["processor"],
                f"{s['bytes'] / 1000:,.0f}",
                f"{s['max_abs_error']:.1e}",
                predicted,
            )
        console.print(table)
        console.print(
            f"{result['bundle']}  differs from the module by {result['max_abs_error']:.1e} at most"
        )
        if len(result["plans"]) > 1:
            console.print(f"{len(result['plans'])} plans in it: {', '.join(result['plans'])}")
    if single_file := result["single"]:
        console.print(
            f"{single_file['file']}  {single_file['size_bytes'] / 1000:,.0f} kB, differs from the"
            f" module by {single_file['max_abs_error']:.1e} at most"
        )
    if result["int8"]:
        said = f"int8: signal-to-noise ratio of the output {result['int8_snr_db']:.1f} dB"
        console.print(f"{said}, ranges measured on {result['calibration_images']} images")
        if accuracy := result["accuracy"]:
            shares = f"{accuracy['float_accuracy']:.2%}, int8 {accuracy['int8_accuracy']:.2%}"
            console.print(f"accuracy on {accuracy['images']} held-out images: float32 {shares}")
