"""Arguments of `nnstretch study`."""

from __future__ import annotations

import argparse
from pathlib import Path

from nnstretch.cli.arguments import (
    SOC_HELP,
    add_fallback,
    add_inputs,
    add_model,
    finite_number,
    names_of,
    seed_of,
    whole_number,
)
from nnstretch.cli.search.arguments import add_min_meetings, add_segment_limits

OBJECTIVES = ("latency", "measured", "accuracy", "both")
RECIPE, EPOCHS = "digits", 2
"""Of one trial's training."""
REPEAT = 20
"""Runs behind one measured latency."""
SAMPLERS = ("tpe", "nsga2", "gp", "random")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add_model(parser)
    parser.add_argument("--soc", required=True, help=SOC_HELP)
    parser.add_argument(
        "--processors", type=names_of, help="default cpu,dsp, or the chip's first two"
    )
    parser.add_argument(
        "--trials",
        type=positive_integer,
        default=100,
        metavar="N",
        help="finished trials of the whole study (default 100)",
    )
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default="latency",
        help="both: predicted latency and accuracy (default latency)",
    )
    add_storage(parser)
    add_sampling(parser)
    add_inputs(parser)
    add_limits(parser)
    add_fallback(parser)
    add_evaluation(parser)
    parser.add_argument(
        "--lease-s",
        type=finite_number,
        default=60.0,
        metavar="S",
        help="run a trial again when its worker is silent for S (default 60)",
    )


def add_storage(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say where the study is kept."""
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="sqlite:///..., mysql://..., grpc://HOST:PORT or a journal FILE",
    )
    parser.add_argument("--name", help="of the study (default: model, chip and objective)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default studies/NAME")


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say how trials are proposed."""
    parser.add_argument(
        "--sampler", choices=SAMPLERS, default="tpe", help="who proposes trials (default tpe)"
    )
    parser.add_argument("--seed", type=seed_of, help="of the sampler; give every worker its own")
    parser.add_argument(
        "--warm",
        type=whole_number,
        default=5,
        metavar="K",
        help="start from the K best plans of the exact search that concatenate (default 5)",
    )


def add_evaluation(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say how a trial is measured and trained."""
    parser.add_argument(
        "--repeat",
        type=positive_integer,
        help=f"runs behind one measured latency (default {REPEAT})",
    )
    parser.add_argument("--recipe", help=f"training recipe, for accuracy (default {RECIPE})")
    parser.add_argument(
        "--epochs",
        type=positive_integer,
        help=f"epochs of one trial's training (default {EPOCHS})",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another key of the recipe, dotted",
    )
    parser.add_argument(
        "--weights", metavar="CKPT", help="the original's weights, which branches inherit"
    )
    parser.add_argument(
        "--no-prune", action="store_true", help="train every trial to its last epoch"
    )


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the limits that `search` has."""
    add_segment_limits(parser)
    for name in ("min-macs", "max-macs", "min-params"):
        parser.add_argument(
            f"--{name}", metavar="N|Rx", help="of the whole plan, absolute or as 0.885x"
        )
    add_min_meetings(parser)


def positive_integer(text: str) -> int:
    """Parse a positive whole number. Raises ArgumentTypeError when it is none."""
    if not 1 <= whole_number(text) <= 10_000_000:
        raise argparse.ArgumentTypeError(
            f"{text!r:.80} is no count, write a whole number of at least 1"
        )
    return int(text)
