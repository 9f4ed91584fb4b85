"""The walk over an ONNX graph: every operator becomes calls of PyTorch's own operators.

Each value carries probes: what PyTorch computes for it, on its shape-only `meta` device, at the
file's batch and at a multiple of it. Shapes are thereby PyTorch's own, never a second copy of its
rules, and whatever differs between the probes depends on the batch: a reshape keeps that dimension
open, so that the captured network runs at any batch, as one captured from a module does. What
depends on no input is computed at once (shape arithmetic, transposed weights) and has real probes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import torch

from nnstretch.capture.onnx.names import UniqueNames, clean_path, weight_name
from nnstretch.graph import Node, TensorSpec, ValueRef, Weight


class FixedBatch(Exception):
    """A fact of the file at its own batch only: the walk is repeated without the second probe."""


def require_batch_independent(x: OnnxValue, axis: int, what: str) -> None:
    """Refuse to pick or sum along the batch, which may vary. Raises FixedBatch."""
    if any(p.shape[axis] != x.shape[axis] for p in x.probes):
        raise FixedBatch(f"{what} along the batch")


class BatchSize:
    """The batch size as an argument: a number at each probe, `sym_size` in the graph."""


BATCH_SIZE = BatchSize()


@dataclass(frozen=True, eq=False)
class OnnxValue:
    """A tensor of the file."""

    probes: tuple[torch.Tensor, ...]
    """At the file's batch, then at a multiple; on `meta` where it depends on the input."""
    constant: bool
    name: str | None = None
    """Its name in our graph; None for a constant that nothing has read as a tensor yet."""
    source: str = ""
    """The initializer it is, untouched."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape at the first batch size."""
        return tuple(self.probes[0].shape)

    @property
    def rank(self) -> int:
        """Return the number of dimensions."""
        return self.probes[0].dim()

    @property
    def varies_with_batch(self) -> bool:
        """Return whether a constant depends on the batch."""
        first = self.probes[0]
        for probe in self.probes[1:]:
            if probe is first:
                continue
            if probe.shape != first.shape or not torch.equal(probe, first):
                return True
        return False

    @property
    def constant_data(self) -> torch.Tensor:
        """Return a constant's numbers. Raises FixedBatch when they depend on the batch."""
        if self.varies_with_batch:
            raise FixedBatch("a constant depends on the batch")
        return self.probes[0]


@dataclass
class GraphBuilder:
    """Graph that the walk has written so far."""

    file: str
    readers: Counter[str]
    """How many nodes read each name of the file."""
    names: UniqueNames = field(default_factory=UniqueNames)
    values: dict[str, OnnxValue] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    weight_by_tensor: dict[int, str] = field(default_factory=dict)
    """Tensor identity -> weight, so that one constant becomes one weight."""
    transposed_weights: dict[int, OnnxValue] = field(default_factory=dict)
    """Tensor identity -> its transpose, so that tied matrices stay tied."""
    open_batch: bool = False
    """Whether the file leaves the batch open, so that its own -1 stands where the batch is."""
    drops_windows: bool = False
    """Whether a pool leaves out a window inside the padding; a file may declare one more."""
    input: OnnxValue | None = None
    batch_size_node: str | None = None
    """The node that reads the batch, once something needs it."""

    def add_constant(self, tensor: torch.Tensor, source: str = "") -> OnnxValue:
        """Add a tensor that is the same at every batch size."""
        count = len(self.input.probes) if self.input else 2
        return OnnxValue((tensor,) * count, True, source=source)

    def add_weight(self, name: str, tensor: torch.Tensor, trainable: bool) -> str:
        """Add a weight under a free name and return the name."""
        name = self.names.make_unique(weight_name(name))
        self.specs[name] = tensor_spec(tensor)
        self.weights[name] = Weight(name, self.specs[name], trainable)
        self.tensors[name] = tensor
        return name

    def to_reference(self, value: OnnxValue) -> ValueRef:
        """Return a value as an argument; a constant becomes a weight here."""
        if value.name is not None:
            return ValueRef(value.name)
        tensor = value.constant_data
        name = self.weight_by_tensor.get(id(tensor))
        if name is None:
            trainable = bool(value.source) and tensor.is_floating_point() and tensor.numel() > 1
            wanted = value.source or f"constants.c{len(self.weights)}"
            name = self.weight_by_tensor[id(tensor)] = self.add_weight(wanted, tensor, trainable)
        return ValueRef(name)

    def copy_constant(self, value: OnnxValue) -> OnnxValue:
        """Add the node that copies a constant, so that an output of the network may be it."""
        name, spec = self.names.make_unique("clone"), tensor_spec(value.constant_data)
        self.nodes[name] = Node(name, "clone", (self.to_reference(value),), (spec,))
        self.specs[name] = spec
        return replace(value, constant=False, name=name)

    def layer_weights(
        self, path: str, roles: Mapping[str, OnnxValue | None]
    ) -> tuple[OnnxValue | None, ...]:
        """Return constants under one module's path, so that they become a layer.

        A matrix that several nodes read stays one; exporters also store equal vectors (untrained
        norms) once, and those are separate again.
        """
        values = dict(roles)
        free: dict[str, OnnxValue] = {}
        for role, value in roles.items():
            if value is None or value.name is not None:
                continue
            if value.rank < 2 or self.is_unshared(value):
                free[role] = value
        path = self.names.free_layer_path(clean_path(path), tuple(free))
        for role, value in free.items():
            data = value.constant_data
            if not self.is_unshared(value):
                data = data.clone()
            name = self.add_weight(f"{path}.{role}", data, role in ("weight", "bias"))
            self.weight_by_tensor[id(data)] = name
            values[role] = replace(value, name=name, probes=(data,) * len(value.probes))
        return tuple(values.values())

    def is_unshared(self, value: OnnxValue) -> bool:
        """Return whether at most one node reads the constant, so that it may become a weight."""
        return self.readers[value.source] <= 1 and id(value.probes[0]) not in self.weight_by_tensor

    def count_readers(self, value: OnnxValue) -> int:
        """Return how many nodes read a value of our graph, under whichever name of the file.

        Nodes that only give it one more name (Identity, a cast to its own type) do not count.
        """
        names = [name for name, named in self.values.items() if named.name == value.name]
        return sum(self.readers[name] for name in names) - (len(names) - 1)

    def batch_size(self) -> str:
        """Return the batch, read off the network's input."""
        if self.batch_size_node is None:
            assert self.input is not None
            assert self.input.name is not None
            name = self.batch_size_node = self.names.make_unique("sym_size")
            args = (ValueRef(self.input.name), 0)
            node = Node(name, "sym_size.int", args, (TensorSpec((), "int64"),))
            self.nodes = {name: node, **self.nodes}
        return self.batch_size_node


def tensor_spec(tensor: torch.Tensor) -> TensorSpec:
    """Return the shape and dtype of a tensor."""
    return TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def count_elements(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a shape."""
    return prod(shape)
