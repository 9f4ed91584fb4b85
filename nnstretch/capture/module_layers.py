"""Nodes of a graph -> torch.nn layers, their paths, and how weights outside layers start."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Any

import torch
from torch import fx, nn

from nnstretch.graph import Node, TensorSpec, ValueRef, Weight
from nnstretch.structure.arguments import argument

LayerFactory = Callable[[Node, Mapping[str, TensorSpec]], nn.Module | None]
"""Layer of a node; None where no layer has these arguments."""
WEIGHT_ARGUMENTS = {
    "conv": {"weight": 1, "bias": 2},
    "linear": {"weight": 1, "bias": 2},
    "batch_norm": {"weight": 1, "bias": 2, "running_mean": 3, "running_var": 4},
    "instance_norm": {"weight": 1, "bias": 2, "running_mean": 3, "running_var": 4},
    "layer_norm": {"weight": 2, "bias": 3},
    "group_norm": {"weight": 2, "bias": 3},
    "prelu": {"weight": 1},
}
"""Family of layers -> role of a weight -> the argument it is passed as."""


def weight_names(node: Node) -> dict[str, str | None]:
    """Return the weight in each role of a node's layer; None where a role is left out."""
    family = "conv" if node.kind.startswith("conv") else node.kind
    names: dict[str, str | None] = {}
    for role, position in WEIGHT_ARGUMENTS.get(family, {}).items():
        value = argument(node, position)
        names[role] = value.name if isinstance(value, ValueRef) else None
    return names


def initialize_weight(tensor: torch.Tensor, weight: Weight, readers: tuple[Node, ...]) -> None:
    """Initialize a weight outside layers as PyTorch starts its reader's layer, else small or 0."""
    roles: set[str] = set()
    for node in readers:
        roles.update(role for role, name in weight_names(node).items() if name == weight.name)
    if roles & {"weight", "running_var"} and tensor.dim() == 1:
        tensor.fill_(0.25 if readers[0].kind == "prelu" else 1.0)
    elif "weight" in roles:
        nn.init.kaiming_uniform_(tensor, a=math.sqrt(5))
    elif weight.trainable and tensor.dim() > 1:
        nn.init.trunc_normal_(tensor, std=0.02)
    elif weight.trainable and all(node.kind in ("mul", "mul_") for node in readers):
        tensor.fill_(1.0)  # a scale per channel: at 0 nothing would pass


def make_conv(node: Node, specs: Mapping[str, TensorSpec]) -> nn.Module | None:
    """Return the convolution of a node."""
    weight = node.args[1]
    if not isinstance(weight, ValueRef):
        return None
    cout, cin_per_group, *kernel = specs[weight.name].shape
    groups = int(argument(node, 6, 1))
    make: Any = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[len(kernel)]
    return make(  # type: ignore[no-any-return]
        cin_per_group * groups,
        cout,
        tuple(kernel),
        stride=argument(node, 3, 1),
        padding=argument(node, 4, 0),
        dilation=argument(node, 5, 1),
        groups=groups,
        bias=argument(node, 2) is not None,
    )


def make_linear(node: Node, specs: Mapping[str, TensorSpec]) -> nn.Module | None:
    """Return the linear layer of a node."""
    weight = node.args[1]
    if not isinstance(weight, ValueRef):
        return None
    cout, cin = specs[weight.name].shape
    return nn.Linear(cin, cout, bias=argument(node, 2) is not None)


def make_tracking_norm(node: Node, specs: Mapping[str, TensorSpec]) -> nn.Module | None:
    """Return the batch norm or instance norm of a node; None where it keeps no statistics."""
    weight, bias, mean, variance = node.args[1:5]
    if not isinstance(mean, ValueRef) or not isinstance(variance, ValueRef):
        return None
    if (weight is None) != (bias is None):
        return None
    make: Any = norm_of(node.kind, len(node.output.shape))
    channels = specs[mean.name].shape[0]
    # A norm that averages over all batches (momentum=None) is evaluated with 0.
    momentum = float(argument(node, 6)) or None
    eps = float(argument(node, 7))
    settings = {"affine": weight is not None, "track_running_stats": True}
    return make(channels, eps=eps, momentum=momentum, **settings)  # type: ignore[no-any-return]


class UnscaledNorm(nn.Module):
    """Batch or instance norm that learns statistics and reads nothing else that lies in it.

    PyTorch's own would scale by a `weight` that the network applies elsewhere.
    """

    def __init__(self, channels: int, kind: str, momentum: float, eps: float) -> None:
        super().__init__()
        self.kind, self.momentum, self.eps = kind, momentum, eps
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize by the input's statistics in training, else by those that were learnt."""
        normalize: Any = getattr(nn.functional, self.kind)
        statistics = self.running_mean, self.running_var
        return normalize(  # type: ignore[no-any-return]
            x, *statistics, None, None, self.training, self.momentum, self.eps
        )


def make_unscaled_norm(node: Node, specs: Mapping[str, TensorSpec]) -> UnscaledNorm | None:
    """Return the norm of a node that keeps statistics and scales by nothing; None for others."""
    if node.kind not in ("batch_norm", "instance_norm"):
        return None
    weight, bias, mean, variance = node.args[1:5]
    if weight or bias or not isinstance(mean, ValueRef) or not isinstance(variance, ValueRef):
        return None
    momentum, eps = float(argument(node, 6)), float(argument(node, 7))
    return UnscaledNorm(specs[mean.name].shape[0], node.kind, momentum, eps)


