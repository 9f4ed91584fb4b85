"""Whether an ONNX file is the sub-graph that its manifest speaks of, before a runtime sees it.

Runtimes disagree about broken files: one reads weights from beside the bundle, another never ends
on a cycle. None of them is asked before these rules hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import prod

from nnstretch.bundle.manifest import Subgraph
from nnstretch.bundle.model_files.edges import TensorInfo, check_names
from nnstretch.bundle.model_files.indexing_rules import (
    GROWING,
    INDEXING_RULES,
    known_integers,
)
from nnstretch.bundle.model_files.onnx_file import (
    MAX_RANK,
    DeclaredTensor,
    OnnxGraph,
    OnnxNode,
    read_onnx,
)
from nnstretch.bundle.model_files.protobuf import shorten_name
from nnstretch.bundle.model_files.rule_context import RuleContext, Shape
from nnstretch.bundle.model_files.shape_rules import RULES

OPSETS = range(7, 29)
IR_VERSIONS = range(3, 15)
CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")
ALL_RULES = {**RULES, **INDEXING_RULES}
MAX_ELEMENTS = 1 << 32
"""Of a tensor within a sub-graph: 16 GiB of float32."""


def check_onnx(data: bytes, subgraph: Subgraph, where: str) -> None:
    """Check a file against its manifest. Raises BrokenFile, or ValueError with `WHAT, WHY`."""
    graph = read_onnx(data, OPSETS, IR_VERSIONS)
    check_names(where, "reads", subgraph.inputs, _edge("reads", graph.inputs))
    check_names(where, "writes", subgraph.outputs, _edge("writes", graph.outputs))
    check_order(graph)
    check_shapes(graph)


def _edge(verb: str, values: Sequence[DeclaredTensor]) -> dict[str, TensorInfo]:
    """Return declared tensors by name. Raises ValueError where a name is there twice."""
    tensors: dict[str, TensorInfo] = {}
    for value in values:
        if value.name in tensors:
            raise ValueError(f"it {verb} {shorten_name(value.name)} twice")
        tensors[value.name] = TensorInfo(value.shape, value.dtype)
    return tensors


def check_order(graph: OnnxGraph) -> None:
    """Raise ValueError unless every name is written once, before it is read: no cycle."""
    known: set[str] = set()
    for name in (*(v.name for v in graph.inputs), *(t.name for t in graph.initializers)):
        _write(name, "an input or a weight", known)
    later = set(chain.from_iterable(node.outputs for node in graph.nodes))
    for node in graph.nodes:
        if node.op in CONTROL_FLOW:
            raise ValueError(f"{node}, control flow")
        for name in node.inputs:
            if name and name not in known:
                why = "before it is written, a cycle" if name in later else "which nothing writes"
                raise ValueError(f"{node} reads {shorten_name(name)}, {why}")
        for name in filter(None, node.outputs):
            _write(name, str(node), known)
    for value in graph.outputs:
        if value.name not in known:
            raise ValueError(f"output {shorten_name(value.name)}, which nothing writes")


def _write(name: str, writer: str, known: set[str]) -> None:
    if not name or name in known:
        why = "it is written twice" if name else "a tensor without a name"
        raise ValueError(f"{writer} writes {shorten_name(name)}, {why}")
    known.add(name)


def check_shapes(graph: OnnxGraph) -> None:
    """Raise ValueError where shapes that follow from the inputs differ from the declared ones."""
    shapes: dict[str, Shape | None] = {}
    numbers: dict[str, Shape | None] = {}
    for value in graph.inputs:
        shapes[value.name] = _closed(value)
    for tensor in graph.initializers:
        shapes[tensor.name], numbers[tensor.name] = tensor.shape, tensor.numbers
    declared = {value.name: value for value in (*graph.values, *graph.outputs)}
    for node in graph.nodes:
        context = RuleContext(
            node,
            tuple(shapes.get(name) for name in node.inputs),
            tuple(numbers.get(name) for name in node.inputs),
            graph.opset,
        )
        try:
            written = ALL_RULES[node.op](context) if node.op in ALL_RULES else ()
            integers = known_integers(context)
        except (ValueError, IndexError, OverflowError) as error:
            raise ValueError(f"{node}, {error}") from None
        numbers[node.outputs[0]] = integers
        _settle(node, (*written, *(None for _ in node.outputs)), declared, shapes)


def _settle(
    node: OnnxNode,
    written: Sequence[Shape | None],
    declared: Mapping[str, DeclaredTensor],
    shapes: dict[str, Shape | None],
) -> None:
    """Enter the shapes that a node writes, as inferred or else as declared."""
    for name, shape in zip(node.outputs, written, strict=False):
        value = declared.get(name)
        if value is not None and value.shape is not None and shape is not None:
            _compare(node, name, shape, value.shape)
        if shape is None and value is not None:
            shape = _closed(value)
        if shape is None and node.op in GROWING:
            raise ValueError(f"{node}, the file does not give the size of its output")
        if shape is not None and len(shape) > MAX_RANK:
            raise ValueError(f"{node} writes {len(shape)} axes, limit {MAX_RANK}")
        if shape is not None and prod(shape) > MAX_ELEMENTS:
            shown = float(min(prod(shape), 1 << 999))
            raise ValueError(f"{node} writes {shown:.1e} elements, limit {MAX_ELEMENTS}")
        shapes[name] = shape


def _compare(node: OnnxNode, name: str, shape: Shape, said: Iterable[int | None]) -> None:
    said = tuple(said)
    agree = len(said) == len(shape)
    for size, wanted in zip(shape, said, strict=False):
        agree = agree and wanted in (None, size)
    if not agree:
        raise ValueError(
            f"{node} writes {shorten_name(name)} of shape {shape}, the file declares {said}"
        )


def _closed(value: DeclaredTensor) -> Shape | None:
    if value.shape is None:
        return None
    sizes = tuple(size for size in value.shape if size is not None)
    return sizes if len(sizes) == len(value.shape) else None
