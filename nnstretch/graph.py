"""The captured network: a frozen list of nodes in execution order.

A Graph knows shapes, work and the names of its weights; it knows neither PyTorch nor
processors. Rewrites build a new Graph; nothing here is ever mutated. Operators carry the
names PyTorch gives them (`conv2d`, `add.Tensor`), because that vocabulary is documented.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain
from math import prod
from typing import Annotated

from nnstretch.errors import BrokenGraph
from nnstretch.files.limits import OneOf, Range

ELEMENT_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
_WHOLE = frozenset({"bool", "uint8", "int8", "int32", "int64"})
_BYTE = frozenset({"bool", "uint8", "int8"})
HELD_TYPES = {
    **dict.fromkeys(("float64", "float32"), frozenset(ELEMENT_BYTES)),
    **{name: _BYTE | {name} for name in ("float16", "bfloat16")},
    **dict.fromkeys(("int64", "int32"), _WHOLE),
    **{name: frozenset({"bool", name}) for name in _BYTE},
}
"""By element type, the types whose numbers it holds, up to what float32 rounds; whole numbers are
indices and counts, which int32 holds."""
ElementType = Annotated[str, OneOf(tuple(ELEMENT_BYTES))]
AxisSize = Annotated[int, Range(1)]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and element type of one tensor, never its values."""

    shape: tuple[AxisSize, ...]
    """NCHW for feature maps, NLC for tokens, NC after the head."""

    dtype: ElementType = "float32"

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Return the size in bytes."""
        return self.elements * ELEMENT_BYTES.get(self.dtype, 4)

    @property
    def is_floating(self) -> bool:
        """Return whether the elements are floating numbers, as layers with weights read them."""
        return "float" in self.dtype

    @property
    def unusual_dtype(self) -> str:
        """Return the element type where it is not float32, else an empty text."""
        return "" if self.dtype == "float32" else self.dtype

    def __str__(self) -> str:
        return "x".join(map(str, self.shape)) or "scalar"


@dataclass(frozen=True, slots=True)
class InputShape:
    """Shape and element type that a user gives for an input that the network leaves open."""

    shape: tuple[AxisSize, ...]
    name: str = ""
    """Empty: the input at this position."""
    dtype: str = ""
    """Empty: what the network declares, else float32."""

    def __str__(self) -> str:
        name = f"{self.name}=" if self.name else ""
        dtype = f":{self.dtype}" if self.dtype else ""
        return f"{name}{','.join(map(str, self.shape)) or '()'}{dtype}"


@dataclass(frozen=True, slots=True)
class ValueRef:
    """A value or a weight that a node reads, by name."""

    name: str

    def __str__(self) -> str:
        return f"%{self.name}"


Argument = int | float | bool | str | None | ValueRef | tuple["Argument", ...]


def refs(argument: Argument) -> Iterator[str]:
    """Yield the names of everything an argument reads, in order."""
    if isinstance(argument, ValueRef):
        yield argument.name
    elif isinstance(argument, tuple):
        for item in argument:
            yield from refs(item)


def rename_refs(argument: Argument, names: dict[str, str]) -> Argument:
    """Return an argument that reads other names."""
    if isinstance(argument, ValueRef):
        return ValueRef(names.get(argument.name, argument.name))
    if isinstance(argument, tuple):
        return tuple(rename_refs(item, names) for item in argument)
    return argument


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter, a buffer or a constant tensor that stays with the network."""

    name: str
    """Dotted path in the module, as `state_dict` spells it."""
    spec: TensorSpec
    trainable: bool = True


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call: reads values and weights, writes the value `name`."""

    name: str
    op: str
    """PyTorch's operator name with its overload: `conv2d`, `add.Tensor`, `getitem`."""
    args: tuple[Argument, ...]
    outputs: tuple[TensorSpec, ...]
    """One tensor, or several for `chunk`, `split`, `unbind`, which `getitem` picks from."""
    module: str = ""
    """Dotted path of the innermost module that made the call; empty at the top."""
    kwargs: tuple[tuple[str, Argument], ...] = ()
    macs: int = 0
    """Multiply-accumulates for one forward pass at this batch size."""
    inputs: tuple[str, ...] = field(init=False)
    """Everything it reads, values and weights, in order, each once."""
    kind: str = field(init=False, repr=False, compare=False)
    """The operator without its overload: `add` for `add.Tensor`."""

    def __post_init__(self) -> None:
        names = [*refs(self.args), *refs(tuple(value for _, value in self.kwargs))]
        object.__setattr__(self, "inputs", tuple(dict.fromkeys(names)))
        object.__setattr__(self, "kind", self.op.split(".")[0])

    @property
    def output(self) -> TensorSpec:
        """Return the spec of the one output."""
        return self.outputs[0]

    def __str__(self) -> str:
        shapes = ", ".join(map(str, self.outputs))
        args = [format_argument(a) for a in self.args]
        args += [f"{key}={format_argument(a)}" for key, a in self.kwargs]
        return f"%{self.name}<{shapes}> = {self.op}({', '.join(args)})"


