"""Graph -> torch.nn.Module of ordinary layers, trainable and exportable again.

Convolutions, linear and norm layers become nn.Conv2d, nn.BatchNorm2d, ... under the names they had;
every other operator is called as PyTorch itself calls it. The result is a torch.fx.GraphModule, so
`print(module.code)` shows a plain Python forward.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn

from nnstretch.errors import UnsupportedOp
from nnstretch.graph import Argument, Graph, Node, TensorSpec, ValueRef, Weight

PYTHON_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
}


def build(graph: Graph, weights: Mapping[str, torch.Tensor] | None = None) -> fx.GraphModule:
    """Build the module that a graph describes.

    Weights named there are copied in, the rest start as PyTorch starts them.
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


def attribute_path(path: str) -> str:
    """Return a weight's path as an attribute path.

    Exporters use odd signs, and a module's own methods (`to`) are taken.
    """
    return ".".join(
        part if is_attribute_name(part) else f"w_{replace_invalid_characters(part)}"
        for part in path.split(".")
    )


def is_attribute_name(part: str) -> bool:
    """Return whether a module can bear an attribute of that name."""
    return part.isdigit() or (part.isidentifier() and not hasattr(nn.Module, part))


def replace_invalid_characters(name: str) -> str:
    """Replace what may not stand in an identifier by underscores."""
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)


class ModuleBuilder:
    """Builder of a torch module from a graph, node by node."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.root = nn.Module()
        self.fx_graph = fx.Graph()
        self.values: dict[str, fx.Node] = {}
        self.weights = {weight.name: weight for weight in graph.weights}
        self.specs = graph.specs()
        self.readers = graph.consumers()
        self.owned: set[str] = set()
        for value in graph.inputs:
            self.values[value.name] = self.fx_graph.placeholder(to_identifier(value.name))

    def add_node(self, node: Node) -> None:
        """Add a node: a layer where there is one for it, else a call of the operator."""
        layer = make_layer(node, self)
        if layer is not None:
            path, module, reads = layer
            set_submodule(self.root, path, module)
            args = tuple(self.fx_node_of(name) for name in reads)
            self.values[node.name] = self.fx_graph.call_module(path, args)
            return
        target = resolve_operator(node)
        args = tuple(self.convert_argument(a) for a in node.args)
        kwargs = {key: self.convert_argument(a) for key, a in node.kwargs}
        self.values[node.name] = self.fx_graph.call_function(target, args, kwargs)

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
            initialize_weight(tensor, weight, self.readers[name])
            set_tensor(self.root, path, nn.Parameter(tensor) if weight.trainable else tensor)
            self.values[name] = self.fx_graph.get_attr(path)
        return self.values[name]

    def owns_weights(self, *names: str | None) -> bool:
        """Return whether a layer may hold these weights: named, and read by nobody else."""
        return all(n is None or (n in self.weights and len(self.readers[n]) == 1) for n in names)

    def finish(self) -> fx.GraphModule:
        """Return the module with its outputs set."""
        outputs = tuple(self.fx_node_of(name) for name in self.graph.outputs)
        self.fx_graph.output(outputs[0] if len(outputs) == 1 else outputs)
        return fx.GraphModule(self.root, self.fx_graph, class_name="Network")


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
        return getattr(
            getattr(getattr(torch.ops, namespace or "aten"), base), overload or "default"
        )  # type: ignore[no-any-return]
    except AttributeError as error:
        raise UnsupportedOp(
            f"no operator {node.op}, node {node.name}, this PyTorch does not have it"
        ) from error


def make_layer(node: Node, builder: ModuleBuilder) -> tuple[str, nn.Module, tuple[str, ...]] | None:
    """Return the layer of a node, its path and the values it reads.

    None where a plain function call says it better.
    """
    make = LAYER_FACTORIES.get(node.kind)
    if make is None or not isinstance(node.args[0], ValueRef):
        return None
    names = weight_names(node)
    if not builder.owns_weights(*(n for n in names.values() if n is not None)):
        return None
    paths = {n.rpartition(".")[0] for n in names.values() if n is not None}
    if (
        len(paths) > 1
        or "" in paths
        or any(names[k] is not None and names[k].rpartition(".")[2] != k for k in names)  # type: ignore[union-attr]
    ):  # type: ignore[union-attr]
        return None
    module = make(node, builder.specs)
    if module is None:
        return None
    path = attribute_path(paths.pop()) if paths else to_identifier(node.name)
    if path in builder.owned:
        return None
    builder.owned.add(path)
    return path, module, (node.args[0].name,)


WEIGHT_ARGUMENTS = {
    "conv": {"weight": 1, "bias": 2},
    "linear": {"weight": 1, "bias": 2},
    "batch_norm": {"weight": 1, "bias": 2, "running_mean": 3, "running_var": 4},
    "layer_norm": {"weight": 2, "bias": 3},
    "group_norm": {"weight": 2, "bias": 3},
    "prelu": {"weight": 1},
}


def weight_names(node: Node) -> dict[str, str | None]:
    """Return which weight fills which role of a layer, by the argument it is passed as."""
    family = "conv" if node.kind.startswith("conv") else node.kind
    roles = WEIGHT_ARGUMENTS.get(family, {})
    values_by_role: dict[str, str | None] = {}
    for role, position in roles.items():
        argument = node.args[position] if position < len(node.args) else None
        values_by_role[role] = argument.name if isinstance(argument, ValueRef) else None
    return values_by_role


def initialize_weight(tensor: torch.Tensor, weight: Weight, readers: tuple[Node, ...]) -> None:
    """Initialize a weight that no layer owns (shared, or at the top) as PyTorch would start the
    layer that reads it; else small or 0.
    """
    roles = {
        role for node in readers for role, name in weight_names(node).items() if name == weight.name
    }
    if roles & {"weight", "running_var"} and tensor.dim() == 1:
        tensor.fill_(0.25 if readers[0].kind == "prelu" else 1.0)
    elif "weight" in roles:
        nn.init.kaiming_uniform_(tensor, a=math.sqrt(5))
    elif weight.trainable and tensor.dim() > 1:
        nn.init.trunc_normal_(tensor, std=0.02)
    elif weight.trainable and all(node.kind in ("mul", "mul_") for node in readers):
        tensor.fill_(1.0)  # a scale per channel: at 0 nothing would pass


def argument_or_default(node: Node, position: int, otherwise: Any) -> Any:
    """Return a node's argument, or its default where the call leaves it out."""
    return node.args[position] if position < len(node.args) else otherwise


