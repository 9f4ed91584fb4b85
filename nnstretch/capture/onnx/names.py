"""Free-form names of an ONNX file -> module paths and unique attribute paths."""

from __future__ import annotations

import ast
from keyword import kwlist

import onnx
import torch
from torch import nn

from nnstretch.capture.module_layers import parent_paths

SCOPES_KEY = "pkg.torch.onnx.name_scopes"
"""Key of the modules around a call, outermost first, the call last (torch.onnx with dynamo)."""


def module_path(node: onnx.NodeProto) -> str:
    """Return dotted path of the module that made the call; empty where the exporter did not say."""
    for prop in node.metadata_props:
        if prop.key == SCOPES_KEY:
            return path_from_scopes(prop.value)
    if node.name.startswith("/"):
        return path_from_node_name(node.name)
    return ""


def path_from_scopes(text: str) -> str:
    """Return the module path of scopes: `['', 'conv1', 'conv2d']` -> `conv1`."""
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ""
    if not isinstance(scopes, list) or len(scopes) < 2 or not isinstance(scopes[-2], str):
        return ""
    return clean_path(scopes[-2]) if scopes[-2] else ""


def path_from_node_name(name: str) -> str:
    """Return the module path of a node's name: `/layer1/layer1.0/conv1/Conv` -> `layer1.0.conv1`.

    A child of a container repeats the container's name.
    """
    path: list[str] = []
    for part in name.strip("/").split("/")[:-1]:
        if path and part.startswith(f"{path[-1]}."):
            path[-1] = part
        elif part:
            path.append(part)
    return clean_path(".".join(path)) if path else ""


def clean_path(name: str) -> str:
    """Return the name as a dotted path of attributes that a module can have."""
    parts = [clean_attribute(part) for part in name.strip("./:").split(".") if part]
    return ".".join(parts) or "value"


def clean_attribute(part: str) -> str:
    """Return a name that a module attribute may bear."""
    word = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in part)
    if not (word.isdigit() or word.isidentifier()):
        word = f"v_{word}"
    return f"{word}_" if word in RESERVED_NAMES else word


RESERVED_NAMES = frozenset(dir(nn.Module())) | frozenset(kwlist)
"""Attributes every module has already, and Python's own words."""


def weight_name(name: str) -> str:
    """Return a weight's name that does not clash with an operator's value (`expand_3`)."""
    path = clean_path(name)
    word, _, number = path.rpartition("_")
    stem = word if number.isdigit() else path
    return f"constants.{path}" if "." not in path and hasattr(torch.ops.aten, stem) else path


def value_name(name: str) -> str:
    """Return a value's flat name: `/layer1/layer1.0/Add_output_0` -> `layer1_layer1_0_Add`."""
    stem, _, tail = name.rpartition("_output_")
    flat = clean_path(stem if stem and tail.isdigit() else name).replace(".", "_")
    return f"v_{flat}" if flat[0].isdigit() else flat


class UniqueNames:
    """Names handed out once each; a tensor's path is never also a module's."""

    def __init__(self) -> None:
        self.leaves: set[str] = set()
        self.parents: set[str] = set()

    def make_unique(self, wanted: str) -> str:
        """Return the wanted name, or the first free one with a number behind it."""
        name, count = wanted, 0
        while not self.is_free(name):
            count += 1
            name = f"{wanted}_{count}"
        self.leaves.add(name)
        self.parents.update(parent_paths(name))
        return name

    def is_free(self, name: str) -> bool:
        """Return whether a path is neither a weight, nor above or below one."""
        if name in self.leaves or name in self.parents:
            return False
        return self.leaves.isdisjoint(parent_paths(name))

    def free_layer_path(self, wanted: str, roles: tuple[str, ...]) -> str:
        """Return a module path under which every role is still free."""
        path, count = wanted, 0
        while not all(self.is_free(f"{path}.{role}") for role in roles):
            count += 1
            path = f"{wanted}_{count}"
        return path
