"""1x1 convolution + batch norm where two widths must meet; a linear layer for tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nnstretch.graph import Graph, Node, TensorSpec, Value, ValueRef, Weight
from nnstretch.structure.channel_groups import ShortcutJunction
from nnstretch.structure.macs import count_macs

ADAPTER_PREFIX = "adapt_"
"""First letters of every module that stretching adds."""


def build_adapter(
    label: str, source: str, spec: TensorSpec, width: int, axis: int, result: str | None = None
) -> tuple[list[Node], list[Weight]]:
    """Return nodes and weights that take `source` to `width` channels along `axis`, under the
    module `adapt_LABEL`.
    """
    module = ADAPTER_PREFIX + label
    if axis == 1 and len(spec.shape) == 4:
        return conv_adapter(module, source, spec, width, result or module)
    return linear_adapter(module, source, spec, width, axis, result or module)


def conv_adapter(
    module: str, source: str, spec: TensorSpec, width: int, result: str
) -> tuple[list[Node], list[Weight]]:
    """Return nodes and weights of a 1x1 convolution with batch norm."""
    kernel = Weight(f"{module}.conv.weight", TensorSpec((width, spec.shape[1], 1, 1), spec.dtype))
    channel = TensorSpec((width,), spec.dtype)
    leaves = {"weight": True, "bias": True, "running_mean": False, "running_var": False}
    norm = [
        Weight(f"{module}.norm.{leaf}", channel, trainable) for leaf, trainable in leaves.items()
    ]
    output = TensorSpec((spec.shape[0], width, *spec.shape[2:]), spec.dtype)
    args = (ValueRef(source), ValueRef(kernel.name), None, (1, 1), (0, 0), (1, 1), 1)
    macs = count_macs("conv2d", args, output, {source: spec, kernel.name: kernel.spec})
    conv = Node(f"{module}_conv", "conv2d", args, (output,), f"{module}.conv", macs=macs)
    refs = tuple(ValueRef(w.name) for w in norm)
    bn = Node(
        result,
        "batch_norm",
        (ValueRef(conv.name), *refs, False, 0.1, 1e-5, False),
        (output,),
        f"{module}.norm",
    )
    return [conv, bn], [kernel, *norm]


def linear_adapter(
    module: str, source: str, spec: TensorSpec, width: int, axis: int, result: str
) -> tuple[list[Node], list[Weight]]:
    """Return an adapter of channels that are not dimension 1 of an image: they are moved last,
    mapped, and moved back.
    """
    rank, axis = len(spec.shape), axis % len(spec.shape)
    cin = spec.shape[axis]
    weights = [
        Weight(f"{module}.weight", TensorSpec((width, cin), spec.dtype)),
        Weight(f"{module}.bias", TensorSpec((width,), spec.dtype)),
    ]
    nodes: list[Node] = []
    order = (*(i for i in range(rank) if i != axis), axis)
    if axis != rank - 1:
        spec = TensorSpec(tuple(spec.shape[i] for i in order), spec.dtype)
        nodes.append(Node(f"{module}_last", "permute", (ValueRef(source), order), (spec,)))
        source = nodes[-1].name
    output = TensorSpec((*spec.shape[:-1], width), spec.dtype)
    args = (ValueRef(source), ValueRef(weights[0].name), ValueRef(weights[1].name))
    known = {source: spec, **{w.name: w.spec for w in weights}}
    name = result if axis == rank - 1 else f"{module}_linear"
    nodes.append(
        Node(
            name, "linear", args, (output,), module, macs=count_macs("linear", args, output, known)
        )
    )
    if axis != rank - 1:
        back = tuple(order.index(i) for i in range(rank))
        nodes.append(
            Node(
                result,
                "permute",
                (ValueRef(name), back),
                (TensorSpec(tuple(output.shape[i] for i in back), spec.dtype),),
            )
        )
    return nodes, weights


def adapt_junction(
    node: Node, junction: ShortcutJunction, specs: Mapping[str, TensorSpec]
) -> tuple[Node, list[Node], list[Weight]]:
    """Adapt an addition whose shortcut may no longer fit.

    The shortcut gets an adapter to the main path's width.
    """
    shortcut, main = node.args[junction.argument], node.args[1 - junction.argument]
    assert isinstance(shortcut, ValueRef)
    assert isinstance(main, ValueRef)
    have, want = specs[shortcut.name].shape, specs[main.name].shape
    differing = [i for i, (a, b) in enumerate(zip(have, want, strict=True)) if a != b]
    if not differing:
        return node, [], []
    extra, weights = build_adapter(
        node.name, shortcut.name, specs[shortcut.name], want[differing[0]], differing[0]
    )
    args = list(node.args)
    args[junction.argument] = ValueRef(extra[-1].name)
    return replace(node, args=tuple(args)), extra, weights


def with_input_adapter(graph: Graph, label: str, width: int, axis: int) -> Graph:
    """Return the graph behind an adapter.

    It reads a tensor of `width` channels and maps it to what the graph expects.
    """
    entry = graph.inputs[0]
    shape = tuple(width if i == axis else d for i, d in enumerate(entry.spec.shape))
    outside = Value(entry.name, TensorSpec(shape, entry.spec.dtype))
    nodes, weights = build_adapter(
        f"{label}_in", entry.name, outside.spec, entry.spec.shape[axis], axis
    )
    inner = {entry.name: nodes[-1].name}
    from nnstretch.stretch.lowering.depth_scaling import rename_inputs

    body = tuple(rename_inputs(node, inner) for node in graph.nodes)
    outputs = tuple(inner.get(o, o) for o in graph.outputs)
    return Graph(graph.name, (outside,), (*weights, *graph.weights), (*nodes, *body), outputs)


def with_output_adapter(graph: Graph, label: str, width: int, axis: int) -> Graph:
    """Return the graph with an adapter behind it."""
    spec = graph.specs()[graph.outputs[0]]
    nodes, weights = build_adapter(f"{label}_out", graph.outputs[0], spec, width, axis)
    return Graph(
        graph.name,
        graph.inputs,
        graph.weights + tuple(weights),
        graph.nodes + tuple(nodes),
        (nodes[-1].name,),
    )