def norm_of(kind: str, rank: int) -> type[nn.Module]:
    """Return the class of norms that keep statistics of tensors of so many axes."""
    if kind == "batch_norm":
        return {4: nn.BatchNorm2d, 5: nn.BatchNorm3d}.get(rank, nn.BatchNorm1d)
    return {4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}.get(rank, nn.InstanceNorm1d)


def make_layer_norm(node: Node, specs: Mapping[str, TensorSpec]) -> nn.Module | None:
    """Return the layer norm of a node; None where it has a weight without bias, or a bias alone."""
    affine = isinstance(argument(node, 2), ValueRef)
    if affine != isinstance(argument(node, 3), ValueRef):
        return None
    eps = float(argument(node, 4, 1e-5))
    return nn.LayerNorm(tuple(argument(node, 1)), eps=eps, elementwise_affine=affine)


def make_dropout(node: Node, specs: Mapping[str, TensorSpec]) -> nn.Module | None:
    """Return the dropout of a node."""
    share = float(argument(node, 1))
    if node.op == "alpha_dropout":
        return nn.AlphaDropout(share)
    if node.op == "feature_dropout":
        by_rank = {3: nn.Dropout1d, 4: nn.Dropout2d, 5: nn.Dropout3d}
        return by_rank.get(len(node.output.shape), nn.Dropout)(share)
    return nn.Dropout(share)


LAYER_FACTORIES: dict[str, LayerFactory] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), make_conv),
    "linear": make_linear,
    **dict.fromkeys(("batch_norm", "instance_norm"), make_tracking_norm),
    "layer_norm": make_layer_norm,
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout"), make_dropout),
}


GRAPH_MODULE_NAMES = frozenset(dir(fx.GraphModule(nn.Module(), fx.Graph())))
"""Taken in the outermost module of a rebuilt network."""


def attribute_path(path: str) -> str:
    """Return a weight's path as an attribute path.

    Exporters use odd signs, and a module's own methods (`to`) are taken, of the outermost module
    also what torch.fx gives it (`graph`).
    """
    first, *following = map(attribute_name, path.split("."))
    return ".".join([f"w_{first}" if first in GRAPH_MODULE_NAMES else first, *following])


def attribute_name(part: str) -> str:
    """Return a name that a module's attribute can bear."""
    if part.isdigit() or (part.isidentifier() and not hasattr(nn.Module, part)):
        return part
    return f"w_{replace_invalid_characters(part)}"


def distinct_names(paths: Collection[str]) -> dict[str, str]:
    """Return names of the tensors of a module by their paths: their attribute paths all differ.

    A part of a path is written out (`+1` as `w__2b_1`) where another of the same module would
    become the same attribute (`-1`); every other part stays.
    """
    parts: dict[str, str] = {}
    for parent, siblings in names_by_module(paths).items():
        paths_at = {f"{parent}.{part}".lstrip("."): part for part in siblings}
        attributes = {path: attribute_path(path).rpartition(".")[2] for path in paths_at}
        occurrences = Counter(attributes.values())
        for path, part in paths_at.items():
            clashes = occurrences[attributes[path]] > 1 and attributes[path] != part
            parts[path] = write_out(part, siblings) if clashes else part
    return {path: ".".join(parts[each] for each in (*parent_paths(path), path)) for path in paths}


def paths_by_name(paths: Collection[str]) -> dict[str, str]:
    """Return where a module has its tensors, by what its graph may call them."""
    return {name: path for path, name in distinct_names(paths).items()} | {p: p for p in paths}


def write_out(part: str, siblings: Container[str]) -> str:
    """Return an identifier that tells every sign of a part, and that no sibling has."""
    signs = (c if c.isascii() and c.isalnum() else f"_{ord(c):x}_" for c in part)
    name = f"w_{''.join(signs)}"
    while name in siblings:
        name += "_"
    return name


def parent_paths(path: str) -> list[str]:
    """Return the dotted paths above a path, outermost first."""
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def names_by_module(paths: Iterable[str]) -> dict[str, set[str]]:
    """Return the names of tensors and modules in each module above tensors at dotted paths."""
    names: dict[str, set[str]] = {}
    for path in paths:
        while path:
            path, _, name = path.rpartition(".")
            names.setdefault(path, set()).add(name)
    return names


def replace_invalid_characters(name: str) -> str:
    """Replace what may not stand in an identifier by underscores."""
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)


def to_identifier(name: str) -> str:
    """Return a name as an identifier."""
    cleaned = replace_invalid_characters(name)
    return cleaned if cleaned.isidentifier() else f"v_{cleaned}"


def container_of(root: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Return the module that holds a path's last part, made where it is missing, and that part."""
    *parents, last = path.split(".")
    for part in parents:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root._modules[part]  # type: ignore[assignment]
    return root, last


def set_submodule(root: nn.Module, path: str, module: nn.Module) -> None:
    """Set a submodule; tensors and children of a container at its path become its own."""
    container, name = container_of(root, path)
    replaced = container._modules.get(name)
    if replaced is not None:
        for key, parameter in replaced._parameters.items():
            module.register_parameter(key, parameter)
        for key, buffer in replaced._buffers.items():
            module.register_buffer(key, buffer)
        for key, child in replaced._modules.items():
            module.add_module(key, child)
    container.add_module(name, module)


def set_tensor(root: nn.Module, path: str, tensor: torch.Tensor) -> None:
    """Register a tensor at a dotted path, as parameter or buffer."""
    container, name = container_of(root, path)
    if isinstance(tensor, nn.Parameter):
        container.register_parameter(name, tensor)
    else:
        container.register_buffer(name, tensor)
