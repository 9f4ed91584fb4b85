"""Which runtimes are here, whether each computes a small network right, and whether two overlap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from nnstretch.cli.doctor.extras import install_command
from nnstretch.cli.doctor.probe_bundle import probe_bundle, probe_output, probe_weights
from nnstretch.errors import BadInput, NnstretchError, one_line
from nnstretch.run.backends.registry import READS
from nnstretch.run.loaded_network import LoadedNetwork
from nnstretch.run.overlap_check import Overlap, overlap

EXTRAS = {
    "onnxruntime": "run",
    "litert": "litert",
    "openvino": "openvino",
    "torch": "capture",
}
"""By backend, the extra that brings it."""
TOLERANCE = 1e-4
"""Largest difference from numpy, over the largest number."""

Progress = Callable[[float, float], None]


@dataclass(frozen=True, slots=True)
class RuntimeCheck:
    """What came of a runtime."""

    backend: str
    installed: bool
    correct: bool
    why: str
    """Why it is not correct, with the command that brings it where it is not installed."""


@dataclass(frozen=True, slots=True)
class OverlapCheck:
    """Two branches at once on this machine, again and again."""

    backend: str
    checks: int
    speedup: float
    """Median; 1 where they take turns."""
    least: float
    most: float
    possible: float
    """Speed-up of a perfect machine."""
    why: str
    """The reason of the last low one."""


def check_runtimes(tick: Progress) -> tuple[list[RuntimeCheck], dict[str, LoadedNetwork]]:
    """Compute the probe on every runtime; return what came of each, and the correct ones loaded."""
    checks: list[RuntimeCheck] = []
    networks: dict[str, LoadedNetwork] = {}
    for done, (backend, form) in enumerate(READS.items()):
        tick(done, len(READS))
        try:
            networks[backend] = LoadedNetwork(probe_bundle(form), backend)
            why = compare_with_numpy(networks[backend])
            installed = True
        except (BadInput, ImportError) as error:
            said, command = one_line(error)[:200], install_command(EXTRAS[backend])
            installed, why = False, said if command in said else f"{said}; {command}"
        except NnstretchError as error:
            installed, why = True, one_line(error)[:200]
        if why:
            networks.pop(backend, None)
        checks.append(RuntimeCheck(backend, installed, not why, why))
    return checks, networks


def compare_with_numpy(network: LoadedNetwork) -> str:
    """Return how a runtime's numbers differ from numpy's; empty where they agree."""
    inputs = network.random_inputs(0)
    expected = probe_output(inputs["x"], probe_weights())
    values = network.all_tensors(network.inputs(inputs))
    for port in network.manifest.outputs:
        error = float(np.abs(values[port.name] - expected).max())
        if not error <= TOLERANCE * float(np.abs(expected).max()):
            return f"it computes something else, by {error:.3g}"
    return ""


def check_overlap(
    backend: str, network: LoadedNetwork, seconds: float, tick: Progress
) -> OverlapCheck | None:
    """Measure how far two branches overlap, again and again for a time; None where none ran."""
    values = network.inputs(network.random_inputs(0))
    begin_s = perf_counter()
    overlaps: list[Overlap] = []
    while (passed_s := perf_counter() - begin_s) < seconds:
        tick(passed_s, seconds)
        if (measured := overlap(network, values)) is not None:
            overlaps.append(measured)
    if not overlaps:
        return None
    speedups = [measured.speedup for measured in overlaps]
    reasons = [measured.why for measured in overlaps if measured.why]
    return OverlapCheck(
        backend,
        len(overlaps),
        median(speedups),
        min(speedups),
        max(speedups),
        median(measured.possible for measured in overlaps),
        reasons[-1] if 2 * len(reasons) > len(overlaps) else "",
    )
