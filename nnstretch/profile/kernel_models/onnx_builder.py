"""An ONNX model that grows node by node, with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20


@dataclass
class OnnxModelBuilder:
    """An ONNX graph while it grows."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    count: int = 0

    def name(self) -> str:
        """Return a new value name."""
        self.count += 1
        return f"v{self.count}"

    def add(
        self, op: str, *inputs: str, outputs: int = 1, name: str = "", **attributes: Any
    ) -> str:
        """Add a node and return the name of its first result."""
        results = [self.name() for _ in range(outputs)]
        node = helper.make_node(op, list(inputs), results, name=name or results[0], **attributes)
        self.nodes.append(node)
        return results[0]

    def weight(self, *shape: int, low: float = -0.1, high: float = 0.1) -> str:
        """Add a random weight and return its name."""
        values = np.random.default_rng(self.count).uniform(low, high, shape)
        return self.constant(values.astype(np.float32))

    def number(self, value: float) -> str:
        """Add a float32 number and return its name."""
        return self.constant(np.array(value, np.float32))

    def integers(self, *values: int) -> str:
        """Add a vector of int64 constants and return its name."""
        return self.constant(np.array(values, np.int64))

    def constant(self, value: np.ndarray) -> str:
        """Add a constant and return its name."""
        name = self.name()
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def read(self, shape: Sequence[int]) -> str:
        """Add an input and return its name."""
        name = self.name()
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))
        return name

    def write(self, name: str) -> None:
        """Make a value an output."""
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))

    def bytes(self) -> bytes:
        """Return the model as a file's bytes."""
        graph = helper.make_graph(self.nodes, "kernels", self.inputs, self.outputs, self.weights)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=9)
        return bytes(model.SerializeToString())
