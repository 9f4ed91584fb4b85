"""Profile this machine.

Measure kernels on a backend, fit a latency predictor, check it on whole networks.

One pinned thread a processor. Interrupted runs go on where they stopped. The folder it writes is a
chip for every other verb (`--soc FOLDER`), with CARD.md beside it: what was measured, and how far
off it is.

Other work on the machine is seen while it happens: what it disturbed is measured again, and what
stays disturbed is not kept. A profile that lost too much by it says so in one line, its card and
every prediction from it say `noisy`, and the exit status is 1; the same command at a quieter time
keeps what was undisturbed and measures more, with the whole budget once more. So it does where a
run measured too few kernels to fit.

The budget covers all: probing what the backend fuses, measuring, fitting, what lies around kernels,
validation. What did not fit is listed on the card.

--for NETWORK measures the kernels of that network first, and others near them, so that `predict`
covers it. A folder that is there keeps what it has; the budget is then what this run may add.

--check FOLDER measures about ten kernels of a profile again, in their medleys, and says for each
what it took then and takes now. The exit status is 0 where the profile fits (eight of ten within
15%, median within 10%) and 1 where it does not, or where fewer than six stay undisturbed, too few
to tell.

  nnstretch profile --out latency_predictors/host --backend onnxruntime --budget-s 420
  nnstretch profile --out phone --backend litert --budget-s 420 --processors big=7,little=0
  nnstretch profile --out quick --budget-s 30 --validate none
  nnstretch profile --out latency_predictors/host --budget-s 60 --for det.onnx@1,3,320,320
  nnstretch profile --check latency_predictors/host
"""

from __future__ import annotations

import argparse
import re
from time import perf_counter
from typing import TYPE_CHECKING, Any

from nnstretch.cli.arguments import plain_number, seed_of, whole_number
from nnstretch.cli.output_path import check_folder
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from nnstretch.graph import Graph
    from nnstretch.profile.profile_request import ProfileResult

BUDGET_S, KERNELS = 420.0, 20_000
SHAPE = re.compile(r"([^=,;]+=)?-?\d+([,;:].*)?")
"""What stands behind @ if it is no part of a file's name, as in net@1.onnx."""
NEW_PROFILE: dict[str, tuple[str, Any]] = {
    "--for": ("targets", []),
    "--fresh": ("fresh", False),
    "--processors": ("processors", None),
    "--backend": ("backend", "onnxruntime"),
    "--dtype": ("dtype", None),
    "--budget-s": ("budget_s", BUDGET_S),
    "--validate": ("validate", "few"),
    "--kernels": ("kernels", KERNELS),
    "--seed": ("seed", 0),
}
"""What a new profile is made with, and its defaults: not for --check."""


def seconds(text: str) -> float:
    """Parse a positive number of seconds. Raises ArgumentTypeError when it is none."""
    value = plain_number(text)
    if not 1 <= value <= 1e6:
        raise argparse.ArgumentTypeError(
            f"{text!r:.80} is no time, write seconds between 1 and 1000000"
        )
    return value


