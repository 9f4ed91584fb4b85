"""Sections of a network with any number of inputs and outputs -> ONNX files.

Each is checked against its module, and all in a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import onnx
import torch
from torch import fx, nn

from nnstretch.bundle.manifest import Port
from nnstretch.capture.example_inputs import running_on_drawn_inputs
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
    """Weights of the network that are still there under their own names: `replaceable_parameters`.

    What was folded into others is not, nor what was merged with others.
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

    Raises UnsupportedOp, Mismatch, and BadInput for inputs that the module cannot be run on.
    """
    check_outputs(name, tuple(inputs), outputs)
    with torch.no_grad(), running_on_drawn_inputs(f"sub-graph {name}"):
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
    parameters = replaceable_parameters(model, module)
    return SectionFile(data, ports_of(inputs), ports_of(written), error, parameters)


def replaceable_parameters(
    model: onnx.ModelProto, module: nn.Module
) -> tuple[tuple[str, TensorSpec], ...]:
    """Return the module's weights that the file holds as they are, and reads as often.

    A weight that is read more often in the file has been merged with another of equal numbers; of
    one that is read less often the file has copies.
    """
    weights, expected = dict(module.named_parameters()), weight_reads(module)
    reads = Counter(chain.from_iterable(node.input for node in model.graph.node))
    parameters = list[tuple[str, TensorSpec]]()
    for tensor in model.graph.initializer:
        path, weight = tensor.name, weights.get(tensor.name)
        if weight is None or tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        is_whole = np.array_equal(onnx.numpy_helper.to_array(tensor), weight.detach().numpy())
        if is_whole and reads[path] == expected.get(path, 1):
            parameters.append((path, TensorSpec(tuple(tensor.dims), "float32")))
    return tuple(parameters)


def weight_reads(module: nn.Module) -> Counter[str]:
    """Return how often a rebuilt module reads each weight; of other modules nothing is known."""
    reads = Counter[str]()
    for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
        if node.op == "get_attr":
            reads[node.target] += len(node.users)
        elif node.op == "call_module":
            layer = module.get_submodule(node.target)
            reads.update(f"{node.target}.{name}" for name, _ in layer.named_parameters())
    return reads


def check_outputs(name: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Check that each output is a tensor of its own. Raises UnsupportedOp."""
    for output in outputs:
        if output in inputs or outputs.count(output) > 1:
            same = "input unchanged" if output in inputs else "output twice"
            raise UnsupportedOp(
                f"cannot export {name} to ONNX, it returns its {same} ({output}), choose other"
                " outputs with --outputs"
            )


def check_pieces(graph: Graph, pieces: Sequence[Graph]) -> None:
    """Check that pieces of a network write each of its outputs, and each once.

    Raises UnsupportedOp.
    """
    check_outputs(graph.name, graph.input_names, graph.outputs)
    written = set(chain.from_iterable(piece.outputs for piece in pieces))
    if constants := [output for output in graph.outputs if output not in written]:
        raise UnsupportedOp(
            f"cannot export {graph.name} to ONNX in pieces, it returns its weight unchanged"
            f" ({constants[0]}), choose other outputs with --outputs"
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
