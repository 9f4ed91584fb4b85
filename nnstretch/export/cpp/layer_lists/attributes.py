"""What describes a layer or an operator: its settings under PyTorch's names, as JSON data."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from nnstretch.capture.rebuild_module import resolve_operator
from nnstretch.graph import Node, refs

Record = dict[str, Any]
"""One entry of a list: JSON data in the seed's order of keys."""
_KEYS = """
    name type sequential length input output next module parameters processor operator macs
    input_bytes next_bytes output_shape returned
"""
RECORD_KEYS = frozenset(_KEYS.split())
"""A setting of one of these names gets an underscore behind it."""


def is_layer(module: nn.Module) -> bool:
    """Return whether a module is a layer of PyTorch, without modules inside."""
    own = type(module).__module__.startswith("torch.nn.modules.")
    return own and next(module.children(), None) is None


def is_chain(module: nn.Module) -> bool:
    """Return whether a module is a Sequential of layers, which stands as one entry."""
    return isinstance(module, nn.Sequential) and len(module) > 0 and all(map(is_layer, module))


def record_name(path: str) -> str:
    """Return the name of a module's entry: the path with underscores, as the seed joins them."""
    return path.replace(".", "_")


def layer_record(module: nn.Module) -> Record:
    """Return type, settings and parameters of one module."""
    record: Record = {"type": type(module).__name__}
    for name, value in vars(module).items():
        if name.startswith("_") or name == "training" or not is_setting(value):
            continue
        record[f"{name}_" if name in RECORD_KEYS else name] = as_json(value)
    return record | parameter_shapes(dict(module.named_parameters(recurse=False)))


def parameter_shapes(parameters: dict[str, torch.Tensor]) -> Record:
    """Return the shapes of parameters as an entry has them; nothing where there are none."""
    if not parameters:
        return {}
    return {"parameters": {name: list(tensor.shape) for name, tensor in parameters.items()}}


def chain_record(module: nn.Module, path: str) -> Record:
    """Return a Sequential of layers: how many, and each under its number."""
    record: Record = {"length": len(list(module.children()))}
    for number, (name, layer) in enumerate(module.named_children()):
        child = {"name": record_name(f"{path}.{name}"), **layer_record(layer)}
        record[str(number)] = child
    return record


def operator_record(node: Node) -> Record:
    """Return type and settings of an operator, by the names of its arguments in PyTorch."""
    schema = getattr(resolve_operator(node), "_schema", None)
    names = [parameter.name for parameter in schema.arguments] if schema is not None else []
    record: Record = {"type": node.kind, "operator": node.op}
    arguments = [(names[i] if i < len(names) else f"arg{i}", a) for i, a in enumerate(node.args)]
    for name, value in (*arguments, *node.kwargs):
        if not list(refs(value)):
            record[f"{name}_" if name in RECORD_KEYS else name] = as_json(value)
    return record


def is_setting(value: object) -> bool:
    """Return whether an attribute is a number, a text, or a tuple of such."""
    if isinstance(value, tuple | list):
        return all(map(is_setting, value))
    return value is None or isinstance(value, bool | int | float | str)


def as_json(value: Any) -> Any:
    """Return a setting as JSON has it: lists for tuples, text for what is no finite number."""
    if isinstance(value, tuple | list):
        return [as_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