def format_argument(argument: Argument) -> str:
    """Return the printed form of an argument."""
    if isinstance(argument, tuple):
        return f"[{', '.join(map(format_argument, argument))}]"
    return str(argument)


def names_read(nodes: Iterable[Node]) -> list[str]:
    """Return everything that nodes read, values and weights, in their order."""
    return list(chain.from_iterable(node.inputs for node in nodes))


@dataclass(frozen=True, slots=True)
class Value:
    """A named tensor that enters a graph."""

    name: str
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in execution order; everything read is a graph input, a weight or an earlier node."""

    name: str
    inputs: tuple[Value, ...]
    weights: tuple[Weight, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        known = {*self.input_names, *(weight.name for weight in self.weights)}
        for node in self.nodes:
            if missing := [i for i in node.inputs if i not in known]:
                raise BrokenGraph(f"{self.name}: {node.name} reads {missing} before they exist")
            if node.name in known:
                raise BrokenGraph(f"{self.name}: value {node.name} is written twice")
            known.add(node.name)
        if dangling := [o for o in self.outputs if o not in known]:
            raise BrokenGraph(f"{self.name}: outputs {dangling} are never written")

    @property
    def input_names(self) -> tuple[str, ...]:
        """Return the names of the inputs in order."""
        return tuple(value.name for value in self.inputs)

    @property
    def macs(self) -> int:
        """Return the multiply-accumulates of all nodes."""
        return sum(node.macs for node in self.nodes)

    @property
    def params(self) -> int:
        """Return the number of trainable elements; a weight that nodes share counts once."""
        return sum(weight.spec.elements for weight in self.weights if weight.trainable)

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all weights."""
        return sum(weight.spec.size_bytes for weight in self.weights)

    def specs(self) -> dict[str, TensorSpec]:
        """Return the shape and type of every input, weight and first output, by name."""
        known = {value.name: value.spec for value in self.inputs}
        known |= {weight.name: weight.spec for weight in self.weights}
        return known | {node.name: node.output for node in self.nodes}

    def positions(self) -> dict[str, int]:
        """Return the place of each node in execution order, by name."""
        return {node.name: position for position, node in enumerate(self.nodes)}

    def consumers(self) -> dict[str, tuple[Node, ...]]:
        """Return the nodes that read each name; names without readers are absent."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                readers.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in readers.items()}

    def __str__(self) -> str:
        """Return one node per line: the form golden tests and error messages use."""
        heads = ", ".join(f"%{value.name}<{value.spec}>" for value in self.inputs)
        body = "".join(f"  {node}\n" for node in self.nodes)
        ends = ", ".join(f"%{name}" for name in self.outputs)
        return f"graph {self.name}({heads}) {{\n{body}  return {ends}\n}}"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        html: str = import_module("nnstretch.report.notebook").graph_html(self)
        return html
