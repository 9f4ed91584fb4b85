"""A network exported once, of which any section is cut without PyTorch's exporter.

The exporter takes seconds for a section, and candidates of one partition have many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import torch
from torch import nn

from nnstretch.export.onnx.convert import export_model
from nnstretch.export.onnx.rename_io import rename_io


@dataclass(frozen=True, slots=True)
class NetworkFile:
    """An ONNX model that writes every tensor at which it may be cut, under the network's names."""

    model: onnx.ModelProto

    def section(self, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto | None:
        """Return what computes `outputs` of `inputs`; None where that reads something else."""
        graph = self.model.graph
        written: dict[str, onnx.NodeProto] = {}
        for node in graph.node:
            written |= dict.fromkeys(node.output, node)
        weights = {tensor.name: tensor for tensor in graph.initializer}
        typed = {value.name: value for value in (*graph.input, *graph.output)}
        if not typed.keys() >= {*inputs, *outputs}:
            return None
        needed: set[str] = set()
        open_names = list(outputs)
        while open_names:
            name = open_names.pop()
            if name in needed or not name or (name in inputs and name not in outputs):
                continue
            needed.add(name)
            if name in written:
                open_names += written[name].input
            elif name not in weights:
                return None
        cut = onnx.ModelProto()
        cut.CopyFrom(self.model)
        del cut.graph.node[:], cut.graph.initializer[:], cut.graph.value_info[:]
        del cut.graph.input[:], cut.graph.output[:]
        kept = [node for node in graph.node if needed.intersection(node.output)]
        cut.graph.node.extend(kept)
        cut.graph.initializer.extend(weights[name] for name in weights if name in needed)
        cut.graph.input.extend(typed[name] for name in inputs)
        cut.graph.output.extend(typed[name] for name in outputs)
        inner = needed - {*inputs, *outputs}
        known = (*graph.value_info, *graph.output)  # sizes are checked before a runtime sees them
        cut.graph.value_info.extend(value for value in known if value.name in inner)
        return cut


def network_file(
    name: str,
    module: nn.Module,
    inputs: Sequence[tuple[str, torch.Tensor]],
    outputs: Sequence[str],
) -> NetworkFile:
    """Export a module that writes these outputs. Raises UnsupportedOp."""
    model = export_model(name, module, tuple(value for _, value in inputs))
    return NetworkFile(rename_io(model, [key for key, _ in inputs], outputs))
