"""Partitions of a network and their bundles as JSON data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.partition.options import cores_of

if TYPE_CHECKING:
    from nnstretch.partition.measured import MeasuredPartition
    from nnstretch.partition.partition import Partition
    from nnstretch.soc import Soc


def result_json(
    args: argparse.Namespace,
    best: Partition,
    candidates: list[dict[str, Any]],
    soc: Soc,
    fallbacks: dict[str, str],
) -> dict[str, Any]:
    """Return the best partition and all candidates as JSON data."""
    from nnstretch.partition.partition_json import limits_json

    return {
        "model": args.model,
        "soc": soc.name,
        **candidates[0],
        **limits_json(best),
        "bundle": args.out,
        "cores": {name: list(cores) for name, cores in cores_of(args.cores).items()},
        "candidates": candidates,
        "fallbacks": fallbacks,
        "provenance": soc.provenance,
        "calibrated": soc.calibrated,
        "noisy": soc.noisy,
    }


def rows_json(
    candidates: Sequence[Partition], outs: Sequence[Path], errors: Sequence[float]
) -> list[dict[str, Any]]:
    """Return candidates by prediction as JSON data; without bundles where none were written."""
    from nnstretch.partition.partition_json import partition_json

    rows = []
    for rank, candidate in enumerate(candidates):
        bundle = str(outs[rank]) if outs else None
        error = errors[rank] if outs else None
        rows.append({**partition_json(candidate), "bundle": bundle, "max_abs_error": error})
    return rows


def measured_json(result: MeasuredPartition) -> dict[str, Any]:
    """Return a measured candidate as JSON data."""
    from nnstretch.partition.partition_json import partition_json

    return {
        **partition_json(result.partition),
        "bundle": str(result.path),
        "max_abs_error": result.error,
        "measured_ms": result.period_us / 1e3,
        "measured_stages_ms": [time_us / 1e3 for time_us in result.measured.service_us],
    }
