"""Graph -> torch.nn.Module of ordinary layers, trainable and exportable again.

Convolutions, linear and norm layers become nn.Conv2d, nn.BatchNorm2d, ... under the names they had,
unless the network keeps something there that such a layer would take for its own (a bias added
later); every other operator is called as PyTorch itself calls it. The result is a
torch.fx.GraphModule, so `print(module.code)` shows a plain Python forward.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import chain, count
from typing import Any

import torch
from torch import fx, nn

from nnstretch.capture.exported_program import BATCH_ARITHMETIC
from nnstretch.capture.module_layers import (
    LAYER_FACTORIES,
    attribute_path,
    initialize_weight,
    make_unscaled_norm,
    names_by_module,
    set_submodule,
    set_tensor,
    to_identifier,
    weight_names,
)
from nnstretch.errors import UnsupportedOp
from nnstretch.graph import Argument, Graph, Node, ValueRef

MODULE = "nnstretch_module"
"""Key of a rebuilt call's module in the original, so that refusals can name it."""
PYTHON_OPERATORS = {name: function for function, name in BATCH_ARITHMETIC.items()}


def build(graph: Graph, weights: Mapping[str, torch.Tensor] | None = None) -> fx.GraphModule:
    """Build the module that a graph describes.

    Weights named in `weights` are copied in, the others start as PyTorch starts them.
    """
    builder = ModuleBuilder(graph)
    for node in graph.nodes:
        builder.add_node(node)
    module = builder.finish()
    if weights:
        copy_weights(module, graph, weights)
    return module


