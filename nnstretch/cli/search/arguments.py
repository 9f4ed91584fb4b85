"""Arguments of `nnstretch search`."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from nnstretch.cli.arguments import (
    SOC_HELP,
    add_fallback,
    add_inputs,
    add_model,
    finite_number,
    names_of,
    whole_number,
)

MERGES = {"concat": ("concat",), "project": ("project",), "both": ("concat", "project")}
MEASURES = ("macs", "params", "meetings")
PARETO_STEPS = 8


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add_model(parser)
    parser.add_argument("--soc", required=True, help=SOC_HELP)
    parser.add_argument(
        "--processors",
        type=names_of,
        help=(
            "any of the chip's (default cpu,dsp, or its first two); a segment may run on one of"
            " them, or in branches on any set of them; a fast one that is dear to reach tightens"
            " --alpha and --beta for all, so leave it out where the plan does not use it"
        ),
    )
    add_inputs(parser)
    add_output(parser)
    add_space(parser)
    add_bounds(parser)
    add_fallback(parser)
    add_views(parser)
    add_effort(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which plans are listed and written."""
    parser.add_argument(
        "--top",
        type=whole_number,
        default=1,
        metavar="K",
        help=(
            "plans to list: the best, and K - 1 good ones that differ in where they branch, on"
            " what, or how they merge"
        ),
    )
    parser.add_argument(
        "--out",
        metavar="PLAN.yaml",
        help=(
            "where to write the best plan; also after Ctrl-C, but a FILE that is there stays where"
            " the search ends before its first plan"
        ),
    )
    parser.add_argument(
        "--out-dir",
        type=Path,
        metavar="FOLDER",
        help="where to write every plan of --top, as plan1.yaml, plan2.yaml ... by latency",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help=(
            "replace the plans in the FOLDER of --out-dir (they stay where the search ends before"
            " its first plan); a FILE is replaced without it, too"
        ),
    )


def add_effort(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that end a search before its proof."""
    parser.add_argument(
        "--time-limit",
        type=seconds_of,
        default=math.inf,
        metavar="SECONDS",
        help=(
            "end the search after so long with the best plan so far and what nothing can beat"
            " (default: until it is proven or effort ends)"
        ),
    )
    parser.add_argument(
        "--gap",
        type=finite_number,
        default=0.0,
        metavar="SHARE",
        help=(
            "end the search once nothing can be faster than the best plan so far by more than this"
            " share, say 0.01 (default 0: until it is proven optimal)"
        ),
    )


def seconds_of(text: str) -> float:
    """Parse a time in seconds above 0. Raises ArgumentTypeError."""
    value = finite_number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is no time in seconds above 0")
    return value


def add_space(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the search space."""
    group = parser.add_argument_group("what is searched")
    group.add_argument(
        "--width-steps",
        type=whole_number,
        metavar="N",
        help=(
            "widths tried per branch, evenly spread; faster and coarser (default: every multiple of"
            " 8 channels)"
        ),
    )
    group.add_argument(
        "--merge",
        choices=sorted(MERGES),
        default="both",
        help=(
            "how branches meet: concat lines their channels up, so a segment may come out narrower"
            " or wider; project brings each to its slice of the original width by a 1x1 convolution"
            " (default both)"
        ),
    )
    add_segment_limits(group)


def add_segment_limits(group: argparse._ActionsContainer) -> None:
    """Add the limits of one segment and its branches."""
    group.add_argument(
        "--alpha",
        type=finite_number,
        default=0.5,
        help=(
            "copies, synchronising and merging of a segment over what its original takes to compute"
            " on the fastest of --processors, its copies left out, at most (default 0.5); lower is"
            " stricter"
        ),
    )
    group.add_argument(
        "--beta",
        type=finite_number,
        default=0.8,
        help=(
            "latency of a branch over what the original segment takes to compute on the fastest of"
            " --processors, its copies left out, at most (default 0.8); lower is stricter"
        ),
    )
    group.add_argument(
        "--min-depth",
        type=finite_number,
        default=0.3,
        help="share of blocks that a branch keeps, at least (default 0.3)",
    )
    group.add_argument(
        "--min-width",
        type=finite_number,
        default=0.2,
        help="share of channels that a branch keeps, at least (default 0.2)",
    )
    group.add_argument(
        "--max-fork",
        metavar="N|Rx",
        help=(
            "the original's MACs between two meeting points, at most, absolute or as a share of the"
            " network's such as 0.4x: branches that run apart for less exchange features more often"
            " (default 1x)"
        ),
    )


def add_min_meetings(group: argparse._ActionsContainer) -> None:
    """Add --min-meetings."""
    group.add_argument(
        "--min-meetings",
        type=whole_number,
        default=0,
        metavar="N",
        help="how often branches meet in the whole plan, at least (default 0)",
    )


def add_bounds(parser: argparse.ArgumentParser) -> None:
    """Add the limits of the whole plan."""
    group = parser.add_argument_group(
        "what the whole network must keep",
        "absolute (1.6e9), or a ratio to the original's (0.885x)",
    )
    group.add_argument(
        "--min-macs",
        metavar="N|Rx",
        help="MACs of the whole plan at least; more of them, more accuracy",
    )
    group.add_argument("--max-macs", metavar="N|Rx", help="MACs of the whole plan at most")
    group.add_argument("--min-params", metavar="N|Rx", help="parameters of the whole plan at least")
    group.add_argument(
        "--max-params",
        metavar="N|Rx",
        help=(
            "parameters of the whole plan at most (default 1.5x; branches on several processors"
            " each hold weights, so a faster plan may hold many times more, say 10x, if allowed)"
        ),
    )
    add_min_meetings(group)


def add_views(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that ask for more than plans."""
    group = parser.add_argument_group("more than the best plan")
    group.add_argument(
        "--explain",
        metavar="CUT",
        help=(
            "for every segment that ends at this cut: the rule that forbids branches there, with"
            " its demand and limit, or how many branches are left and how fast the best are;"
            " `nnstretch inspect MODEL` lists the cuts"
        ),
    )
    group.add_argument(
        "--sensitivity",
        action="store_true",
        help="best latency for every pair of several alphas and betas: twelve searches",
    )
    group.add_argument(
        "--pareto",
        type=measures_of,
        default=(),
        metavar="macs,params,meetings",
        help=(
            "the front of latency against MACs, parameters, how often branches meet, or each: one"
            " search a step, from 0.5x to 1.2x of the original's, and from 1 meeting point on"
        ),
    )
    group.add_argument(
        "--pareto-steps",
        type=whole_number,
        metavar="N",
        help=f"searches behind a front (default {PARETO_STEPS})",
    )
    group.add_argument("--picture", metavar="FILE.svg", help="draw the fronts of --pareto")


def measures_of(text: str) -> tuple[str, ...]:
    """Parse the measures of --pareto. Raises ArgumentTypeError when one is unknown."""
    names = tuple(dict.fromkeys(names_of(text)))
    if unknown := [name for name in names if name not in MEASURES]:
        raise argparse.ArgumentTypeError(
            f"{unknown[0]!r} is no measure of a front, it is macs, params or meetings; memory and"
            " energy are columns of each"
        )
    return names
