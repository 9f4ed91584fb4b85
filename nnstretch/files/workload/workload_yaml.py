"""Workloads as YAML, read as data that a stranger may have written.

soc: mi9
pool: {cpu: 2, gpu: 1}            # how many of each; copies are cpu0, cpu1
policy: heft_rt
applications:
- name: detect
  model: torchvision:mobilenet_v2  # or a plan, a bundle, a task graph
  cut: 4                           # whole, segments, layers, or so many pieces
  arrivals: {exponential_ms: 20}   # or period_ms, times_ms, csv
  instances: 500
  deadline_ms: 60
- name: filter
  costs_ms: {cpu: 3.5}             # instead of a model: one task
  arrivals: {period_ms: 10}
  duration_ms: 10000
"""

from __future__ import annotations

from pathlib import Path

from nnstretch.errors import BadInput
from nnstretch.files.decode import decode
from nnstretch.files.read import as_path, read_text
from nnstretch.files.strict_yaml import parse_yaml
from nnstretch.files.workload.workload import WorkloadFile

MOST_BYTES = 32 << 20


def read_workload(path: str | Path) -> WorkloadFile:
    """Read a workload file.

    Raises UnknownName for no file, BrokenFile for one that is no YAML, BadInput for a key or value
    that no workload has.
    """
    path = as_path(path, "workload")
    data = parse_yaml(read_text(path, "workload", MOST_BYTES), f"workload {path}")
    if isinstance(data, dict) and "workload" in data:
        raise BadInput(f"{path} is a sweep and no workload, nnstretch simulate sweep {path}")
    try:
        workload: WorkloadFile = decode(WorkloadFile, data, "workload")
    except ValueError as error:
        raise BadInput(f"{path}, {error}") from None
    return workload