def copy_weights(module: nn.Module, graph: Graph, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy the weights of a graph into the module that was rebuilt from it."""
    targets = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        for weight in graph.weights:
            if weight.name in weights:
                targets[attribute_path(weight.name)].copy_(weights[weight.name])


class ModuleBuilder:
    """Builder of a torch module from a graph, node by node."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.root = nn.Module()
        self.fx_graph = fx.Graph()
        self.weights = {weight.name: weight for weight in graph.weights}
        self.specs = graph.specs()
        self.readers = graph.consumers()
        read = (name for name in self.weights if name in self.readers or name in graph.outputs)
        self.tensor_paths = {attribute_path(name) for name in read}
        self.names_at = names_by_module(self.tensor_paths)
        self.layer_paths: set[str] = set()
        self.values: dict[str, fx.Node] = {}
        for value in graph.inputs:
            self.values[value.name] = self.fx_graph.placeholder(to_identifier(value.name))

    def add_node(self, node: Node) -> None:
        """Add a node: a layer where one can hold its weights, else a call of the operator."""
        if self.add_layer(node):
            return
        target = resolve_operator(node)
        args = tuple(self.convert_argument(item) for item in node.args)
        kwargs = {key: self.convert_argument(item) for key, item in node.kwargs}
        self.values[node.name] = self.fx_graph.call_function(target, args, kwargs)
        self.values[node.name].meta[MODULE] = node.module

    def add_layer(self, node: Node) -> bool:
        """Add the layer of a node and return True; do nothing where no layer says the same."""
        source = node.args[0] if node.args else None
        placed = self.layer_of(node) if isinstance(source, ValueRef) else None
        if placed is None:
            return False
        path, layer = placed
        if path not in self.layer_paths:
            self.layer_paths.add(path)
            self.convert_weights(layer, node)
            set_submodule(self.root, path, layer)
        self.values[node.name] = self.fx_graph.call_module(path, (self.fx_node_of(node.inputs[0]),))
        return True

    def layer_of(self, node: Node) -> tuple[str, nn.Module] | None:
        """Return a node's layer and where it belongs; None where no layer says the same there."""
        make = LAYER_FACTORIES.get(node.kind)
        path = self.layer_path(node)
        layer = None if make is None or path is None else make(node, self.specs)
        if path is None or layer is None:
            return None
        roles = {role for role, name in weight_names(node).items() if name is not None}
        if not roles:
            return self.free_path(path, layer), layer
        if path in self.layer_paths and not is_shared_norm(node, self.readers):
            return None
        for possible in (layer, make_unscaled_norm(node, self.specs)):
            if possible is not None and not self.has_other_names(path, possible, roles):
                return path, possible
        return None

    def convert_weights(self, layer: nn.Module, node: Node) -> None:
        """Give the weights of a layer the types that they have in the graph."""
        for role, name in weight_names(node).items():
            tensor = getattr(layer, role, None)
            if name is not None and isinstance(tensor, torch.Tensor):
                tensor.data = tensor.data.to(getattr(torch, self.specs[name].dtype))

    def layer_path(self, node: Node) -> str | None:
        """Return where a layer holds exactly a node's weights, under the names they have.

        None where a weight has another reader, another module or a name of another role.
        """
        paths: set[str] = set()
        for role, name in weight_names(node).items():
            if name is None:
                continue
            path, _, attribute = name.rpartition(".")
            is_shared = len(self.readers.get(name, ())) != 1 and not is_shared_norm(
                node, self.readers
            )
            if name not in self.weights or is_shared or attribute != role or not path:
                return None
            paths.add(path)
        if len(paths) > 1:
            return None
        return attribute_path(paths.pop() if paths else to_identifier(node.name))

    def has_other_names(self, path: str, layer: nn.Module, roles: Container[str] = ()) -> bool:
        """Return whether a module of the network has something else under a name of the layer.

        What the layer has in its `roles` is its own. A layer without bias, for instance, would add
        the bias that the network adds elsewhere.
        """
        names = self.names_at.get(path, ())
        return any(name not in roles and hasattr(layer, name) for name in names)

    def free_path(self, wanted: str, layer: nn.Module) -> str:
        """Return where a layer without weights can be: `wanted`, else with a number behind it."""
        path = wanted
        numbers = count(1)
        taken = self.layer_paths | self.tensor_paths
        while path in taken or self.has_other_names(path, layer):
            path = f"{wanted}_{next(numbers)}"
        return path

    def convert_argument(self, argument: Argument) -> Any:
        """Return an argument with references replaced by the values they name."""
        if isinstance(argument, ValueRef):
            return self.fx_node_of(argument.name)
        if isinstance(argument, tuple):
            return [self.convert_argument(item) for item in argument]
        if isinstance(argument, str) and argument.startswith("torch."):
            return getattr(torch, argument.removeprefix("torch."))
        return argument

    def fx_node_of(self, name: str) -> fx.Node:
        """Return a computed value, or a weight that is read as a tensor."""
        if name not in self.values:
            weight = self.weights[name]
            path = attribute_path(name)
            tensor = torch.zeros(weight.spec.shape, dtype=getattr(torch, weight.spec.dtype))
            initialize_weight(tensor, weight, self.readers.get(name, ()))
            set_tensor(self.root, path, nn.Parameter(tensor) if weight.trainable else tensor)
            self.values[name] = self.fx_graph.get_attr(path)
        return self.values[name]

    def finish(self) -> fx.GraphModule:
        """Return the module with its outputs set."""
        outputs = tuple(self.fx_node_of(name) for name in self.graph.outputs)
        self.fx_graph.output(outputs[0] if len(outputs) == 1 else outputs)
        return fx.GraphModule(self.root, self.fx_graph, class_name="Network")


def is_shared_norm(node: Node, readers: Mapping[str, Sequence[Node]]) -> bool:
    """Return whether all readers of a norm's statistics are calls of the same norm.

    One layer then learns statistics of all calls; calls of the operator alone would learn none.
    """
    names = [name for name in weight_names(node).values() if name is not None]
    return "running_mean" in weight_names(node) and all(
        reader.kind == node.kind and reader.args[1:] == node.args[1:]
        for reader in chain.from_iterable(readers.get(name, ()) for name in names)
    )


def resolve_operator(node: Node) -> Callable[..., Any]:
    """Return the PyTorch function behind an operator's name.

    Raises UnsupportedOp when this PyTorch lacks it.
    """
    if node.op == "getitem":
        return operator.getitem
    if node.op.startswith("py."):
        return PYTHON_OPERATORS[node.op.removeprefix("py.")]
    namespace, _, qualified = node.op.rpartition("::")
    base, _, overload = qualified.partition(".")
    try:
        packet = getattr(getattr(torch.ops, namespace or "aten"), base)
        return getattr(packet, overload or "default")  # type: ignore[no-any-return]
    except AttributeError as error:
        raise UnsupportedOp(
            f"no operator {node.op}, node {node.name}, this PyTorch does not have it"
        ) from error
