"""Sound files that are then broken: weights, an array, a table of costs, a workload, a config."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from nnstretch.export.cpp.weights_file import write_weights

WORKLOAD = {
    "format": 1,
    "policy": "eft",
    "queueing": True,
    "correction": True,
    "elements": ["cpu", "gpu"],
    "applications": [
        {
            "name": "a",
            "priority": 0,
            "deadline_us": 90.5,
            "queue_limit": None,
            "arrivals_us": [0, 1.5, 1.5],
            "kinds": [{"name": "k", "costs_us": [1, None], "times_us": [2, None]}],
            "tasks": [{"kind": 0, "needs": []}, {"kind": 0, "needs": [0]}],
        }
    ],
}
COSTS = {"format": 1, "costs_us": {"conv2d 1x3x8x8 -> 1x8x8x8": {"cpu": 1.5, "gemm": 2}}}
CONFIG = {"elements": ["cpu", "cpu:0", "emulated:dsp"], "policy": "rr", "priorities": 2}


def write_seeds(folder: Path) -> None:
    """Write one sound file of each kind."""
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    weights = {"w": numbers, "bias": numbers[0], "scalar": numbers[0, 1].reshape(())}
    write_weights(folder / "weights.bin", weights, bytes(32))
    np.save(folder / "x.npy", numbers)
    for name, content in (("workload", WORKLOAD), ("costs", COSTS), ("config", CONFIG)):
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
