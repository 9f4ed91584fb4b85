"""A pipeline: stages through which items stream one behind the other, each stage on processors or
host threads of its own.

Stages are connected by the names of tensors, as sub-graphs are: who writes a tensor feeds everyone
who reads it, and one tensor may feed several stages, or one stage in several places. A stage is
sub-graphs of the bundle (several where it is itself branched), or a Python function that the bundle
names and the user passes; a bundle holds no code.

Order: items enter in order and carry a number. A stage with replicas hands item i to replica i
modulo their number and its results are taken in the same turn, so every queue is first in, first
out, and results leave in the order of their inputs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated

from nnstretch.errors import UnknownName
from nnstretch.files.limits import Length, Only, Printable, Range
from nnstretch.graph import TensorSpec

CALL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
MAX_CAPACITY = 4096
MAX_THREADS = 1024
MAX_CORE = 4095
MAX_STAGES = 256
MAX_REPLICAS = 64
"""Each replica of each stage is a thread: what asks for more is no pipeline but an attack."""
DEFAULT_CAPACITY = 2
"""One item at work behind the queue, one that waits.

Enough where stages are balanced, and the bound on memory.
"""
Call = Annotated[
    str, Only(lambda name: not name or CALL.fullmatch(name), "a function as module:function")
]
Core = Annotated[int, Range(0, MAX_CORE)]
Replicas = (
    Annotated[tuple[Printable, ...], Length(0, MAX_REPLICAS)]
    | Annotated[int, Range(1, MAX_REPLICAS)]
)


@dataclass(frozen=True, slots=True)
class TensorDecl:
    """What enters or leaves a pipeline, a module or a Python stage."""

    name: Printable
    """Of the tensor, in the whole pipeline."""
    spec: TensorSpec | None = None
    """Shape and type in PyTorch's order; None for any Python object, which nothing checks."""


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """One step of a pipeline: sub-graphs, or a Python function."""

    name: Printable
    subgraphs: tuple[Printable, ...] = ()
    """Names of sub-graphs, in the manifest's order; several where the stage is branched."""
    call: Call = ""
    """`module:function` of a Python stage.

    It takes its inputs and returns its outputs in their order.
    """
    inputs: tuple[TensorDecl, ...] = ()
    """Of a Python stage; a sub-graph's ports say their own."""
    outputs: tuple[TensorDecl, ...] = ()
    replicas: Replicas = ()
    """Processors that hold a copy each, items in turn.

    Empty where every sub-graph runs where it says. A number for a Python stage.
    """
    threads: Annotated[int, Range(1, MAX_THREADS)] = 1
    """Of each of its backends."""
    cores: tuple[Core, ...] = ()
    """CPU cores its threads are bound to; empty for any."""
    capacity: Annotated[int, Range(1, MAX_CAPACITY)] = DEFAULT_CAPACITY
    """Items that may wait in front of it."""
    copy_in_us: dict[Printable, float] = field(default_factory=dict)
    """By processor, how much of its predicted time is copying inputs there, which goes on beside
    its compute of other items.
    """
    copy_out_us: dict[Printable, float] = field(default_factory=dict)
    """The same of outputs, with its synchronisation."""

    @property
    def replica_names(self) -> tuple[str, ...]:
        """Return the processors, or NAME.0, NAME.1, ..., that take items in turn; else nothing."""
        if not isinstance(self.replicas, int):
            return self.replicas
        if self.replicas == 1:
            return ()
        return tuple(f"{self.name}.{n}" for n in range(self.replicas))


@dataclass(frozen=True, slots=True)
class Parameter:
    """A weight that stands in a sub-graph's file as it is.

    Little-endian, in the order of its shape.
    """

    name: Printable
    spec: TensorSpec
    offset_bytes: int
    """Where it begins in the file, so that it can be replaced without reading the file's format."""


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Weights of one stage that may be replaced between items."""

    name: Printable
    subgraph: Printable
    """Whose file holds them."""
    parameters: Annotated[tuple[Parameter, ...], Length(1, 1 << 20)]


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """Stages in an order in which they can run, and what enters and leaves."""

    stages: Annotated[tuple[PipelineStage, ...], Length(1, MAX_STAGES)]
    inputs: Annotated[tuple[TensorDecl, ...], Length(1, 1 << 20)]
    """By the tensor each of them is; one may feed several stages."""
    outputs: Annotated[tuple[Printable, ...], Length(1, 1 << 20)]
    """Tensors, by the index of the output."""
    groups: tuple[ParameterGroup, ...] = field(default_factory=tuple)


def find_group(pipeline: PipelineSpec, name: str) -> ParameterGroup:
    """Return the parameter group of that name. Raises UnknownName."""
    for group in pipeline.groups:
        if group.name == name:
            return group
    known = ", ".join(group.name for group in pipeline.groups) or "none"
    raise UnknownName(f"unknown parameter group {str(name)[:80]!r}, pipeline, it has {known}")
