"""Measure a plan on this machine.

The original network on one core and on all, its branches one after another and at once.

Everything competes in one run, in turns, round after round; speed-ups are over the original on one
core, with an interval that holds the true median with 95% (of fewer than six rounds it is the range
that was seen). The critical path is the slowest branch of every segment and its merge, each
sub-graph alone on its core. Without --weights the numbers that are computed come from the model's
own (often random) start; times hardly depend on them. With --calibration random, batch norms of
such networks get the statistics of those inputs, or int8 would find no signal in deep ones.

  nnstretch bench plan.yaml
  nnstretch bench plan.yaml --backend onnxruntime,openvino --seconds 60 --out bench.md
  nnstretch bench plan.yaml --backend litert --int8 --calibration digits
  nnstretch bench plan.yaml --bundle net.nns                       # branches as exported before
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.arguments import (
    CALIBRATION_IMAGES,
    MODEL_HELP,
    names_of,
    plain_number,
    whole_number,
)
from nnstretch.cli.bench.result import RANDOM, result_of
from nnstretch.cli.bench.result import show as show
from nnstretch.cli.loaded_model import LoadedModel, load_model_argument
from nnstretch.cli.output_path import check_writable
from nnstretch.cli.progress import progress_stages
from nnstretch.errors import BadInput, UnknownName
from nnstretch.files.plan_yaml import parse_plan

if TYPE_CHECKING:
    from nnstretch.bench.prepare import BenchNetwork
    from nnstretch.bundle.bundle import Bundle
    from nnstretch.plan import Plan

ROUNDS, SECONDS = 30, 86_400


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    parser.add_argument(
        "model", metavar="PLAN.yaml", help=f"a plan; its network may be any of: {MODEL_HELP}"
    )
    parser.add_argument("--weights", metavar="CKPT", help="safetensors of the stretched network")
    parser.add_argument(
        "--bundle",
        metavar="FILE.nns",
        type=Path,
        help="the branches, exported before; else they are exported",
    )
    parser.add_argument(
        "--backend",
        type=names_of,
        metavar="NAME[,NAME...]",
        help=(
            "onnxruntime, litert, openvino[:DEVICE], torch (default: onnxruntime, or what the"
            " bundle asks for)"
        ),
    )
    parser.add_argument("--int8", action="store_true", help="int8, too, of litert")
    parser.add_argument("--only-int8", action="store_true", help="int8 of litert, and no float")
    parser.add_argument(
        "--calibration",
        metavar="WHAT",
        help="for --int8: a folder of images, a recipe (digits), or random numbers (random)",
    )
    parser.add_argument(
        "--calibration-images",
        type=whole_number,
        metavar="N",
        help=f"how many ({CALIBRATION_IMAGES})",
    )
    add_length(parser)
    parser.add_argument("--out", metavar="FILE.md", help="where to write the result as a page")


def add_length(parser: argparse.ArgumentParser) -> None:
    """Add the two ways to say how long to measure."""
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--runs",
        type=_count,
        default=ROUNDS,
        metavar="N",
        help=f"rounds, each contender once a round ({ROUNDS})",
    )
    length.add_argument(
        "--seconds",
        type=_seconds,
        metavar="S",
        help="rounds for so long, instead of a number of them",
    )


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data."""
    out = check_writable(args.out, args.model, args.weights, args.bundle)
    check(args)
    from nnstretch.bench.contenders import run_competition
    from nnstretch.bench.prepare import prepare_variants, requested_forms, warn_low_snr

    with progress_stages() as tell:
        network = load_network(args)
        forms = requested_forms(args.backend, args.int8, args.only_int8, network.bundle)
        variants, skipped = prepare_variants(network, forms, tell)
        outcomes = run_competition(variants, args.runs, args.seconds, tell)
    return result_of(args, out, outcomes, skipped, warn_low_snr(variants))


def check(args: argparse.Namespace) -> None:
    """Refuse options that do not go together, before anything is loaded.

    Raises BadInput and UnknownName.
    """
    from nnstretch.cli.loaded_model import is_plan
    from nnstretch.run.backends.registry import CHOICES, READS

    if not is_plan(args.model):
        raise BadInput(
            f"{args.model} is no plan, bench, name a FILE.yaml of `nnstretch search --out`"
        )
    for name in args.backend or ():
        if name.partition(":")[0] not in READS:
            raise UnknownName(f"unknown backend {name!r}, --backend, it is one of {CHOICES}")
    if len(set(args.backend or ())) < len(args.backend or ()):
        raise BadInput(f"--backend {','.join(args.backend)}, command line, name each once")
    args.int8 |= args.only_int8
    check_int8(args)
    if args.bundle is not None and args.weights is not None:
        raise BadInput("--weights with --bundle, command line, a bundle brings its own")


