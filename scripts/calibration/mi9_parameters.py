"""The numbers that the fit of mi9 decides: where each starts, and what physics allows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Parameter:
    """One fitted number: where the fit starts, and what physics allows."""

    name: str
    start: float
    low: float
    high: float
    spread: float = 1.0
    """Factors of e by which the start may well be wrong."""


PARAMETERS = (
    Parameter("cpu.launch_us", 5, 1, 100),
    Parameter(
        "cpu.dense_macs_per_us", 250e3, 60e3, 323e3, 0.5
    ),  # 32 MACs a cycle on cores of 2.84 and 3 x 2.42 GHz: 323e3 is the peak
    Parameter("cpu.depthwise_macs_per_us", 20e3, 3e3, 200e3),
    Parameter("cpu.fill_outputs", 3000, 10, 100e3),
    Parameter("cpu.bytes_per_us", 5000, 100, 20e3),
    Parameter("cpu.group_us", 20, 0.5, 200),
    Parameter(
        "cpu.piece_us_per_thousand", 5, 0.2, 100
    ),  # a call that copies 24 to 40 bytes takes some 5 ns
    Parameter("cpu.patch_us_per_kib", 0.1, 1e-3, 10),  # one thread copies some 10 GB/s
    Parameter(
        "cpu.elementwise_us_per_kib", 1, 0.01, 3
    ),  # one thread requantises some 1 element a nanosecond
    Parameter(
        "cpu.out_us_per_kib", 1, 0.01, 3
    ),  # so does whatever brings a branch to the scale of the concatenation
    Parameter("gpu.launch_us", 15, 1, 80, 0.7),
    Parameter("gpu.dense_macs_per_us", 142e3, 40e3, 400e3, 0.5),
    Parameter("gpu.depthwise_macs_per_us", 20e3, 3e3, 200e3),
    Parameter("gpu.fill_outputs", 20e3, 100, 200e3),
    Parameter("gpu.bytes_per_us", 10e3, 200, 17e3),  # half floats through 34 GB/s: 17e3 elements
    Parameter("gpu.group_us", 30, 0.5, 300),
    Parameter("gpu.piece_us_per_thousand", 2, 0.1, 100),
    Parameter("dsp.launch_us", 10, 1, 100),
    Parameter("dsp.dense_macs_per_us", 300e3, 60e3, 1500e3, 0.5),
    Parameter("dsp.depthwise_macs_per_us", 20e3, 3e3, 200e3),
    Parameter("dsp.half_channels", 8, 0.1, 100),
    Parameter("dsp.bytes_per_us", 5000, 200, 30e3),
    Parameter("dsp.group_us", 30, 0.5, 300),
    Parameter("dsp.piece_us_per_thousand", 2, 0.1, 100),
    Parameter("gpu.wake_us", 170, 20, 2000, 0.5),
    Parameter("dsp.fixed_us", 150, 10, 1000),
    Parameter("dsp.us_per_kib", 0.5, 0.05, 5),
)
NAMES = tuple(p.name for p in PARAMETERS)
START, LOW, HIGH, SPREAD = (
    np.array([getattr(p, key) for p in PARAMETERS], float)
    for key in ("start", "low", "high", "spread")
)
