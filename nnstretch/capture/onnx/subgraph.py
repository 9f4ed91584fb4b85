"""One sub-graph of a bundle, in ONNX form -> a module that PyTorch runs.

Any number of inputs and outputs.
"""

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
    """A module, and what it reads and writes under the file's own names, in the order of its
    arguments and results.
    """

    module: nn.Module
    """In evaluation mode; gives one tensor, or a tuple where there are several outputs."""
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]


def read_subgraph(data: bytes, name: str) -> SubgraphProgram:
    """Read a bundle's member as a module; nothing in `data` is executed or unpickled and no other
    file is opened.

    `name` is for messages.

    Raises BrokenFile, UnsupportedOp, CannotCapture or BadInput in one line.
    """
    path = Path(name)
    model = parse_onnx(data, path, alone=True)
    values = external_inputs(model)
    if not values:
        raise CannotCapture(f"cannot capture {path}, it reads no input")
    captured = capture_model(
        model, path, [(value, resolve_input_shape(value, path, None)) for value in values]
    )
    graph = captured.graph
    specs = graph.specs()
    return SubgraphProgram(
        module=build(graph, captured.weights).eval(),
        inputs={value.name: entry.spec for value, entry in zip(values, graph.inputs, strict=True)},
        outputs={
            value.name: specs[ours]
            for value, ours in zip(model.graph.output, graph.outputs, strict=True)
        },
    )
