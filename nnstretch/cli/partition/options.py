"""What `nnstretch partition` is told of single stages.

`--cores s0=0,1` and `--python-replicas before=2`.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence

from nnstretch.errors import BadInput
from nnstretch.pipeline import MAX_CORE, MAX_REPLICAS
from nnstretch.schedule.cpu_affinity import affinity

PYTHON = ("before", "after")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add these arguments to the verb's parser."""
    parser.add_argument(
        "--cores",
        action="append",
        default=None,
        metavar="STAGE=CORES",
        help=(
            "CPU cores that a stage's threads are bound to, as in s0=0 or s1=2,3; stages are s0,"
            " s1, ..., before, after"
        ),
    )
    parser.add_argument(
        "--python-replicas",
        action="append",
        default=None,
        metavar="STAGE=N",
        help=(
            "threads that call a Python stage's function at once, as in before=2; it must allow"
            " that"
        ),
    )


def check(args: argparse.Namespace) -> None:
    """Refuse what can be refused before anything is loaded. Raises BadInput."""
    cores, replicas = cores_of(args.cores), replicas_of(args.python_replicas)
    python = tuple(name for name in PYTHON if getattr(args, name))
    for name in replicas:
        if name not in python:
            raise BadInput(
                f"--python-replicas {name}, command line, Python stages here are"
                f" {', '.join(python) or 'none'}; --before and --after name them"
            )
    if args.stages is not None:
        check_names(args, args.stages)
    if not (args.measure and cores):
        return
    if args.stages is None and args.split is None:
        raise BadInput(
            "--cores with --measure, command line, candidates differ in their number of stages:"
            " give --stages, too"
        )
    allowed = affinity()
    for name, bound in cores.items():
        if missing := sorted(set(bound) - allowed) if allowed is not None else []:
            raise BadInput(
                f"--cores {name}={missing[0]} with --measure, command line, this process may use"
                f" {', '.join(map(str, sorted(allowed or ())))}"
            )


def check_names(args: argparse.Namespace, *counts: int) -> None:
    """Check that every stage that has cores is there in each candidate. Raises BadInput."""
    python = [name for name in PYTHON if getattr(args, name)]
    for count in counts:
        known: Collection[str] = [*(f"s{number}" for number in range(count)), *python]
        told = ", ".join([f"s0 to s{count - 1}" if count > 1 else "s0", *python])
        for name in cores_of(args.cores):
            if name not in known:
                raise BadInput(
                    f"--cores {name[:40]}, command line, there is no such stage: they are {told}"
                )


def cores_of(assignments: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Return cores by stage. Raises BadInput."""
    cores_by_stage = {}
    for name, text in _assigned("--cores", assignments):
        cores = tuple(int(part) if _is_count(part) else -1 for part in text.split(","))
        if len(set(cores)) != len(cores) or not all(0 <= core <= MAX_CORE for core in cores):
            raise BadInput(
                f"--cores is {name}={text!r:.40}, command line, write cores from 0 to {MAX_CORE},"
                " each once, as in s0=0,1"
            )
        cores_by_stage[name] = cores
    return cores_by_stage


def replicas_of(assignments: Sequence[str] | None) -> dict[str, int]:
    """Return replicas by Python stage. Raises BadInput."""
    replicas = {}
    for name, text in _assigned("--python-replicas", assignments):
        if not _is_count(text) or not 1 <= int(text) <= MAX_REPLICAS:
            raise BadInput(
                f"--python-replicas is {name}={text!r:.40}, command line, write a number from 1 to"
                f" {MAX_REPLICAS}, as in before=2"
            )
        replicas[name] = int(text)
    return replicas


def _assigned(option: str, assignments: Sequence[str] | None) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for text in assignments or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise BadInput(
                f"{option} is {text!r:.60}, command line, write STAGE=NUMBER, as in s0=0"
            )
        if name in dict(pairs):
            raise BadInput(
                f"{option} {name[:40]} is given twice, command line, write one for each stage"
            )
        pairs.append((name, value))
    return pairs


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 6
