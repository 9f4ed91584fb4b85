"""One network through every verb, in this process; each step is told as soon as it is done."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from outside_networks import OutsideNetwork, all_networks

from nnstretch.bundle.bundle import read_bundle
from nnstretch.capture import build, load_model, trace
from nnstretch.capture.example_inputs import example_inputs, random_input
from nnstretch.capture.model_spec import spec_with
from nnstretch.errors import NnstretchError
from nnstretch.files.model_text import parse_input_shapes
from nnstretch.graph import Graph, TensorSpec
from nnstretch.partition.export import export_partition
from nnstretch.partition.partition import PartitionRequest, partitions
from nnstretch.predict import load_soc
from nnstretch.run.pipelines.sequential import SequentialPipeline
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.search.search import search

PROCESSORS = ("cpu", "dsp")
TINY = 1e-6
TOKENS = 200


@dataclass(frozen=True)
class TrialRow:
    """How far one network came."""

    name: str
    group: str
    gmacs: float | None = None
    nodes: int | None = None
    captured_s: float | None = None
    error: float | None = None
    """Largest difference of the rebuilt graph over the largest output."""
    priced_s: float | None = None
    searched_s: float | None = None
    speedup: float | None = None
    search_note: str = ""
    partitioned_s: float | None = None
    exported_s: float | None = None
    parts_error: float | None = None
    """The same of two stages, run by ONNX Runtime, in a row."""
    reason: str = ""


def examine(network: OutsideNetwork, search_s: float) -> Iterator[TrialRow]:
    """Yield the row after every step."""
    row = TrialRow(network.name, network.group)
    began = perf_counter()
    inputs = parse_input_shapes(network.inputs) if network.inputs else ()
    torch.manual_seed(0)
    spec = spec_with(network.source, inputs, ()) if network.source else network.name
    module = (network.make() if network.make else load_model(spec)).eval()
    captured = trace(module, example_inputs(spec, module, inputs), spec)
    graph = captured.graph
    row = replace(
        row, captured_s=perf_counter() - began, gmacs=graph.macs / 1e9, nodes=len(graph.nodes)
    )
    yield row
    drawn = torch.Generator().manual_seed(1)
    values = [drawn_input(value.spec, drawn) for value in graph.inputs]
    expected = reference(network, module, values)
    with torch.no_grad():
        rebuilt = leaves(build(graph, captured.weights).eval()(*values))
    row = replace(row, error=difference(expected, rebuilt))
    yield row
    soc = load_soc("mi9")
    cost_model = CostModel(soc, "nearest")
    began = perf_counter()
    for processor in PROCESSORS:
        cost_model.estimate_alone(graph, processor)
    row = replace(row, priced_s=perf_counter() - began)
    yield row
    row = searched(row, graph, search_s)
    yield row
    began = perf_counter()
    request = PartitionRequest(2, PROCESSORS)
    partition = partitions(graph, soc, request, None, cost_model)[0]
    row = replace(row, partitioned_s=perf_counter() - began)
    yield row
    began = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "parts.nns"
        export_partition(partition, captured.weights, path, soc=soc, module=module)
        row = replace(row, exported_s=perf_counter() - began)
        yield row
        pipeline = SequentialPipeline(read_bundle(path))
        named = {v.name: x.numpy() for v, x in zip(graph.inputs, values, strict=True)}
        result = pipeline.run(next(iter(named.values())) if len(named) == 1 else named)
    parts = [result[name] for name in graph.outputs] if isinstance(result, dict) else [result]
    yield replace(row, parts_error=difference(expected, parts))


def drawn_input(spec: TensorSpec, drawn: torch.Generator) -> torch.Tensor:
    """Standard normal numbers, or tokens of any text: of two kinds alone sums cancel."""
    if spec.dtype.startswith("int"):
        kind = getattr(torch, spec.dtype)
        return torch.randint(0, TOKENS, spec.shape, generator=drawn).to(kind)
    return random_input(spec, drawn)


def searched(row: TrialRow, graph: Graph, search_s: float) -> TrialRow:
    """The row with the search's seconds and gain, or why there is none."""
    if len(graph.inputs) > 1 or len(graph.outputs) > 1:
        what = f"{len(graph.inputs)} inputs, {len(graph.outputs)} outputs"
        return replace(row, search_note=f"{what}: plans are of one each")
    began = perf_counter()
    try:
        result = search(
            graph, load_soc("mi9"), PROCESSORS, fallback="nearest", time_limit_s=search_s
        )
    except NnstretchError as refusal:
        return replace(row, search_note=str(refusal)[:200])
    gain = min(result.original_us.values()) / result.plans[0].trial.latency_us
    note = "time limit" if result.out_of_time else "optimal" if result.optimal else "not proven"
    return replace(row, searched_s=perf_counter() - began, speedup=gain, search_note=note)


def reference(
    network: OutsideNetwork, module: torch.nn.Module, values: list[torch.Tensor]
) -> list[np.ndarray]:
    """What ONNX Runtime computes of a file, and PyTorch of a module."""
    if not network.source.endswith(".onnx"):
        with torch.no_grad():
            return leaves(module(*values))
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        network.source, options, providers=["CPUExecutionProvider"]
    )
    names = [entry.name for entry in session.get_inputs()]
    computed: list[np.ndarray] = session.run(
        None, {n: x.numpy() for n, x in zip(names, values, strict=True)}
    )
    return computed


def leaves(result: Any) -> list[np.ndarray]:
    tensors = torch.utils._pytree.tree_leaves(result)
    return [leaf.numpy() for leaf in tensors if isinstance(leaf, torch.Tensor)]


def difference(expected: list[np.ndarray], computed: list[np.ndarray]) -> float:
    """Largest difference of any output over that output's largest number."""
    worst = 0.0
    for a, b in zip(expected, computed, strict=True):
        scale = max(float(np.abs(a.astype(np.float64)).max(initial=0.0)), TINY)
        worst = max(worst, float(np.abs(a.astype(np.float64) - b).max(initial=0.0)) / scale)
    return worst


def child(name: str, search_s: float, pipe: Connection) -> None:
    """Runs in a process of its own; sends the row after every step, with the reason of a failure."""
    network = next(network for network in all_networks() if network.name == name)
    row = TrialRow(network.name, network.group)
    try:
        for row in examine(network, search_s):
            pipe.send(asdict(row))
    # Broad on purpose: whatever one network of a hundred raises is that network's row.
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        at = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: "
        kind = "" if isinstance(error, NnstretchError) else f"{type(error).__name__} at {at}"
        pipe.send(asdict(replace(row, reason=kind + " ".join(str(error).split())[:200])))
