"""Views: exported nodes that show the memory of another tensor."""

from __future__ import annotations

import operator
from typing import Any

import torch

OVERWRITERS = frozenset(
    {
        torch.ops.aten.copy_.default,
        torch.ops.aten.zero_.default,
        torch.ops.aten.fill_.Scalar,
        torch.ops.aten.fill_.Tensor,
    }
)
"""Operators that leave nothing of what they write into."""


class MemoryViews:
    """Views among the nodes that were read so far."""

    def __init__(self) -> None:
        self.nodes: dict[str, Any] = {}

    def record(self, fx_node: Any) -> None:
        """Record a node if it is a view."""
        if is_view(fx_node):
            self.nodes[fx_node.name] = fx_node

    def chain(self, fx_node: Any) -> list[Any]:
        """Return a tensor, the tensor whose memory it shows, and so on to the one that owns it."""
        chain = [fx_node]
        while chain[-1].name in self.nodes:
            chain.append(chain[-1].args[0])
        return chain

    def chain_read_after(self, writer: Any) -> list[Any]:
        """Return the chain of what a node writes into, without the end that nothing reads later."""
        chain = self.chain(writer.args[0])
        while len(chain) > 1 and not is_read_after(chain[-1], writer):
            chain.pop()
        return chain

    def stale(self, writer: Any) -> Any | None:
        """Return a view that a write makes stale: taken before, read later; None without one."""
        target = writer.args[0]
        for view in self.nodes.values():
            if view is not target and target in self.chain(view) and is_read_after(view, writer):
                return view
        return None

    def keeps_state(self, writer: Any) -> bool:
        """Return whether a write into a weight or buffer changes what the next inference reads.

        It does not where the tensor is wholly written before anything reads it.
        """
        owner = self.chain(writer.args[0])[-1]
        if writer.args[0] is not owner or writer.target not in OVERWRITERS:
            return True
        return any(reader < writer for reader in owner.users)


def is_view(fx_node: Any) -> bool:
    """Return whether the result, or what it is a piece of, shows its first argument's memory."""
    if fx_node.target is operator.getitem:
        source = fx_node.args[0]
        return isinstance(source.target, torch._ops.OpOverload) and is_view(source)
    if not isinstance(fx_node.target, torch._ops.OpOverload) or not fx_node.target._schema.returns:
        return False
    info = fx_node.target._schema.returns[0].alias_info
    return info is not None and not info.is_write


def is_read_after(fx_node: Any, moment: Any) -> bool:
    """Return whether a later node than `moment` reads the value."""
    return any(reader > moment for reader in fx_node.users)