def count(text: str) -> int:
    """Parse a positive number of pieces. Raises ArgumentTypeError when it is none."""
    if not 100 <= whole_number(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(
            f"{text!r:.80} is no number of kernels, write one between 100 and 1000000"
        )
    return int(text)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add_folders(parser)
    parser.add_argument(
        "--backend", default="onnxruntime", help="onnxruntime (default), litert, openvino or torch"
    )
    parser.add_argument("--dtype", help="float32, or int8 for litert (the default there)")
    add_measured_kernels(parser)
    parser.add_argument(
        "--fresh", action="store_true", help="forget what was measured into this folder before"
    )
    parser.add_argument(
        "--kernels",
        type=count,
        default=KERNELS,
        help=f"most kernels to measure on one core (default {KERNELS})",
    )
    parser.add_argument("--seed", type=seed_of, default=0, help="of the draw of kernels")


def add_folders(parser: argparse.ArgumentParser) -> None:
    """Add the two folders, of which one is given."""
    folders = parser.add_mutually_exclusive_group(required=True)
    folders.add_argument(
        "--out",
        metavar="FOLDER",
        help="where the chip is written; its name is the chip's name",
    )
    folders.add_argument(
        "--check",
        metavar="FOLDER",
        help="measure ten kernels of this profile again, and say whether it still fits",
    )


def add_measured_kernels(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the measurement: how long, where, and for which networks."""
    parser.add_argument(
        "--budget-s",
        type=seconds,
        default=BUDGET_S,
        help=f"seconds of the whole run, all processors together (default {BUDGET_S:g})",
    )
    parser.add_argument(
        "--for",
        dest="targets",
        metavar="MODEL[@SHAPE]",
        action="append",
        default=[],
        help=(
            "measure this network's kernels first; repeatable; behind @ what --input takes:"
            " 1,3,320,320, or x=1,3,320,320;ids=1,128"
        ),
    )
    parser.add_argument(
        "--processors",
        help=(
            "NAME=CORE or, with torch, NAME=cuda:N, ... (default: two equal cores, or one of each"
            " cluster)"
        ),
    )
    parser.add_argument(
        "--validate",
        default="few",
        help="networks to check on afterwards: few (default), all, none, or names with commas",
    )


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data."""
    started_s = perf_counter()
    if args.check is not None:
        return check(args)
    check_folder(args.out, "--out")
    from nnstretch.cli.progress import progress_stages
    from nnstretch.profile import profile

    targets: list[Graph] = []
    for text in args.targets:
        targets += target_graphs(text)
    with progress_stages() as progress:
        result = profile(
            args.out,
            backend=args.backend,
            dtype=args.dtype,
            budget_s=args.budget_s,
            processors=args.processors,
            networks=networks(args.validate),
            seed=args.seed,
            fresh=args.fresh,
            most_kernels=args.kernels,
            targets=targets,
            started_s=started_s,
            progress=progress,
        )
    return document(result)


def check(args: argparse.Namespace) -> dict[str, Any]:
    """Check a profile and return the result as JSON data.

    Raises BadInput beside arguments of a new profile, or for a folder that is no profile.
    """
    from nnstretch.cli.profile_check import check_json

    for option, (name, default) in NEW_PROFILE.items():
        if getattr(args, name) != default:
            raise BadInput(f"{option} with --check, command line, it is about a new profile")
    return check_json(args.check)


def target_graphs(text: str) -> list[Graph]:
    """Return the graphs of MODEL[@SHAPE]: the network's, or those of a plan's branches.

    Raises BadInput for a shape that is none.
    """
    from nnstretch.cli.loaded_model import load_model_argument
    from nnstretch.files.model_text import parse_input_shapes

    spec, at, shape = text.rpartition("@")
    named_shape = at and SHAPE.fullmatch(shape)
    inputs = parse_input_shapes(shape) if named_shape else ()
    model = load_model_argument(spec if named_shape else text, inputs)
    if model.plan is None:
        return [model.graph]
    from nnstretch.stretch.lowering.lower import lower

    lowered = lower(model.analysis, model.plan)
    return [branch.graph for branch in lowered.branches]


def networks(text: str) -> tuple[str, ...]:
    """Parse the networks held out for validation.

    Raises BadInput when the list is empty or a name has no source.
    """
    from nnstretch.profile.validation import FEW, NETWORKS

    named = {"few": FEW, "all": NETWORKS, "none": ()}
    if text in named:
        return named[text]
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names or not all(":" in name for name in names):
        raise BadInput(
            f"--validate is {text!r}, command line, write few, all, none, or networks as in"
            " torchvision:resnet50"
        )
    return names


def document(result: ProfileResult) -> dict[str, Any]:
    """Return the profile as JSON data."""
    from nnstretch.profile.validation import summary

    rows = [
        {
            "network": r.network,
            "processor": r.processor,
            "predicted_ms": r.predicted_ms,
            "measured_ms": r.measured_ms,
            "error": r.error,
            "spread": r.spread,
        }
        for r in result.rows
    ]
    return {
        "soc": result.soc.name,
        "kernels": result.kernels,
        "held_out": summary(result.rows),
        "networks": rows,
        "refused": result.refused,
        "power_w": result.power_w,
        "seconds": result.budget.elapsed_s,
        "phases_s": {"planned": result.budget.planned_s, "taken": result.budget.taken_s},
        "skipped": result.budget.skipped,
        "provenance": result.soc.provenance,
        "lost_s": result.noise.lost_s,
        "noisy": result.soc.noisy,
        "usable": not result.soc.noisy,
    }


def show(result: dict[str, Any], console: Any) -> None:
    """Print the result for people."""
    if "verdict" in result:
        from nnstretch.cli.profile_check import show_check

        show_check(result, console)
        return
    from rich.table import Table

    from nnstretch.cli.progress import warn_uncalibrated

    console.print(
        f"[bold]{result['soc']}[/bold]: {result['kernels']} kernels in {result['seconds']:.0f} s"
    )
    if result["networks"]:
        table = Table("network, never sampled", "processor", "predicted ms", "measured ms", "error")
        for row in result["networks"]:
            table.add_row(
                row["network"],
                row["processor"],
                f"{row['predicted_ms']:.2f}",
                f"{row['measured_ms']:.2f}",
                f"{row['error']:+.1%}",
            )
        console.print(table)
    for name, reason in result["refused"].items():
        console.print(f"[yellow]not told:[/yellow] {name}: {reason}")
    for what in result["skipped"]:
        console.print(f"[yellow]no time left for:[/yellow] {what}")
    console.print(f"source: {result['provenance']}")
    warn_uncalibrated(result, console)
