"""Whether an input has the type of the weights that it meets."""

from __future__ import annotations

from nnstretch.errors import CannotCapture
from nnstretch.graph import Graph, ValueRef
from nnstretch.structure.cuts import WRITERS


def check_operand_types(graph: Graph) -> None:
    """Check that layers which read an input have weights of its type.

    torch.export does not where a layer has no bias; PyTorch then refuses the first run. Raises
    CannotCapture.
    """
    specs, inputs = graph.specs(), set(graph.input_names)
    for node in graph.nodes:
        operands = [argument.name for argument in node.args[:2] if isinstance(argument, ValueRef)]
        if node.kind not in WRITERS or len(operands) < 2 or operands[0] not in inputs:
            continue
        dtype, needed = (specs[name].dtype for name in operands)
        if dtype != needed:
            raise CannotCapture(
                f"cannot capture {graph.name}, its input {operands[0]} is {dtype},"
                f" {node.kind} {node.name!r} needs {needed}"
            )
