"""One sub-graph of a bundle, in ONNX form -> a module that PyTorch runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from nnstretch.capture.onnx.load import parse_onnx
from nnstretch.capture.onnx.reader import capture_model, external_inputs, resolve_input_shape
from nnstretch.capture.rebuild_module import build
from nnstretch.errors import CannotCapture
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
    values = external_inputs(model)
    if not values:
        raise CannotCapture(f"cannot capture {path}, it reads no input")
    sources = [(value, resolve_input_shape(value, path, None)) for value in values]
    captured = capture_model(model, path, sources)
    graph = captured.graph
    specs = graph.specs()
    inputs: dict[str, TensorSpec] = {}
    for value, entry in zip(values, graph.inputs, strict=True):
        inputs[value.name] = entry.spec
    outputs: dict[str, TensorSpec] = {}
    for value, name_in_graph in zip(model.graph.output, graph.outputs, strict=True):
        outputs[value.name] = specs[name_in_graph]
    return SubgraphProgram(build(graph, captured.weights).eval(), inputs, outputs)
