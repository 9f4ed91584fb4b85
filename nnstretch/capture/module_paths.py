"""Dotted paths of weights and layers in a module that is rebuilt from a graph."""

from __future__ import annotations

import torch
from torch import nn


def attribute_path(path: str) -> str:
    """Return a weight's path as an attribute path.

    Exporters use odd signs, and a module's own methods (`to`) are taken.
    """
    return ".".join(attribute_name(part) for part in path.split("."))


def attribute_name(part: str) -> str:
    """Return a name that a module's attribute can bear."""
    if part.isdigit() or (part.isidentifier() and not hasattr(nn.Module, part)):
        return part
    return f"w_{replace_invalid_characters(part)}"


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
    """Set a submodule; children of a container at its path become its own."""
    container, name = container_of(root, path)
    replaced = container._modules.get(name)
    if replaced is not None:
        for child_name, child in replaced.named_children():
            module.add_module(child_name, child)
    container.add_module(name, module)


def set_tensor(root: nn.Module, path: str, tensor: torch.Tensor) -> None:
    """Register a tensor at a dotted path, as parameter or buffer."""
    container, name = container_of(root, path)
    if isinstance(tensor, nn.Parameter):
        container.register_parameter(name, tensor)
    else:
        container.register_buffer(name, tensor)
