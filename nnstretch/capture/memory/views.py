"""Views: exported nodes that show the memory of another tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from nnstretch.capture.checks.operator_arguments import named_arguments

OVERWRITERS = frozenset(
    {
        torch.ops.aten.copy_.default,
        torch.ops.aten.zero_.default,
        torch.ops.aten.fill_.Scalar,
        torch.ops.aten.fill_.Tensor,
    }
)
"""Operators that leave nothing of what they write into."""
_UNDECLARED_VIEW_NAMES = """
    alpha_dropout atleast_1d atleast_2d atleast_3d broadcast_tensors cartesian_prod conj_physical
    dropout einsum feature_alpha_dropout feature_dropout meshgrid sum_to_size unsafe_chunk
    unsafe_split unsafe_split_with_sizes
"""
UNDECLARED_VIEWS = frozenset(f"aten::{name}" for name in _UNDECLARED_VIEW_NAMES.split())
"""Operators that may return what they read, though their schema does not say so."""


class MemoryViews:
    """Where exported nodes have their results in memory, as far as writes make it matter.

    Operators that may return a view (`reshape`, `to`) are run on tensors without numbers: whether
    they copy depends on the strides and types of what they read.
    """

    def __init__(self, resolve_size: Callable[[Any], int]) -> None:
        self.resolve_size = resolve_size
        self.mode = FakeTensorMode()
        self.layouts: dict[Any, Any] = {}
        self.origins: dict[Any, Any] = {}
        self.memories: dict[Any, set[int]] = {}
        self.unknown: set[Any] = set()
        """Nodes that may be views, though nobody can say where."""

    def layout(self, fx_node: Any) -> Any:
        """Return the result of a node without its numbers; views of one tensor share a storage."""
        fx_node = self.origin(fx_node)
        if fx_node not in self.layouts:
            self.layouts[fx_node] = self.compute_layout(fx_node)
        return self.layouts[fx_node]

    def origin(self, fx_node: Any) -> Any:
        """Return the node that made the tensor which a write returns; any other node itself."""
        writes = []
        while fx_node not in self.origins and is_write(fx_node):
            writes.append(fx_node)
            fx_node = written_tensor(fx_node)
        maker = self.origins.get(fx_node, fx_node)
        self.origins.update(dict.fromkeys(writes, maker))
        return maker

    def compute_layout(self, fx_node: Any) -> Any:
        """Return the layout of a node that writes nothing."""
        if not may_be_view(fx_node):
            return self.place(fx_node.meta.get("val"))
        try:
            return self.run(fx_node, fx_node.target)
        except Exception:  # Broad on purpose: kernels without numbers raise many types.
            self.unknown.add(fx_node)
            return self.layout(fx_node.all_input_nodes[0])

    def place(self, value: Any) -> Any:
        """Return a recorded value with memory of its own: sizes resolved, numbers left out."""
        if isinstance(value, (tuple, list)):
            return [self.place(item) for item in value]
        if isinstance(value, torch.SymInt):
            return self.resolve_size(value)
        if not isinstance(value, torch.Tensor):
            return value
        shape, strides = ([*map(self.resolve_size, x)] for x in (value.shape, value.stride()))
        with self.mode:
            return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)

    def run(self, fx_node: Any, target: Callable[..., Any], layout: Any = None) -> Any:
        """Return what an operator makes of a node's arguments, numbers left out."""
        args, kwargs = torch.fx.map_arg((fx_node.args, fx_node.kwargs), layout or self.layout)
        with self.mode:
            if changes_shape(fx_node.target):
                args = (args[0].detach(), *args[1:])  # Its argument keeps the shape it had.
            return target(*args, **kwargs)

    def source(self, fx_node: Any) -> Any | None:
        """Return the tensor whose memory a node shows; None where it has memory of its own."""
        if is_write(fx_node):
            return self.origin(fx_node)
        if not may_be_view(fx_node):
            return None
        reader = fx_node.args[0] if fx_node.target is operator.getitem else fx_node
        memory = self.memory(fx_node)
        return next((n for n in reader.all_input_nodes if memory & self.memory(n)), None)

    def memory(self, fx_node: Any) -> set[int]:
        """Return what tells the memory of a node from that of others."""
        if fx_node not in self.memories:
            tensors = filter(is_tensor, tree_leaves(self.layout(fx_node)))
            self.memories[fx_node] = {x.untyped_storage()._cdata for x in tensors}
        return self.memories[fx_node]

    def chain(self, fx_node: Any) -> list[Any]:
        """Return a tensor, the tensor whose memory it shows, and so on to the one that owns it."""
        chain = [fx_node]
        while (source := self.source(chain[-1])) is not None:
            chain.append(source)
        return chain

    def family(self, writer: Any) -> list[Any]:
        """Return all nodes before a writer that share memory with the tensor it writes into."""
        owner = self.chain(written_tensor(writer))[-1]
        memory, members = self.memory(owner), {owner: None}
        waiting = [owner]
        while waiting:
            for user in waiting.pop().users:
                if user < writer and user not in members and self.shares(user, memory):
                    members[user] = None
                    waiting.append(user)
        return list(members)

    def shares(self, fx_node: Any, memory: set[int]) -> bool:
        """Return whether a reader of a tensor shows its memory."""
        if is_write(fx_node) or may_be_view(fx_node):
            return bool(self.memory(fx_node) & memory)
        return False

    def is_same(self, first: Any, second: Any) -> bool:
        """Return whether two nodes show the same numbers: at one place, in one order and type."""
        first, second = self.origin(first), self.origin(second)
        if first is second:
            return True
        a, b = self.layout(first), self.layout(second)
        if self.unknown & {first, second} or not is_tensor(a) or not is_tensor(b):
            return False
        return a.dtype == b.dtype and memory_place(a) == memory_place(b)

    def overlap(self, first: Any, second: Any) -> bool:
        """Return whether a write into one node of a family may change a number of another one."""
        first, second = self.origin(first), self.origin(second)
        a, b = self.layout(first), self.layout(second)
        if self.unknown & {first, second} or not is_tensor(a) or not is_tensor(b):
            return True
        if a.itemsize != b.itemsize:
            return True
        if end_of(a) <= b.storage_offset() or end_of(b) <= a.storage_offset():
            return False
        marks = torch.zeros(max(end_of(a), end_of(b)), dtype=torch.bool)
        marks.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
        return bool(marks.as_strided(b.shape, b.stride(), b.storage_offset()).any())

    def keeps_state(self, writer: Any) -> bool:
        """Return whether a write into a weight or buffer changes what the next inference reads.

        It does not where the tensor is wholly written before anything reads it.
        """
        owner = self.chain(written_tensor(writer))[-1]
        first = min(owner.users)
        if not is_write(first) or written_tensor(first) is not owner:
            return True
        overwrites = first.target in OVERWRITERS or owner in first.kwargs.values()
        return not overwrites or owner in first.args[1:]


