"""Files against the module they came from: each alone, and all in a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.errors import BadInput, Mismatch
from nnstretch.export.int8_accuracy import LabeledAccuracy, compare_on_labels, refuse_drop
from nnstretch.export.onnx.convert import check_close, max_abs_difference
from nnstretch.export.subgraph_files import ExportedFiles
from nnstretch.export.subgraph_specs import ExportRequest, SubgraphSpec

MIN_SNR_DB = 10.0
"""int8 of a sound network has 20 and more; below 10, noise is a third of the signal."""
MAX_DROP_POINTS = 1.0
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
    accuracy: LabeledAccuracy | None = None
    """Of int8, where labels judged it."""


def verify_files(
    exported: ExportedFiles, specs: Sequence[SubgraphSpec], request: ExportRequest
) -> ExportErrors:
    """Compare files with the module. Raises Mismatch where float files differ by more than
    rounding, or int8 drowns in its noise or loses too much accuracy.
    """
    name = request.plan.model
    judge = max_abs_difference if request.int8 else check_close
    start, end = specs[0].sources[0], specs[-1].target
    runners = {spec.name: exported.runner(exported.files[spec.name], spec.name) for spec in specs}
    alone: dict[str, float] = {}
    for spec in specs:
        exact = {
            tensor: exported.tested[0][tensor].numpy() for tensor in (*spec.sources, spec.target)
        }
        computed = runners[spec.name].run(*(exact[source] for source in spec.sources))
        alone[spec.name] = judge(exact[spec.target], computed, f"sub-graph {spec.name}")

    def run(x: np.ndarray) -> np.ndarray:
        """Compute the whole network by its files."""
        values = {start: x}
        for spec in specs:
            reads = [values[source] for source in spec.sources]
            values[spec.target] = runners[spec.name].run(*reads)
        return values[end]

    expected = [values[end].numpy() for values in exported.tested]
    actual = [run(values[start].numpy()) for values in exported.tested]
    whole = judge(expected[0], actual[0], f"bundle of {name}")
    if not request.int8:
        return ExportErrors(alone, whole)
    return ExportErrors(alone, whole, *judge_int8(expected, actual, request, run))


def judge_int8(
    expected: Sequence[np.ndarray],
    actual: Sequence[np.ndarray],
    request: ExportRequest,
    run: Callable[[np.ndarray], np.ndarray],
) -> tuple[float, LabeledAccuracy | None]:
    """Return the signal-to-noise ratio of int8, and its accuracy where labels could judge it.

    Raises Mismatch for a loss of accuracy beyond the limit, or too low a ratio where no label says
    more; BadInput for a limit of the one where the other judges.
    """
    name = request.plan.model
    accuracy = labeled_accuracy(request, run)
    if accuracy is None:
        if request.max_drop is not None:
            raise BadInput(
                f"--max-drop is {request.max_drop:g}, int8 of {name}, no label judges it (images"
                " without labels, fewer than one input takes, or classes that the network does not"
                " know) but --min-snr, leave --max-drop out"
            )
        return check_snr(expected, actual, name, request.least_snr_db), None
    if request.least_snr_db is not None:
        raise BadInput(
            f"--min-snr is {request.least_snr_db:g}, int8 of {name}, the labels of"
            f" {accuracy.images} held-out images judge it by --max-drop, leave --min-snr out"
        )
    shares = (accuracy.float_accuracy, accuracy.int8_accuracy)
    max_drop = MAX_DROP_POINTS if request.max_drop is None else request.max_drop
    refuse_drop(*shares, accuracy.images, max_drop, name)
    return snr_db(np.stack(expected), np.stack(actual)), accuracy


def labeled_accuracy(
    request: ExportRequest, run: Callable[[np.ndarray], np.ndarray]
) -> LabeledAccuracy | None:
    """Return the accuracy on held-out images; None where their labels say nothing."""
    if request.held_out is None:
        return None
    batch = request.plan.input_shape[0]
    accuracy = compare_on_labels(request.module, run, request.held_out, batch)
    return accuracy if accuracy is not None and accuracy.says_something else None


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
            f" calibration inputs, at least {least_db:g} are needed; the recipe that trained it as"
            " --calibration would judge its accuracy, --min-snr asks for less"
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
