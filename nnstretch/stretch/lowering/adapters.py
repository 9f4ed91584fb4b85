"""1x1 convolution + batch norm where two widths meet; a linear layer for tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nnstretch.errors import BadPlan
from nnstretch.graph import Argument, Graph, Node, TensorSpec, Value, ValueRef, Weight
from nnstretch.stretch.lowering.depth_scaling import rename_inputs
from nnstretch.structure.channel_groups import ShortcutJunction
from nnstretch.structure.macs import count_macs

ADAPTER_PREFIX = "adapt_"
"""First letters of every module that stretching adds."""


def adapter_of(weight: str) -> str:
    """Return the module of an adapter that holds a weight, `adapt_LABEL`; a label may have dots."""
    return weight.rpartition(".")[0].removesuffix(".conv").removesuffix(".norm")


def build_adapter(
    label: str, source: str, spec: TensorSpec, width: int, axis: int
) -> tuple[list[Node], list[Weight]]:
    """Build the module `adapt_LABEL` that maps `source` to `width` channels along `axis`.

    Raises BadPlan where the source holds no floating numbers.
    """
    module = ADAPTER_PREFIX + label
    if not spec.is_floating:
        raise BadPlan(
            f"adapter {module} is impossible, it would read {source}, which holds {spec.dtype},"
            " needed are floating numbers, keep the width there"
        )
    if axis == 1 and len(spec.shape) == 4:
        return conv_adapter(module, source, spec, width)
    return linear_adapter(module, source, spec, width, axis % len(spec.shape))


def conv_adapter(
    module: str, source: str, spec: TensorSpec, width: int
) -> tuple[list[Node], list[Weight]]:
    """Build a 1x1 convolution with batch norm."""
    kernel = Weight(f"{module}.conv.weight", TensorSpec((width, spec.shape[1], 1, 1), spec.dtype))
    output = TensorSpec((spec.shape[0], width, *spec.shape[2:]), spec.dtype)
    args = (ValueRef(source), ValueRef(kernel.name), None, (1, 1), (0, 0), (1, 1), 1)
    macs = count_macs("conv2d", args, output, {source: spec, kernel.name: kernel.spec})
    conv = Node(f"{module}_conv", "conv2d", args, (output,), f"{module}.conv", macs=macs)
    norm, norm_weights = batch_norm(module, f"{module}.norm", conv)
    return [conv, norm], [kernel, *norm_weights]


def batch_norm(name: str, module: str, source: Node) -> tuple[Node, list[Weight]]:
    """Build a batch norm behind a convolution."""
    channels = TensorSpec((source.output.shape[1],), source.output.dtype)
    weights = [
        Weight(f"{module}.weight", channels),
        Weight(f"{module}.bias", channels),
        Weight(f"{module}.running_mean", channels, trainable=False),
        Weight(f"{module}.running_var", channels, trainable=False),
    ]
    parameters = [ValueRef(weight.name) for weight in weights]
    args: tuple[Argument, ...] = (ValueRef(source.name), *parameters, False, 0.1, 1e-5, False)
    return Node(name, "batch_norm", args, source.outputs, module), weights


def linear_adapter(
    module: str, source: str, spec: TensorSpec, width: int, axis: int
) -> tuple[list[Node], list[Weight]]:
    """Build a linear layer over channels, between permutations where they are not last."""
    rank = len(spec.shape)
    if axis == rank - 1:
        linear, weights = linear_layer(module, module, source, spec, width)
        return [linear], weights
    channels_last = (*(i for i in range(rank) if i != axis), axis)
    back = tuple(channels_last.index(i) for i in range(rank))
    moved = permutation(f"{module}_last", source, spec, channels_last)
    linear, weights = linear_layer(f"{module}_linear", module, moved.name, moved.output, width)
    return [moved, linear, permutation(module, linear.name, linear.output, back)], weights


def linear_layer(
    name: str, module: str, source: str, spec: TensorSpec, width: int
) -> tuple[Node, list[Weight]]:
    """Build a linear layer over the last dimension."""
    weight = Weight(f"{module}.weight", TensorSpec((width, spec.shape[-1]), spec.dtype))
    bias = Weight(f"{module}.bias", TensorSpec((width,), spec.dtype))
    specs = {source: spec, weight.name: weight.spec, bias.name: bias.spec}
    output = TensorSpec((*spec.shape[:-1], width), spec.dtype)
    args = (ValueRef(source), ValueRef(weight.name), ValueRef(bias.name))
    macs = count_macs("linear", args, output, specs)
    return Node(name, "linear", args, (output,), module, macs=macs), [weight, bias]


def permutation(name: str, source: str, spec: TensorSpec, order: tuple[int, ...]) -> Node:
    """Build a permutation of a tensor's dimensions."""
    output = TensorSpec(tuple(spec.shape[i] for i in order), spec.dtype)
    return Node(name, "permute", (ValueRef(source), order), (output,))


def adapt_junction(
    node: Node, junction: ShortcutJunction, specs: Mapping[str, TensorSpec]
) -> tuple[Node, list[Node], list[Weight]]:
    """Adapt the shortcut of an addition to the main path's width, where the two differ.

    Other axes may differ, too: they are broadcast.
    """
    shortcut = node.args[junction.argument]
    main = node.args[1 - junction.argument]
    assert isinstance(shortcut, ValueRef)
    assert isinstance(main, ValueRef)
    spec = specs[shortcut.name]
    width = specs[main.name].shape[junction.axis]
    if spec.shape[junction.axis] == width:
        return node, [], []
    axis = junction.axis % len(spec.shape)
    adapter, weights = build_adapter(node.name, shortcut.name, spec, width, axis)
    args = list(node.args)
    args[junction.argument] = ValueRef(adapter[-1].name)
    return replace(node, args=tuple(args)), adapter, weights


def with_input_adapter(graph: Graph, label: str, width: int, axis: int) -> Graph:
    """Put an adapter before a graph, so that it reads a tensor of `width` channels."""
    entry = graph.inputs[0]
    shape = list(entry.spec.shape)
    shape[axis] = width
    spec = TensorSpec(tuple(shape), entry.spec.dtype)
    channels = entry.spec.shape[axis]
    adapter, weights = build_adapter(f"{label}_in", entry.name, spec, channels, axis)
    adapted = {entry.name: adapter[-1].name}
    body = [rename_inputs(node, adapted) for node in graph.nodes]
    return Graph(
        graph.name,
        (Value(entry.name, spec),),
        (*weights, *graph.weights),
        (*adapter, *body),
        tuple(adapted.get(name, name) for name in graph.outputs),
    )


def with_output_adapter(graph: Graph, label: str, width: int, axis: int) -> Graph:
    """Put an adapter behind a graph, so that it writes a tensor of `width` channels."""
    spec = graph.specs()[graph.outputs[0]]
    adapter, weights = build_adapter(f"{label}_out", graph.outputs[0], spec, width, axis)
    return replace(
        graph,
        weights=(*graph.weights, *weights),
        nodes=(*graph.nodes, *adapter),
        outputs=(adapter[-1].name,),
    )
