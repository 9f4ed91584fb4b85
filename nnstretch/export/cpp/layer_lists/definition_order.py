"""Layers in the order in which `__init__` registers them."""

from __future__ import annotations

from torch import nn

from nnstretch.export.cpp.layer_lists.attributes import (
    Record,
    chain_record,
    is_chain,
    layer_record,
    parameter_shapes,
    record_name,
)


def definition_order(module: nn.Module, path: str = "") -> list[Record]:
    """List the layers of a module and of the modules inside, a Sequential of layers as one entry.

    Parameters that a module with modules inside keeps itself are entries of type `Parameter`.
    """
    records: list[Record] = []
    for name, parameter in module.named_parameters(recurse=False):
        head = head_of(f"{path}{name}", "no")
        records.append({**head, "type": "Parameter", **parameter_shapes({name: parameter})})
    for name, child in module.named_children():
        inner = f"{path}{name}"
        if is_chain(child):
            records.append({**head_of(inner, "yes"), **chain_record(child, inner)})
        elif next(child.children(), None) is None:
            records.append({**head_of(inner, "no"), **layer_record(child)})
        else:
            records += definition_order(child, f"{inner}.")
    return records


def head_of(path: str, sequential: str) -> Record:
    """Return the keys that every entry begins with."""
    return {"sequential": sequential, "name": record_name(path), "module": path}
