"""The walk over an ONNX graph: every operator becomes calls of PyTorch's own operators.

Each value carries probes: what PyTorch computes for it, on its shape-only `meta` device, at the
file's batch and at a multiple of it. Shapes are thereby PyTorch's own, never a second copy of its
rules, and whatever differs between the probes depends on the batch: a reshape keeps that dimension
open, so that the captured network runs at any batch, as one captured from a module does. What
depends on no input is computed at once (shape arithmetic, transposed weights) and has real probes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import onnx
import torch

from nnstretch.capture.onnx_names import Names, clean, module_path, value_name
from nnstretch.errors import BrokenFile, NnstretchError, UnsupportedOp
from nnstretch.graph import Argument, Node, Ref, TensorSpec, Weight
from nnstretch.work import macs_of

MOST_ELEMENTS = 2**28
"""A constant larger than this (1 GiB of float32) is a mistake or an attack, not a mask."""


class FixedBatch(Exception):
    """Something in the file holds at its own batch only; the walk is repeated without the second probe."""


def fixed(x: Value, axis: int, what: str) -> None:
    """Picking or summing along the batch with numbers of one batch size would silently mean something else at another."""
    if any(p.shape[axis] != x.shape[axis] for p in x.probes):
        raise FixedBatch(f"{what} along the batch")


class Batch:
    """The batch size as an argument: a number at each probe, `sym_size` in the graph."""


BATCH = Batch()


@dataclass(frozen=True, eq=False)
class Value:
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
        return tuple(self.probes[0].shape)

    @property
    def rank(self) -> int:
        return self.probes[0].dim()

    @property
    def varies(self) -> bool:
        """Whether a constant depends on the batch."""
        first, *others = self.probes
        return any(p is not first and (p.shape != first.shape or not torch.equal(p, first)) for p in others)

    @property
    def data(self) -> torch.Tensor:
        """A constant's numbers, the same at every batch."""
        if self.varies:
            raise FixedBatch("a constant depends on the batch")
        return self.probes[0]


@dataclass
class Walker:
    """What the walk has written so far."""

    file: str
    readers: Counter[str]
    """How many nodes read each name of the file."""
    names: Names = field(default_factory=Names)
    values: dict[str, Value] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    named: dict[int, str] = field(default_factory=dict)
    """Tensor identity -> weight, so that one constant becomes one weight."""
    transposed: dict[int, Value] = field(default_factory=dict)
    """Tensor identity -> its transpose, so that tied matrices stay tied."""
    open_batch: bool = False
    """Whether the file leaves the batch open, so that its own -1 stands where the batch is."""
    input: Value | None = None
    size: str | None = None
    """The node that reads the batch, once something needs it."""

    def constant(self, tensor: torch.Tensor, source: str = "") -> Value:
        count = len(self.input.probes) if self.input else 2
        return Value((tensor,) * count, True, source=source)

    def add_weight(self, name: str, tensor: torch.Tensor, trainable: bool) -> str:
        name = self.names.unique(clean(name))
        spec = spec_of(tensor)
        self.weights[name], self.tensors[name], self.specs[name] = Weight(name, spec, trainable), tensor, spec
        return name

    def reference(self, value: Value) -> Ref:
        """A value as an argument; a constant becomes a weight here."""
        if value.name is not None:
            return Ref(value.name)
        tensor = value.data
        if id(tensor) not in self.named:
            trainable = bool(value.source) and tensor.is_floating_point() and tensor.numel() > 1
            self.named[id(tensor)] = self.add_weight(value.source or f"constants.c{len(self.weights)}", tensor, trainable)
        return Ref(self.named[id(tensor)])

    def layer_weights(self, path: str, roles: Mapping[str, Value | None]) -> tuple[Value | None, ...]:
        """Constants under one module's path, so that they become a layer.

        A matrix that several nodes read stays one; exporters also store equal vectors (untrained
        norms) once, and those are separate again.
        """
        free = {r: v for r, v in roles.items() if v is not None and v.name is None and (v.rank < 2 or self.unshared(v))}
        path = self.names.layer(clean(path), tuple(free))
        found: list[Value | None] = []
        for role, value in roles.items():
            if role in free and value is not None:
                data = value.data if self.unshared(value) else value.data.clone()
                name = self.add_weight(f"{path}.{role}", data, role in ("weight", "bias"))
                self.named[id(data)] = name
                value = replace(value, name=name, probes=(data,) * len(value.probes))
            found.append(value)
        return tuple(found)

    def unshared(self, value: Value) -> bool:
        return self.readers[value.source] <= 1 and id(value.probes[0]) not in self.named

    def batch_size(self) -> str:
        """The batch, read off the network's input."""
        if self.size is None:
            assert self.input is not None
            assert self.input.name is not None
            self.size = self.names.unique("sym_size")
            node = Node(self.size, "sym_size.int", (Ref(self.input.name), 0), (TensorSpec((), "int64"),))
            self.nodes = {self.size: node, **self.nodes}
        return self.size


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


