"""What was measured, as a range of each feature: a kernel outside of it is named, not trusted.

Without numpy, so that an analytic predictor needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from nnstretch.files.limits import Length, OneOf, Only, Range
from nnstretch.kernel import Kernel

LARGEST = 1e300
"""Sums and products of a few such numbers are finite."""
Amount = Annotated[float, Range(0, LARGEST)]
RelativeError = Annotated[float, Range(0, 1000)]
"""As a share of an estimate: beyond a thousand times it says nothing any more."""
Rising = Only(lambda ends: ends[0] <= ends[1], "the least and the most")
AmountRange = Annotated[tuple[Amount, Amount], Rising]

COUNTED = ("cin", "cout", "hw_out", "kernel", "stride", "groups", "macs")
RANGED = (*COUNTED, "working_bytes")
"""Features whose ranges are kept; the last is what a kernel reads, writes and weighs."""
Ranges = Annotated[dict[Annotated[str, OneOf(RANGED)], AmountRange], Length()]

SLACK = {"kernel": 1.0, "stride": 1.0}
"""How far beyond a range a feature still counts as inside: other windows are other programs."""
SIZE_SLACK = 2.0
WIDER = 3.0
"""How many times as wide an interval is outside of what was measured; a choice."""
UNSEEN = 6.0
"""How many times as wide where nothing of the kind was measured; a choice."""


def ranged_features(kernel: Kernel, element_bytes: int) -> dict[str, float]:
    """Return the features of a kernel whose ranges are kept."""
    elements = kernel.read_elements + kernel.write_elements + kernel.weight_elements
    features = {name: getattr(kernel, name) for name in COUNTED}
    return features | {"working_bytes": elements * element_bytes}


def sampled_ranges(kernels: Iterable[Kernel], element_bytes: int) -> dict[str, Ranges]:
    """Return the range of each feature over measured kernels, by their kind."""
    ranges: dict[str, Ranges] = {}
    for kernel in kernels:
        known = ranges.setdefault(kernel.kind, {})
        for name, value in ranged_features(kernel, element_bytes).items():
            low, high = known.get(name, (value, value))
            known[name] = (float(min(low, value)), float(max(high, value)))
    return dict(sorted(ranges.items()))


def reason_outside(ranges: Mapping[str, AmountRange], features: Mapping[str, float]) -> str:
    """Return the feature farthest outside the measured range as text, empty where none is."""
    worst = 1.0
    reason = ""
    for name, (low, high) in ranges.items():
        beyond = max(features[name] / max(high, 1.0), low / max(features[name], 1.0))
        if beyond / SLACK.get(name, SIZE_SLACK) > worst:
            worst = beyond / SLACK.get(name, SIZE_SLACK)
            reason = f"{name} {features[name]:.4g}, measured {low:.4g} to {high:.4g}"
    return reason