def make_conv(node: Node, specs: Mapping[str, TensorSpec]) -> nn.Module | None:
    """Return the convolution layer of a node, or None when none has these arguments."""
    weight, bias = node.args[1], argument_or_default(node, 2, None)
    if not isinstance(weight, ValueRef):
        return None
    cout, cin_per_group, *kernel = specs[weight.name].shape
    groups = int(argument_or_default(node, 6, 1))
    padding = argument_or_default(node, 4, 0)
    make = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[len(kernel)]
    return make(
        cin_per_group * groups,
        cout,
        tuple(kernel),  # type: ignore[arg-type]
        stride=argument_or_default(node, 3, 1),
        padding=padding,
        dilation=argument_or_default(node, 5, 1),
        groups=groups,
        bias=bias is not None,
    )


def make_linear(node: Node, specs: Mapping[str, TensorSpec]) -> nn.Module | None:
    """Return the linear layer of a node, or None when none has these arguments."""
    weight = node.args[1]
    if not isinstance(weight, ValueRef):
        return None
    cout, cin = specs[weight.name].shape
    return nn.Linear(cin, cout, bias=argument_or_default(node, 2, None) is not None)


def make_batch_norm(node: Node, specs: Mapping[str, TensorSpec]) -> nn.Module | None:
    """Return the batch norm of a node, or None when none has these arguments."""
    weight, bias, mean, variance = node.args[1:5]
    if not (isinstance(mean, ValueRef) and isinstance(variance, ValueRef)) or (weight is None) != (
        bias is None
    ):
        return None
    make = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[
        len(node.output.shape)
    ]
    return make(
        specs[mean.name].shape[0],
        eps=float(node.args[7]),  # type: ignore[arg-type]
        momentum=float(node.args[6]),  # type: ignore[arg-type]
        affine=weight is not None,
    )  # type: ignore[arg-type]


def make_layer_norm(node: Node, specs: Mapping[str, TensorSpec]) -> nn.Module | None:
    """Return the layer norm of a node, or None when none has these arguments."""
    shape = node.args[1]
    affine = isinstance(argument_or_default(node, 2, None), ValueRef)
    if affine and not isinstance(argument_or_default(node, 3, None), ValueRef):
        return None
    return nn.LayerNorm(
        tuple(shape),  # type: ignore[arg-type]
        eps=float(argument_or_default(node, 4, 1e-5)),
        elementwise_affine=affine,  # type: ignore[arg-type]
    )  # type: ignore[arg-type]


def make_dropout(node: Node, specs: Mapping[str, TensorSpec]) -> nn.Module | None:
    """Return the dropout of a node, or None when none has these arguments."""
    share, axes = float(node.args[1]), len(node.output.shape)  # type: ignore[arg-type]
    if node.op == "alpha_dropout":
        return nn.AlphaDropout(share)
    whole = (
        {3: nn.Dropout1d, 4: nn.Dropout2d, 5: nn.Dropout3d}.get(axes, nn.Dropout)
        if node.op == "feature_dropout"
        else nn.Dropout
    )
    return whole(share)


LAYER_FACTORIES: dict[str, Callable[[Node, Mapping[str, TensorSpec]], nn.Module | None]] = {
    "conv1d": make_conv,
    "conv2d": make_conv,
    "conv3d": make_conv,
    "linear": make_linear,
    "batch_norm": make_batch_norm,
    "layer_norm": make_layer_norm,
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout"), make_dropout),
}


def to_identifier(name: str) -> str:
    """Return a name as an identifier."""
    cleaned = replace_invalid_characters(name)
    return cleaned if cleaned.isidentifier() else f"v_{cleaned}"


def set_submodule(root: nn.Module, path: str, module: nn.Module) -> None:
    """Set a submodule, making the containers on the way."""
    *parents, last = path.split(".")
    for part in parents:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root._modules[part]  # type: ignore[assignment]
    for name, child in root._modules[last].named_children() if last in root._modules else ():  # type: ignore[union-attr]
        module.add_module(name, child)
    root.add_module(last, module)


def set_tensor(root: nn.Module, path: str, tensor: torch.Tensor) -> None:
    """Register a tensor at a dotted path, as parameter or buffer."""
    *parents, last = path.split(".")
    for part in parents:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root._modules[part]  # type: ignore[assignment]
    if isinstance(tensor, nn.Parameter):
        root.register_parameter(last, tensor)
    else:
        root.register_buffer(last, tensor)
