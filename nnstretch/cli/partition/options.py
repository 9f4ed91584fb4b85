"""Arguments of `nnstretch partition` about how single stages run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nnstretch.cli.arguments import whole_number
from nnstretch.errors import BadInput
from nnstretch.pipeline import DEFAULT_CAPACITY, MAX_CORE, MAX_REPLICAS
from nnstretch.schedule.cpu_affinity import affinity, describe_cores

if TYPE_CHECKING:
    from nnstretch.partition.export import StageOptions

PYTHON_STAGES = ("before", "after")


def add_stage_arguments(parser: argparse.ArgumentParser) -> None:
    """Add these arguments to the verb's parser."""
    add = parser.add_argument
    add(
        "--threads",
        type=whole_number,
        default=1,
        metavar="N",
        help="of each stage's backend (default 1)",
    )
    add(
        "--capacity",
        type=whole_number,
        default=DEFAULT_CAPACITY,
        metavar="N",
        help=f"items that may wait in front of a stage (default {DEFAULT_CAPACITY})",
    )
    add(
        "--cores",
        action="append",
        metavar="STAGE=CORES",
        help="CPU cores that a stage's threads are bound to, as in s0=0 or s1=2,3; stages are s0,"
        " s1, ..., before, after",
    )
    add_python_stages(parser)


def add_python_stages(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of stages in Python."""
    add = parser.add_argument
    add(
        "--before",
        default="",
        metavar="MODULE:FUNCTION",
        help="Python stage that makes the network's inputs of an item",
    )
    add(
        "--after",
        default="",
        metavar="MODULE:FUNCTION",
        help="Python stage that makes a result of the network's outputs",
    )
    add(
        "--python-replicas",
        action="append",
        metavar="STAGE=N",
        help="threads that call a Python stage's function at once, as in before=2; it must allow"
        " that",
    )


def stage_options_of(args: argparse.Namespace) -> StageOptions:
    """Return the options of stages that the arguments name."""
    from nnstretch.partition.export import StageOptions

    return StageOptions(
        args.threads,
        args.capacity,
        args.before,
        args.after,
        cores=cores_of(args.cores),
        replicas=replicas_of(args.python_replicas),
    )


def check_stage_arguments(args: argparse.Namespace) -> None:
    """Refuse what can be refused before anything is loaded. Raises BadInput."""
    python = python_stages(args)
    for name in replicas_of(args.python_replicas):
        if name not in python:
            raise BadInput(
                f"--python-replicas {name}, command line, Python stages here are"
                f" {', '.join(python) or 'none'}; --before and --after name them"
            )
    if args.stages is not None:
        check_stage_names(args, args.stages)
    if args.measure and args.cores:
        check_measured_cores(args)


def check_measured_cores(args: argparse.Namespace) -> None:
    """Refuse cores that candidates cannot be measured on. Raises BadInput."""
    if args.stages is None and args.split is None:
        raise BadInput(
            "--cores with --measure, command line, candidates differ in their number of stages:"
            " give --stages, too"
        )
    allowed = affinity()
    for name, cores in cores_of(args.cores).items():
        missing = [] if allowed is None else sorted(set(cores) - allowed)
        if missing:
            raise BadInput(
                f"--cores {name}={missing[0]} with --measure, command line, this process may use"
                f" {describe_cores(allowed or ())}"
            )


def check_stage_names(args: argparse.Namespace, *counts: int) -> None:
    """Check that candidates of so many stages have each stage of --cores. Raises BadInput."""
    python = python_stages(args)
    for count in counts:
        known = {*(f"s{number}" for number in range(count)), *python}
        described = ", ".join([f"s0 to s{count - 1}" if count > 1 else "s0", *python])
        for name in cores_of(args.cores):
            if name not in known:
                raise BadInput(
                    f"--cores {name[:40]}, command line, there is no such stage: they are"
                    f" {described}"
                )


def python_stages(args: argparse.Namespace) -> list[str]:
    """Return the Python stages that the arguments name."""
    return [name for name in PYTHON_STAGES if getattr(args, name)]


def cores_of(assignments: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Parse --cores: cores by stage. Raises BadInput."""
    cores_by_stage = {}
    for name, text in parse_assignments("--cores", assignments):
        cores = tuple(int(part) if is_count(part) else -1 for part in text.split(","))
        if len(set(cores)) != len(cores) or not all(0 <= core <= MAX_CORE for core in cores):
            raise BadInput(
                f"--cores is {name}={text!r:.40}, command line, write cores from 0 to {MAX_CORE},"
                " each once, as in s0=0,1"
            )
        cores_by_stage[name] = cores
    return cores_by_stage


def replicas_of(assignments: Sequence[str] | None) -> dict[str, int]:
    """Parse --python-replicas: replicas by Python stage. Raises BadInput."""
    replicas = {}
    for name, text in parse_assignments("--python-replicas", assignments):
        if not is_count(text) or not 1 <= int(text) <= MAX_REPLICAS:
            raise BadInput(
                f"--python-replicas is {name}={text!r:.40}, command line, write a number from 1 to"
                f" {MAX_REPLICAS}, as in before=2"
            )
        replicas[name] = int(text)
    return replicas


def parse_assignments(option: str, assignments: Sequence[str] | None) -> list[tuple[str, str]]:
    """Parse STAGE=VALUE, each stage at most once. Raises BadInput."""
    values: dict[str, str] = {}
    for text in assignments or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise BadInput(
                f"{option} is {text!r:.60}, command line, write STAGE=NUMBER, as in s0=0"
            )
        if name in values:
            raise BadInput(
                f"{option} {name[:40]} is given twice, command line, write one for each stage"
            )
        values[name] = value
    return list(values.items())


def is_count(text: str) -> bool:
    """Return whether a text is a decimal number of at most six digits."""
    return text.isascii() and text.isdecimal() and len(text) <= 6
