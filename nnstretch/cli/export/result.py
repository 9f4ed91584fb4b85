"""What `export` wrote, as JSON data and as text."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nnstretch.bundle.manifest import plans_by_name
from nnstretch.cli.export.cpp import FORMAT, show_cpp
from nnstretch.cli.loaded_model import show_notes
from nnstretch.cli.progress import warn_uncalibrated

if TYPE_CHECKING:
    from nnstretch.bundle.manifest import Manifest
    from nnstretch.export.bundle import ExportedBundle
    from nnstretch.export.single_file import SingleFile


def result_of(
    args: argparse.Namespace,
    written: ExportedBundle | None,
    single_file: SingleFile | None,
    predicted_us: float | None,
    calibration_images: int | None = None,
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
        "format": args.format if written is not None else None,
        "int8": args.int8,
        "max_abs_error": largest,
        "int8_snr_db": outcomes[0].int8_snr_db,
        "accuracy": None if accuracy is None else asdict(accuracy),
        "calibration_images": calibration_images,
        "predicted_ms": None if predicted_us is None else predicted_us / 1000,
        "single": {"file": args.single, **asdict(single_file)} if single_file is not None else None,
        "plans": list(plans_by_name(written.manifest)) if written is not None else [],
        "subgraphs": (
            rows_of(written.manifest, predicted_us is not None) if written is not None else []
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

    show_notes(result["notes"], console)
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
        warn_uncalibrated(result, console)
    for name, kind in result.get("fallbacks", {}).items():
        console.print(
            f"[yellow]never measured, priced as the nearest kind ({kind}):[/yellow] {name}"
        )
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
