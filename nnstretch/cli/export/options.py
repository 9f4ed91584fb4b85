"""What `export` takes, and which options go together."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from nnstretch.bundle.manifest import FORMATS
from nnstretch.cli.arguments import (
    CALIBRATION_IMAGES,
    SOC_HELP,
    add_fallback,
    add_inputs,
    add_model,
    finite_number,
    whole_number,
)
from nnstretch.cli.export.cpp import FORMAT, add_cpp_arguments
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from nnstretch.plan import Plan


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add_model(parser)
    parser.add_argument(
        "--out", metavar="FILE.nns|FOLDER", help="the bundle to write; a folder for --format cpp"
    )
    parser.add_argument(
        "--single",
        metavar="FILE.onnx|FILE.tflite",
        help="the whole network as one file, beside --out or instead of it",
    )
    parser.add_argument(
        "--also",
        metavar="FILE.nns",
        action="append",
        default=[],
        help=(
            "add the plans of this bundle, named after it, to --out; repeatable. Its MODEL is the"
            " same; that its weights stand for the same network, too, is yours to see to: any of"
            " the plans may answer"
        ),
    )
    parser.add_argument(
        "--weights",
        metavar="CKPT",
        help="safetensors of the network, or of the stretched network for a plan",
    )
    parser.add_argument(
        "--format",
        choices=(*FORMATS, FORMAT),
        default="onnx",
        help="file format of sub-graphs (default onnx), or cpp: a folder of C++",
    )
    add_cpp_arguments(parser)
    add_int8_arguments(parser)
    parser.add_argument("--soc", help=SOC_HELP + "; default: the plan's own, if it names one")
    add_fallback(parser)
    parser.add_argument(
        "--processor",
        help="where a network without a plan runs (default: the chip's first, or cpu)",
    )
    add_inputs(parser)


def add_int8_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of int8: on what its ranges are measured, and when it is refused."""
    parser.add_argument(
        "--int8", action="store_true", help="int8 weights and activations (--format litert)"
    )
    parser.add_argument(
        "--calibration",
        metavar="WHAT",
        help=(
            "images on which int8 measures ranges: a folder of images, or a recipe (digits,"
            " RECIPE.yaml)"
        ),
    )
    parser.add_argument(
        "--calibration-images",
        type=whole_number,
        metavar="N",
        help=f"how many of them (default {CALIBRATION_IMAGES})",
    )
    parser.add_argument(
        "--max-drop",
        type=finite_number,
        metavar="POINTS",
        help=(
            "accuracy that int8 may lose on held-out images, where --calibration is a recipe that"
            " has labels and the network knows its classes (default 1)"
        ),
    )
    parser.add_argument(
        "--min-snr",
        type=finite_number,
        metavar="DB",
        help="signal-to-noise ratio that int8 must have where no label judges it (default 10)",
    )


def check(args: argparse.Namespace) -> None:
    """Refuse options that do not go together, before anything is loaded. Raises BadInput."""
    check_destinations(args)
    if args.int8:
        check_int8(args)
        return
    for option in ("calibration", "calibration_images", "max_drop", "min_snr"):
        if (value := getattr(args, option)) is not None:
            raise BadInput(
                f"--{option.replace('_', '-')} {value} without --int8, command line, float"
                " needs no calibration and loses nothing"
            )


def check_fallback(args: argparse.Namespace, plan: Plan | None) -> None:
    """Refuse --fallback where neither --soc nor the plan names a chip. Raises BadInput."""
    if args.fallback is not None and args.soc is None and (plan is None or plan.soc is None):
        raise BadInput(
            f"--fallback {args.fallback} without --soc, command line, nothing is priced without a"
            " chip"
        )


def check_destinations(args: argparse.Namespace) -> None:
    """Check where to write, and what files are named. Raises BadInput."""
    if args.out is None and args.single is None:
        raise BadInput("nothing to write, command line, give --out FILE.nns or --single FILE")
    if args.out is None:
        if args.also:
            raise BadInput(
                f"--also {args.also[0]} without --out, command line, only a bundle holds several"
                " plans"
            )
    elif args.single is not None and os.path.realpath(args.out) == os.path.realpath(args.single):
        raise BadInput(f"--single is {args.single}, command line, it is --out, too")
    elif args.format != FORMAT and args.out.lower().endswith(tuple(FORMATS.values())):
        raise BadInput(
            f"--out is {args.out}, command line, a bundle goes there: name a FILE.nns, or take"
            " --single for the whole network as such a file"
        )
    if args.single is not None:
        from nnstretch.export.single_file import format_of

        if format_of(args.single) == "onnx" and args.int8:
            raise BadInput(
                f"--int8 with --single {args.single}, command line, only a .tflite can be int8"
            )
        if format_of(args.single) == "onnx" and args.format == "litert" and args.out is None:
            raise BadInput(
                f"--format litert with --single {args.single}, command line, its name says what"
                " the file is: name a .tflite, or add --out"
            )


def check_int8(args: argparse.Namespace) -> None:
    """Check what goes with --int8. Raises BadInput."""
    if args.format != "litert":
        raise BadInput(
            f"--int8 with --format {args.format}, command line, only --format litert has it"
        )
    if args.calibration is None:
        raise BadInput(
            "--int8 without --calibration, command line, ranges of activations are measured on"
            " images: --calibration FOLDER of images, or a recipe such as digits (its training"
            " images)"
        )
    if args.calibration_images is not None and args.calibration_images < 1:
        raise BadInput(
            f"--calibration-images is {args.calibration_images}, command line, at least 1 image is"
            " needed"
        )
    if args.max_drop is not None and os.path.isdir(args.calibration):
        raise BadInput(
            f"--max-drop {args.max_drop:g} with --calibration {args.calibration}, command line, a"
            " folder has no labels, --min-snr judges int8, leave --max-drop out"
        )
