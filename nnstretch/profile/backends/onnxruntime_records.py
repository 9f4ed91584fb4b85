"""What ONNX Runtime's profiler records of launches, read run by run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]

from nnstretch.profile.kernel_models.onnx_chains import HEAD


def session_options() -> onnxruntime.SessionOptions:
    """Return session options of one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


def mean_launch_us(recorded: Sequence[float], count: int) -> float:
    """Return what a launch takes by the records of runs of `count` launches, us.

    As of times by the clock, the lower quartile of the runs: what else the machine did meanwhile
    must not be subtracted from every kernel.
    """
    runs = len(recorded) // count
    totals = np.asarray(recorded[: runs * count], dtype=np.float64).reshape(runs, count)
    return quartile(totals.mean(axis=1).tolist())


def inputs_for(session: onnxruntime.InferenceSession) -> dict[str, np.ndarray]:
    """Return random inputs of a session."""
    rng = np.random.default_rng(0)
    feeds: dict[str, np.ndarray] = {}
    for value in session.get_inputs():
        feeds[value.name] = rng.standard_normal(value.shape, dtype=np.float32)
    return feeds


def is_launch(event: dict[str, Any]) -> bool:
    """Return whether a profile's event is a launched kernel."""
    return event.get("cat") == "Node" and event["name"].endswith("_kernel_time")


def records_by_round(events: list[dict[str, Any]]) -> list[dict[int, list[dict[str, Any]]]]:
    """Return launches in the order of time, split into runs, and in each run behind the marker that
    they follow.
    """
    runs: list[dict[int, list[dict[str, Any]]]] = []
    seen: set[str] = set()
    current = -1
    for event in sorted((e for e in events if is_launch(e)), key=lambda e: e["ts"]):
        if not runs or event["name"] in seen:
            runs.append({})
            seen = set()
        seen.add(event["name"])
        if event["name"].startswith(HEAD):
            current = int(event["name"].removeprefix(HEAD).split(".")[0])
        else:
            runs[-1].setdefault(current, []).append(event)
    return runs


def quartile(values: Sequence[float]) -> float:
    """Return the lower quartile: near the undisturbed time, less lucky than the minimum."""
    return float(np.percentile(values, 25))
