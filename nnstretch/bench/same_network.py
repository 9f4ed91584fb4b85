"""Whether a bundle's branches are of the network that is there now: its code may have changed.

Weights may differ, as they are trained; shapes may not.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Subgraph
from nnstretch.bundle.model_files.check_onnx import IR_VERSIONS, OPSETS
from nnstretch.bundle.model_files.check_tflite import constant_kernels
from nnstretch.bundle.model_files.onnx_file import read_onnx
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from nnstretch.stretch.lowering.lower import LoweredBranch, LoweredNetwork, LoweredSegment

KERNELS = ("Conv", "ConvTranspose", "Gemm")
"""Operators of ONNX whose second input is a weight as the network has it, whatever was folded."""


def check_same_network(bundle: Bundle, lowered: LoweredNetwork) -> None:
    """Compare a bundle's sub-graphs with the branches of its plan on the present network.

    Sub-graphs of other names, which no plan of ours has, are left out. Raises BadInput.
    """
    subgraphs = {subgraph.name: subgraph for subgraph in bundle.manifest.subgraphs}
    for number, segment in enumerate(lowered.segments):
        for branch in segment.branches:
            subgraph = subgraphs.get(f"s{number}.{branch.branch.processor}")
            if subgraph is None:
                continue
            for difference in differences(bundle, subgraph, segment, branch):
                raise BadInput(
                    f"{bundle.name} is of another {lowered.plan.model} than the one that is there"
                    f" now, bench, sub-graph {subgraph.name} {difference}, export it again"
                )


def differences(
    bundle: Bundle, subgraph: Subgraph, segment: LoweredSegment, branch: LoweredBranch
) -> Iterator[str]:
    """Yield in words where a sub-graph and a branch cannot be the same."""
    edges = (
        ("reads", subgraph.inputs, segment.input.elements),
        ("writes", subgraph.outputs, branch.output.elements),
    )
    for verb, ports, now in edges:
        before = sum(prod(port.spec.shape) for port in ports)
        if before != now:
            yield f"{verb} {before} numbers and its branch now {now}"
    weights = {weight.spec.elements for weight in branch.graph.weights}
    for elements in sorted(kernel_sizes(subgraph, bundle.files[subgraph.file]) - weights):
        yield f"has a kernel of {elements} numbers and its branch now none"


def kernel_sizes(subgraph: Subgraph, data: bytes) -> set[int]:
    """Return the elements of each kernel in a file, in whatever order of axes."""
    if subgraph.format == "litert":
        return set(constant_kernels(data))
    graph = read_onnx(data, OPSETS, IR_VERSIONS)
    sizes = {tensor.name: prod(tensor.shape) for tensor in graph.initializers}
    kernels = [node.inputs[1] for node in graph.nodes if node.op in KERNELS]
    return {sizes[name] for name in kernels if name in sizes}
