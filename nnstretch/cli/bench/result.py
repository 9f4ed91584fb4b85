"""The result of `bench`: as JSON data, as a page, and as text."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.files.model_text import parse_model_spec

if TYPE_CHECKING:
    from nnstretch.bench.contenders import BenchResult

RANDOM = "random"
PACKAGES = ("nnstretch", "numpy", "onnxruntime", "ai-edge-litert", "openvino", "torch")


def result_of(
    args: argparse.Namespace,
    out: Path | None,
    outcomes: list[BenchResult],
    skipped: dict[str, str],
    notes: list[str],
) -> dict[str, Any]:
    """Return the comparison as JSON data."""
    from nnstretch.bench.bench_page import doubts_about, markdown_page, outcome_json
    from nnstretch.files.atomic import atomic_write

    facts = measurement_facts(args)
    if out is not None:
        words = ["nnstretch", "bench", args.model]
        for name, value in options(args).items():
            words += filter(None, (f"--{name}", value))
        command = shlex.join(words)
        with atomic_write(out) as aside:
            aside.write_text(
                markdown_page(
                    f"{Path(parse_model_spec(args.model).source).stem} on this machine",
                    command,
                    [*facts.values(), *notes],
                    outcomes,
                    skipped,
                )
            )
    return {
        **{"plan": args.model, "page": args.out, **facts},
        "variants": [outcome_json(outcome) for outcome in outcomes],
        **{"skipped": skipped, "warnings": [*notes, *doubts_about(outcomes)]},
    }


def options(args: argparse.Namespace) -> dict[str, str]:
    """Return the options as they were given."""
    extras = {
        "weights": args.weights,
        "bundle": args.bundle,
        "backend": ",".join(args.backend or ()),
        "int8": "" if args.int8 else None,
    }
    if args.only_int8:
        extras |= {"int8": None, "only-int8": ""}
    extras |= {"calibration": args.calibration, "calibration-images": args.calibration_images}
    extras |= {"seconds": args.seconds, "runs": None if args.seconds else args.runs}
    return {
        name: str(value)
        for name, value in extras.items()
        if value is not None and (value != "" or name in ("int8", "only-int8"))
    }


def measurement_facts(args: argparse.Namespace) -> dict[str, str]:
    """Return where, with what and of what was measured."""
    from importlib.metadata import PackageNotFoundError, version

    from nnstretch.bench.prepare import RANDOM_INPUTS
    from nnstretch.profile.machine import allowed_cores, description

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    random = (
        f", int8 calibrated on {RANDOM_INPUTS} random inputs" if args.calibration == RANDOM else ""
    )
    weights = args.weights or (
        f"of {args.bundle}"
        if args.bundle
        else "what the model starts with, of no use but for timing"
    )
    return {
        "machine": f"{description()}, {len(allowed_cores())} cores allowed",
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "weights": f"weights: {weights}{random}",
    }


def show(result: dict[str, Any], console: Any) -> None:
    """Print the result for people."""
    from rich.table import Table

    table = Table(
        "backend",
        "what",
        "median ms",
        "quartiles ms",
        "speed-up",
        "95% interval",
        title=f"{result['plan']}: {result['machine']}",
    )
    for variant in result["variants"]:
        for cells in contender_cells(variant):
            table.add_row(*cells)
    console.print(table)
    for variant in result["variants"]:
        limit = (
            f"critical path {variant['critical_path_ms']:.3f} ms, {variant['efficiency']:.3f} of"
            " the latency of branches at once"
        )
        console.print(
            f"{variant['backend']} {variant['precision']}: {limit}; {variant['dispatch_us']:.0f} us"
            " per meeting point"
        )
    console.print(f"{result['weights']}; {result['versions']}", style="dim")
    for name, why in result["skipped"].items():
        console.print(f"[yellow]not measured: {name}, {why}[/yellow]")
    for warning in result["warnings"]:
        console.print(f"[yellow]{warning}[/yellow]")


def contender_cells(variant: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row of the table for each contender; only the first one names the backend."""
    backend = f"{variant['backend']} {variant['precision']}"
    for name, row in variant["contenders"].items():
        low, high = row["speedup_interval"]
        quartiles = f"{row['q1_ms']:.3f} to {row['q3_ms']:.3f}"
        speedup = (f"{row['speedup']:.2f}x", f"{low:.2f} to {high:.2f}")
        yield (backend, name, f"{row['median_ms']:.3f}", quartiles, *speedup)
        backend = ""
