"""One sub-graph of a bundle, in ONNX form -> a module that PyTorch runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from nnstretch.capture.onnx.inputs import read_sources
from nnstretch.capture.onnx.load import parse_onnx
from nnstretch.capture.onnx.reader import capture_model
from nnstretch.capture.rebuild_module import build
from nnstretch.graph import TensorSpec


@dataclass(frozen=True, slots=True)
class SubgraphProgram:
    """A module, and the file's names of its arguments and results, in order."""

    module: nn.Module
    """In evaluation mode; gives one tensor, or a tuple where there are several outputs."""
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]


def read_subgraph(data: bytes, name: str) -> SubgraphProgram:
    """Read a bundle's member as a module; nothing in it is run or unpickled, no other file opened.

    `name` is for messages. Raises BrokenFile, UnsupportedOp, CannotCapture or BadInput in one line.
    """
    path = Path(name)
    model = parse_onnx(data, path, alone=True)
    sources = read_sources(model, path, ())
    captured = capture_model(model, path, sources, constant_outputs=True)
    graph = captured.graph
    specs = graph.specs()
    inputs: dict[str, TensorSpec] = {}
    for (value, _), entry in zip(sources, graph.inputs, strict=True):
        inputs[value.name] = entry.spec
    outputs: dict[str, TensorSpec] = {}
    for value, name_in_graph in zip(model.graph.output, graph.outputs, strict=True):
        outputs[value.name] = specs[name_in_graph]
    return SubgraphProgram(build(graph, captured.weights).eval(), inputs, outputs)
