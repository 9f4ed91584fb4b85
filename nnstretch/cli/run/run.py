"""Run a bundle's branches at once, or one after another, on a virtual or a real clock.

    nnstretch run net.nns --soc mi9                            # predicted timeline, true numbers
    nnstretch run net.nns --soc mi9 --clock real --repeat 50   # the same on threads, in real time
    nnstretch run net.nns --input x.npy --output y.npy --trace t.json
    nnstretch run bert.nns --input ids=ids.npy --input mask=mask.npy --output logits=y.npy
    nnstretch run net.nns --backend openvino,gpu=openvino:GPU  # who computes, for all and for some
    nnstretch run net.nns --plan gpu                           # one of several plans in the bundle
    nnstretch run net.nns --mode pipeline --repeat 500         # items through stages of `partition`
    nnstretch run net.nns --requests 200 --clients 4 --busy gpu@0:500 --fail dsp@800  # in trouble

Predicted times of a bundle are played without --soc, too; only a pipeline on the real clock then
measures this machine. The real clock slows the chip down by `dilation` where this host computes
slower than the chip is predicted to, and divides all times by it again; dispatch_overhead_us alone
is the host's own.
x.npy holds real numbers in PyTorch's order for every bundle, an int8 one too, and so does y.npy.
max_abs_error compares with the sub-graphs run one after another on one thread.
Open the trace in ui.perfetto.dev.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.arguments import seed_of
from nnstretch.cli.output_path import check_writable
from nnstretch.cli.progress import calibration_json
from nnstretch.cli.run import pipeline as run_pipeline
from nnstretch.cli.run import requests as run_requests
from nnstretch.cli.run.array_files import (
    files_of,
    read_inputs,
    write_outputs,
)
from nnstretch.cli.run.show import show as show
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from nnstretch.bundle.bundle import Bundle
    from nnstretch.bundle.manifest import Manifest
    from nnstretch.soc import Soc

REPEATS = 10
QUIET_S = 2.0
"""Shorter runs show no progress."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add = parser.add_argument
    add("bundle", metavar="BUNDLE", type=Path, help="a .nns file of `nnstretch export`")
    add(
        "--soc",
        help=(
            "chip that the bundle's predicted times are of: a name under latency_predictors/ or a"
            " folder; the bundle's own processors where absent"
        ),
    )
    add(
        "--mode",
        choices=("spatial", "sequential", "pipeline"),
        default="spatial",
        help="branches at once, one after another, or stages",
    )
    add(
        "--clock",
        choices=("real", "virtual"),
        help="virtual where the bundle has predicted times, else real",
    )
    add(
        "--backend",
        metavar="NAME[,PROCESSOR=NAME...]",
        help="onnxruntime, litert, openvino[:DEVICE] or torch[:cuda]; by file where absent",
    )
    add("--repeat", type=run_requests.count, metavar="N", help=f"how often to run ({REPEATS})")
    add(
        "--plan",
        metavar="NAME",
        help="one of several; without it the main plan, and of many requests the best now",
    )
    add_files(parser)
    add("--seed", type=seed_of, help="of the random input (0)")
    run_requests.add_arguments(parser)
    run_pipeline.add_arguments(parser)


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add the files that are read and written."""
    add = parser.add_argument
    add(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]FILE.npy|IMAGE",
        help=(
            "an array, or an image where the bundle says how it sees them; of several inputs each"
            " by its name, repeatable; random where absent"
        ),
    )
    add(
        "--output",
        action="append",
        default=[],
        metavar="[NAME=]FILE.npy",
        help="where to write the network's output; of several those that are named, repeatable",
    )
    add(
        "--trace",
        type=Path,
        metavar="FILE.json",
        help="where to write the timeline, Chrome/Perfetto JSON",
    )


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data."""
    from nnstretch.bundle.bundle import read_bundle

    check(args)
    bundle = read_bundle(args.bundle)
    soc = soc_of(args, bundle.manifest)
    if args.requests is not None:
        result = run_requests_of(args, bundle, soc)
    elif args.mode == "pipeline":
        result = run_pipeline.run_stream(args, bundle, soc)
    else:
        result = run_repeatedly(args, bundle, soc)
    return result | source_json(result, bundle.manifest, soc)


def check(args: argparse.Namespace) -> None:
    """Refuse arguments that do not go together, before anything is loaded. Raises BadInput."""
    check_writable(args.trace, args.bundle, args.soc)
    if args.seed is not None and args.input:
        raise BadInput(
            f"--seed {args.seed} with --input {args.input[0]}, command line, it draws a random"
            " input, and this one is given"
        )
    run_requests.check(args)
    run_pipeline.check(args)


