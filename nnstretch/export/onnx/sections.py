"""Sections of a network with any number of inputs and outputs -> ONNX files.

Each is checked against its module, and all in a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from torch import nn

from nnstretch.bundle.manifest import Port
from nnstretch.errors import UnsupportedOp
from nnstretch.export.onnx.convert import (
    OnnxRunner,
    check_close,
    export_model,
    spec_of,
    with_metadata,
)
from nnstretch.export.onnx.network_file import NetworkFile
from nnstretch.export.onnx.rename_io import rename_io
from nnstretch.graph import Graph, TensorSpec

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class SectionFile:
    """One exported piece."""

    data: bytes
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    max_abs_error: float
    """From its module, on what the module before it wrote."""
    parameters: tuple[tuple[str, TensorSpec], ...]
    """Weights of the network that are still there under their own names.

    What was folded into others is not.
    """


def section_file(
    name: str,
    module: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    outputs: Sequence[str],
    notes: Mapping[str, str],
    network: NetworkFile | None = None,
) -> SectionFile:
    """Export an ONNX file that reads `inputs` and writes `outputs` under these names.

    It is cut from the file of the whole `network` where that is at hand and can be cut there.

    Raises UnsupportedOp, Mismatch.
    """
    check_outputs(name, tuple(inputs), outputs)
    with torch.no_grad():
        results = module.eval()(*inputs.values())
    written = dict(zip(outputs, results if isinstance(results, tuple) else (results,), strict=True))
    model = network.section(tuple(inputs), tuple(outputs)) if network is not None else None
    if model is None:
        exported = export_model(name, module, tuple(inputs.values()))
        model = rename_io(exported, tuple(inputs), tuple(outputs))
    data = with_metadata(model, notes)
    computed = OnnxRunner(data).run_named({key: value.numpy() for key, value in inputs.items()})
    error = max(
        check_close(written[key].detach().numpy(), computed[key], f"sub-graph {name}, {key},")
        for key in outputs
    )
    tensors = {
        key.name: TensorSpec(tuple(key.dims), "float32")
        for key in model.graph.initializer
        if key.data_type == onnx.TensorProto.FLOAT
    }
    named = {path for path, _ in module.named_parameters()}
    parameters = tuple((path, spec) for path, spec in tensors.items() if path in named)
    return SectionFile(data, ports_of(inputs), ports_of(written), error, parameters)


def check_outputs(name: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Check that each output is a tensor of its own. Raises UnsupportedOp."""
    for output in outputs:
        if output in inputs or outputs.count(output) > 1:
            same = "input unchanged" if output in inputs else "output twice"
            raise UnsupportedOp(
                f"cannot export {name} to ONNX, it returns its {same} ({output}), choose other"
                " outputs with --outputs"
            )


def ports_of(values: Mapping[str, torch.Tensor]) -> tuple[Port, ...]:
    """Return a port for each tensor."""
    return tuple(
        Port(name, spec_of(value), "NCHW" if value.dim() == 4 else "")
        for name, value in values.items()
    )


def run_in_sequence(files: Sequence[SectionFile], inputs: Arrays) -> Arrays:
    """Run files in order, each reading what those before it wrote; return everything they write."""
    values = dict(inputs)
    for file in files:
        values |= OnnxRunner(file.data).run_named(
            {port.name: values[port.name] for port in file.inputs}
        )
    return values


def compare_with_network(
    graph: Graph, computed: Arrays, network: nn.Module, inputs: Mapping[str, torch.Tensor]
) -> float:
    """Return the largest difference of what files computed from a network. Raises Mismatch."""
    expected = outputs_of(network, tuple(inputs.values()))
    errors = []
    for name, value in zip(graph.outputs, expected, strict=True):
        what = f"network {graph.name}, output {name},"
        errors.append(check_close(value.detach().numpy(), computed[name], what))
    return max(errors)


def outputs_of(network: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Run a network in evaluation mode; return its tensors in the order of capture."""
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            leaves = torch.utils._pytree.tree_leaves(network(*inputs))
    finally:
        network.train(training)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