@dataclass
class Call:
    """One node of the file while it is translated: what a rule reads, and how it writes."""

    walker: Walker
    node: onnx.NodeProto
    opset: int
    attributes: dict[str, Any]

    @property
    def where(self) -> str:
        return f"{self.node.op_type} {self.node.name or self.node.output[0]!r} in {self.walker.file}"

    def refuse(self, why: str) -> UnsupportedOp:
        return UnsupportedOp(f"unsupported operator {self.where}, {why}")

    def input(self, i: int) -> Value:
        value = self.optional(i)
        if value is None:
            raise BrokenFile(f"broken ONNX file, {self.where}, input {i} is missing")
        return value

    def optional(self, i: int) -> Value | None:
        name = self.node.input[i] if i < len(self.node.input) else ""
        return self.walker.values[name] if name else None

    def attr(self, name: str, otherwise: Any = None) -> Any:
        return self.attributes.get(name, otherwise)

    def ints(self, i: int, name: str) -> tuple[int, ...] | None:
        """Sizes or axes: an input in newer opsets, an attribute in older ones; None where absent."""
        value = self.optional(i)
        if value is None:
            given = self.attr(name)
            return None if given is None else tuple(int(v) for v in given)
        return tuple(int(v) for v in self.known(value).data.flatten())

    def number(self, i: int, name: str, otherwise: float | None) -> float | None:
        value = self.optional(i)
        if value is None:
            return self.attr(name, otherwise)  # type: ignore[no-any-return]
        data = self.known(value).data
        return float(data.reshape(())) if data.numel() == 1 else otherwise

    def known(self, value: Value) -> Value:
        if not value.constant:
            raise self.refuse("it needs a size that depends on the input's values")
        return value

    def path(self, weight: Value | None = None) -> str:
        """Where a layer's weights belong: beside the initializer if that is named like one, else at the node."""
        if weight is not None and weight.source.endswith(".weight") and self.walker.readers[weight.source] <= 1:
            return weight.source.removesuffix(".weight")
        return module_path(self.node) or value_name(self.node.output[0])

    def emit(self, op: str, *args: Any, **kwargs: Any) -> Value:
        """Call a PyTorch operator that writes one tensor."""
        result = self.emit_all(op, *args, **kwargs)
        return result[0]

    def emit_all(self, op: str, *args: Any, **kwargs: Any) -> tuple[Value, ...]:
        read = [v for v in leaves((args, tuple(kwargs.values()))) if isinstance(v, Value)]
        constant = all(v.constant for v in read) and not any(isinstance(v, Batch) for v in leaves(args))
        count = len(self.walker.input.probes) if self.walker.input else 1
        unvaried = constant and not any(v.varies for v in read)
        probes = [self.probe(op, args, kwargs, i, constant) for i in range(1 if unvaried else count)]
        columns = tuple(zip(*(probes * count if unvaried else probes), strict=True))
        if constant:
            return tuple(Value(c, True) for c in columns)
        return self.write(op, args, kwargs, columns)

    def probe(self, op: str, args: Any, kwargs: Any, i: int, constant: bool) -> tuple[torch.Tensor, ...]:
        function = operator(op)
        batch = self.walker.input.shape[0] if i == 0 and self.walker.input else None

        def at(value: Any, real: bool) -> Any:
            if isinstance(value, Value):
                return value.probes[i] if real else value.probes[i].to("meta")
            if isinstance(value, Batch):
                assert self.walker.input is not None
                return batch if batch is not None else self.walker.input.probes[i].shape[0]
            return [at(v, real) for v in value] if isinstance(value, (tuple, list)) else value

        try:
            result = function(*(at(a, False) for a in args), **kwargs)
            tensors = tuple(result) if isinstance(result, (tuple, list)) else (result,)
            if not constant:
                return tensors
            if sum(t.numel() for t in tensors) > MOST_ELEMENTS:
                raise self.refuse(f"a constant of {sum(t.numel() for t in tensors)} elements, at most {MOST_ELEMENTS} are computed")
            result = function(*(at(a, True) for a in args), **kwargs)
        except NnstretchError:
            raise
        except Exception as error:
            # Broad on purpose: PyTorch's operators raise many types, and each means that these shapes do not go together.
            if i > 0:
                raise FixedBatch(f"{self.where}: {error}") from error
            reason = (" ".join(str(error).split()) or type(error).__name__)[:200]
            raise BrokenFile(f"broken ONNX file, {self.where}, PyTorch's {op} refuses: {reason}") from error
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    def write(self, op: str, args: Any, kwargs: Any, columns: tuple[tuple[torch.Tensor, ...], ...]) -> tuple[Value, ...]:
        walker = self.walker
        name = walker.names.unique(value_name(self.node.output[0]))
        outputs = tuple(spec_of(column[0]) for column in columns)
        spelled = tuple(self.argument(a) for a in args)
        macs = macs_of(op.split(".")[0], spelled, outputs[0], walker.specs)
        pairs = tuple((k, self.argument(v)) for k, v in kwargs.items())
        module = module_path(self.node)
        walker.nodes[name] = Node(name, op, spelled, outputs, module, pairs, macs)
        walker.specs[name] = outputs[0]
        if len(columns) == 1 and op.split(".")[0] not in MANY:
            return (Value(columns[0], False, name),)
        picked: list[Value] = []
        for i, column in enumerate(columns):
            item = walker.names.unique(f"getitem_{len(walker.nodes)}")
            walker.nodes[item] = Node(item, "getitem", (Ref(name), i), (outputs[i],), module)
            walker.specs[item] = outputs[i]
            picked.append(Value(column, False, item))
        return tuple(picked)

    def argument(self, value: Any) -> Argument:
        if isinstance(value, Value):
            return self.walker.reference(value)
        if isinstance(value, Batch):
            return Ref(self.walker.batch_size())
        if isinstance(value, (tuple, list)):
            return tuple(self.argument(v) for v in value)
        return str(value) if isinstance(value, torch.dtype) else value


MANY = frozenset({"chunk", "split", "split_with_sizes", "unbind"})
"""They write several tensors, even where there is only one."""


def operator(op: str) -> Callable[..., Any]:
    base, _, overload = op.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")  # type: ignore[no-any-return]


def leaves(value: Any) -> list[Any]:
    return [leaf for v in value for leaf in leaves(v)] if isinstance(value, (tuple, list)) else [value]


def elements(shape: tuple[int, ...]) -> int:
    return prod(shape)