def source_json(result: dict[str, Any], manifest: Manifest, soc: Soc | None) -> dict[str, Any]:
    """Return what is known of the chip that predicted or emulated times are of.

    A bundle names its chip and does not say whether that is calibrated. What made the run noisy
    stands behind what made the chip's profile so.
    """
    if soc is not None:
        noisy = filter(None, (soc.noisy, result.get("noisy")))
        return {**calibration_json(soc), "noisy": "; ".join(noisy)}
    is_measured = result["timing"] == "measured"
    # A pipeline that is measured is shown beside the bottleneck that its bundle predicts.
    if is_measured and result.get("predicted_bottleneck_ms") is None:
        return {}
    return {"calibrated": None, "predicted_for": manifest.soc}


def run_repeatedly(args: argparse.Namespace, bundle: Bundle, soc: Soc | None) -> dict[str, Any]:
    """Run one input several times; write --output and --trace."""
    from nnstretch.bundle.manifest import MAIN, plans_by_name
    from nnstretch.cli.run.image_input import best_classes, read_input
    from nnstretch.run import Session
    from nnstretch.run.results.session_json import repeat_runs, session_json, write_session_trace

    clock = clock_of(args, bundle.manifest)
    sources, outputs = array_files(args, bundle.manifest)
    with Session(bundle, soc, args.mode, clock, backend=args.backend, plan=args.plan) as session:
        inputs = (
            read_inputs(sources, lambda path: read_input(path, bundle.manifest))
            if sources
            else session.network.random_inputs(args.seed or 0)
        )
        runs = repeat_runs(session, inputs, args.repeat or REPEATS, run_progress)
        result = {
            "bundle": str(args.bundle),
            "plan": args.plan or MAIN,
            "plans": list(plans_by_name(bundle.manifest)),
            **session_json(session, inputs, runs, run_progress),
            "best": best_classes(runs.output, bundle.manifest.image_task if sources else None),
        }
        write_outputs(outputs, runs.output)
        if args.trace:
            write_session_trace(args.trace, session, runs.traces)
    return result


def run_requests_of(args: argparse.Namespace, bundle: Bundle, soc: Soc | None) -> dict[str, Any]:
    """Run many requests; write --output and --trace.

    Raises BadInput where --output is asked for and no request was answered.
    """
    from nnstretch.cli.run.image_input import read_input

    clock = clock_of(args, bundle.manifest)
    sources, outputs = array_files(args, bundle.manifest)
    inputs = None
    if sources:
        inputs = read_inputs(sources, lambda path: read_input(path, bundle.manifest))
    result, output, outcome = run_requests.run_load_test(args, bundle, soc, clock, inputs)
    if args.trace:
        run_requests.write_trace(args.trace, outcome)
    if outputs and not outcome.answered_us:
        why = ", ".join(f"{kind} {number}" for kind, number in sorted(outcome.errors.items()))
        raise BadInput(
            f"no request of {args.requests} was answered ({why}), {args.bundle}, there is no"
            f" output, {next(iter(outputs.values()))} is not written; leave --output out to see"
            " the times alone"
        )
    write_outputs(outputs, output)
    return {"bundle": str(args.bundle), **result}


def clock_of(args: argparse.Namespace, manifest: Manifest) -> str:
    """Return the clock: as named, else virtual where any sub-graph has predicted times."""
    if args.clock:
        return str(args.clock)
    return "virtual" if any(sub.predicted_us for sub in manifest.subgraphs) else "real"


def soc_of(args: argparse.Namespace, manifest: Manifest) -> Soc | None:
    """Load the chip, with the instances of processors that a bundle names (`cpu1` of `cpu`).

    Raises BadInput where no sub-graph has predicted times: there is nothing of a chip to play.
    """
    if args.soc is None:
        return None
    from nnstretch.bundle.manifest import all_subgraphs
    from nnstretch.predict import load_soc
    from nnstretch.soc_instances import instances_named_by

    soc, subgraphs = load_soc(args.soc), all_subgraphs(manifest)
    if not any(sub.predicted_us for sub in subgraphs):
        raise BadInput(
            f"--soc {args.soc} with {args.bundle}, command line, its sub-graphs have no predicted"
            f" times of a chip to play: nnstretch export --soc {args.soc} adds them; leave --soc"
            " out to measure this host"
        )
    return instances_named_by(soc, dict.fromkeys(sub.processor for sub in subgraphs))


def run_progress(count: int, expected_s: float) -> Iterable[int]:
    """Iterate over runs and show a bar on standard error where they take long."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    quiet = expected_s < QUIET_S or not console.is_terminal
    return track(range(count), "running", console=console, transient=True, disable=quiet)


def array_files(
    args: argparse.Namespace, manifest: Manifest
) -> tuple[dict[str, Path], dict[str, Path]]:
    """Return the files of a network's inputs and outputs. Raises BadInput."""
    inputs = manifest.input_names
    outputs = manifest.output_names
    return files_of(args, inputs, outputs, manifest.model)