def check_int8(args: argparse.Namespace) -> None:
    """Refuse what does not go with int8, or goes with it alone. Raises BadInput."""
    if args.only_int8 and set(args.backend or ()) - {"litert"}:
        raise BadInput(
            f"--only-int8 with --backend {','.join(args.backend)}, command line, only litert has it"
        )
    if args.int8 and args.backend and "litert" not in args.backend:
        raise BadInput(
            f"--int8 with --backend {','.join(args.backend)}, command line, only litert has it"
        )
    if args.int8 and args.calibration is None:
        raise BadInput(
            "--int8 without --calibration, command line, name a FOLDER of images, a recipe such as"
            " digits, or random"
        )
    if args.calibration is not None and not args.int8:
        raise BadInput(
            f"--calibration {args.calibration} without --int8, command line, float needs no"
            " calibration"
        )
    if args.calibration_images is not None and args.calibration in (None, RANDOM):
        why = "without --int8" if args.calibration is None else f"with --calibration {RANDOM}"
        raise BadInput(
            f"--calibration-images {args.calibration_images} {why}, command line, there are none to"
            " choose from"
        )


def load_network(args: argparse.Namespace) -> BenchNetwork:
    """Load what the command line names. Raises BadInput where plan and bundle do not belong."""
    from nnstretch.bench.prepare import BenchNetwork, random_inputs
    from nnstretch.stretch.lowering.lower import lower
    from nnstretch.stretch.weights.weights_file import read_image_task
    from nnstretch.train.data.calibration import open_calibration

    subject = load_model_argument(args.model, weights=args.weights)
    plan = subject.plan
    assert plan is not None
    bundle = None if args.bundle is None else load_bundle(args, subject, plan)
    calibration: Any = None
    if args.int8 and args.calibration == RANDOM:
        calibration = random_inputs(plan.input_shape)
    elif args.int8:
        images = args.calibration_images
        calibration = open_calibration(
            args.calibration,
            CALIBRATION_IMAGES if images is None else images,
            plan.input_shape,
            task=read_image_task(args.weights) if args.weights else None,
        )
    return BenchNetwork(
        subject.captured,
        plan,
        lambda: subject.build_stretched(lower(subject.graph, plan), args.weights),
        None if calibration is None else lambda: calibration,
        random_weights=args.calibration == RANDOM and args.weights is None,
        bundle=bundle,
    )


def load_bundle(args: argparse.Namespace, subject: LoadedModel, plan: Plan) -> Bundle:
    """Read the bundle of --bundle. Raises BadInput for one that is not of the plan."""
    from nnstretch.bench.same_network import check_same_network
    from nnstretch.bundle.bundle import read_bundle
    from nnstretch.stretch.lowering.lower import lower

    bundle = read_bundle(args.bundle)
    if bundle.manifest.model != plan.model:
        raise BadInput(
            f"{args.bundle} is of {bundle.manifest.model}, bench, the plan stretches {plan.model}"
        )
    if not has_segments_of(bundle, plan):
        raise BadInput(
            f"{args.bundle} has other branches than {args.model}, bench, name the plan that it was"
            " exported from"
        )
    check_same_network(bundle, lower(subject.graph, plan))
    return bundle


def has_segments_of(bundle: Bundle, plan: Plan) -> bool:
    """Return whether a bundle was exported from a plan; true where it does not say from which."""
    if not bundle.manifest.plan:
        return True
    exported = parse_plan(bundle.manifest.plan, bundle.name)
    return (exported.segments, exported.input_shape) == (plan.segments, plan.input_shape)


def _count(text: str) -> int:
    if not 1 <= whole_number(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a count from 1 to 100000")
    return int(text)


def _seconds(text: str) -> float:
    value = plain_number(text)
    if not 0 < value <= SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text!r:.80} is no time in seconds above 0, up to {SECONDS}"
        )
    return value
