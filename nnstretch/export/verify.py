"""Files against the module they came from: each alone, and all in a row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.errors import Mismatch
from nnstretch.export.onnx.convert import check_close, max_abs_difference
from nnstretch.export.subgraph_files import ExportedFiles
from nnstretch.export.subgraph_specs import SubgraphSpec

MIN_SNR_DB = 10.0
"""int8 of a sound network has 20 and more; below 10, noise is a third of the signal."""
MAX_SNR_DB = 200.0
"""Stands for no noise at all."""


@dataclass(frozen=True, slots=True)
class ExportErrors:
    """How far files are from the module."""

    subgraphs: Mapping[str, float]
    """Largest absolute difference of each alone, on the first input."""
    whole: float
    """Of all in a row, on the first input."""
    int8_snr_db: float | None = None
    """Signal-to-noise ratio of the network's output over all inputs compared; of int8 only."""


def verify_files(
    exported: ExportedFiles,
    specs: Sequence[SubgraphSpec],
    int8: bool,
    name: str,
    least_db: float | None = None,
) -> ExportErrors:
    """Compare files with the module. Raises Mismatch where float files differ by more than
    rounding, or int8 drowns in its noise.
    """
    judge = max_abs_difference if int8 else check_close
    start, end = specs[0].sources[0], specs[-1].target
    rows: list[dict[str, np.ndarray]] = [
        {start: values[start].numpy()} for values in exported.tested
    ]
    alone: dict[str, float] = {}
    for spec in specs:
        file = exported.runner(exported.files[spec.name], spec.name)
        exact = {
            tensor: exported.tested[0][tensor].numpy() for tensor in (*spec.sources, spec.target)
        }
        computed = file.run(*(exact[source] for source in spec.sources))
        alone[spec.name] = judge(exact[spec.target], computed, f"sub-graph {spec.name}")
        for row in rows:
            row[spec.target] = file.run(*(row[source] for source in spec.sources))
    expected = [values[end].numpy() for values in exported.tested]
    whole = judge(expected[0], rows[0][end], f"bundle of {name}")
    return ExportErrors(
        alone,
        whole,
        check_snr(expected, [row[end] for row in rows], name, least_db) if int8 else None,
    )


def check_snr(
    expected: Sequence[np.ndarray],
    actual: Sequence[np.ndarray],
    name: str,
    least_db: float | None = None,
) -> float:
    """Return the signal-to-noise ratio in decibels. Raises Mismatch below the least, or
    MIN_SNR_DB.
    """
    ratio_db, least_db = (
        snr_db(np.stack(expected), np.stack(actual)),
        MIN_SNR_DB if least_db is None else least_db,
    )
    if not ratio_db >= least_db:
        raise Mismatch(
            f"int8 of {name} has a signal-to-noise ratio of {ratio_db:.1f} dB, {len(expected)}"
            f" calibration inputs, at least {least_db:g} are needed"
        )
    return ratio_db


def snr_db(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return 10 log10 of the power of `expected` over that of the difference, within 200 either
    way.
    """
    signal = float(np.square(expected, dtype=np.float64).sum())
    noise = float(np.square(expected.astype(np.float64) - actual).sum())
    if noise == 0:
        return MAX_SNR_DB
    return 10 * math.log10(signal / noise) if signal > noise * 1e-20 else -MAX_SNR_DB