def is_tensor(layout: Any) -> bool:
    """Return whether a node has one tensor for result, not several or a size."""
    return isinstance(layout, torch.Tensor)


def memory_place(layout: Any) -> tuple[Any, ...]:
    """Return where a tensor is in memory."""
    storage = layout.untyped_storage()._cdata
    return storage, layout.storage_offset(), tuple(layout.shape), tuple(layout.stride())


def end_of(layout: Any) -> int:
    """Return the end of a tensor in its memory, counted in elements."""
    if not layout.numel():
        return 0
    steps = zip(layout.shape, layout.stride(), strict=True)
    return int(layout.storage_offset() + 1 + sum((size - 1) * step for size, step in steps))


def may_be_view(fx_node: Any) -> bool:
    """Return whether the result, or what it is a piece of, may show an argument's memory."""
    if fx_node.target is operator.getitem:
        return may_be_view(fx_node.args[0])
    return returns_views(fx_node.target) and not is_write(fx_node)


@cache
def returns_views(target: Any) -> bool:
    """Return whether an operator may return what it reads, or a view of it."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    declared = any(result.alias_info is not None for result in target._schema.returns)
    return declared or target._schema.name in UNDECLARED_VIEWS


def changes_shape(target: Any) -> bool:
    """Return whether an operator gives a tensor another shape in place, such as `unsqueeze_`."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.inplace_view in target.tags


def is_write(fx_node: Any) -> bool:
    """Return whether a node writes numbers into one of its arguments, which it returns."""
    return written_tensor(fx_node) is not None


def written_tensor(fx_node: Any) -> Any | None:
    """Return the node whose memory a node writes into and returns; None where it does not."""
    name = written_argument(fx_node.target)
    if name is None:
        return None
    value = named_arguments(fx_node.target, fx_node.args, fx_node.kwargs)[name]
    return value if isinstance(value, torch.fx.Node) else None


@cache
def written_argument(target: Any) -> str | None:
    """Return the name of the argument that an operator writes into and returns; None without."""
    if not isinstance(target, torch._ops.OpOverload) or changes_shape(target):
        return None
    schema = target._schema
    if len(schema.returns) != 1 or schema.returns[0].alias_info is None:
        return None
    aliases = {parameter.name: parameter.alias_info for parameter in schema.arguments}
    return next((name for name, alias in aliases.items() if alias and alias.is_write), None)


def is_read_after(fx_node: Any, moment: Any) -> bool:
    """Return whether a later node than `moment` reads the value."""
    return any(reader > moment for reader in fx_node.users)
