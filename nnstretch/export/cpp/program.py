"""A network as calls on tensors in memory: what the C++ source says, as frozen data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod

import numpy as np

Extents = tuple[int, ...]
Attribute = int | float | bool | str | tuple[int, ...] | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TensorBuffer:
    """Memory with a name: an input, an output, a weight, or a tensor of the arena."""

    name: str
    storage: str
    """input, output, weight or arena."""
    shape: Extents

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class TensorView:
    """Elements of a buffer, by offset, shape and strides in elements; a stride of 0 broadcasts."""

    buffer: TensorBuffer
    offset: int
    shape: Extents
    stride: Extents

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    @property
    def is_dense(self) -> bool:
        """Return whether the elements follow each other in row-major order."""
        axes = zip(self.shape, self.stride, dense_strides(self.shape), strict=True)
        return all(size == 1 or stride == dense for size, stride, dense in axes)

    @property
    def is_whole(self) -> bool:
        """Return whether the view is all of its buffer, in order."""
        return self.offset == 0 and self.elements == self.buffer.elements and self.is_dense

    @property
    def interval(self) -> tuple[int, int]:
        """Return the first element that the view may touch, and one past the last."""
        spans = [(size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True)]
        first = self.offset + sum(min(0, span) for span in spans)
        end = self.offset + sum(max(0, span) for span in spans) + 1
        return first, end


def dense_strides(shape: Extents) -> Extents:
    """Return row-major strides."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def whole_view(buffer: TensorBuffer) -> TensorView:
    """Return the view of all of a buffer."""
    return TensorView(buffer, 0, buffer.shape, dense_strides(buffer.shape))


@dataclass(frozen=True, slots=True)
class Activation:
    """A function of one number, with its constants."""

    function: str
    a: float = 0.0
    b: float = 0.0


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call of the runtime: an operation of cpp/include/nnstretch/operations.hpp."""

    operation: str
    """Name of the operation's struct: `Conv2d`."""
    value: str
    """Name of the value that it computes, as the captured graph has it."""
    reads: tuple[TensorView | None, ...]
    write: TensorView
    attributes: tuple[tuple[str, Attribute], ...] = ()
    activation: Activation | None = None
    module: str = ""
    """Dotted path of the module that made the call."""
    macs: int = 0

    @property
    def views(self) -> tuple[TensorView, ...]:
        """Return everything that it reads and writes."""
        return (*(view for view in self.reads if view is not None), self.write)


@dataclass(frozen=True, slots=True)
class CallGroup:
    """Calls that run one after the other on one processing element: a task of the program."""

    name: str
    placement: str
    """Processor that the plan chose; empty leaves it to the policy."""
    calls: tuple[OperatorCall, ...]
    part: str = ""
    """Of a layer: the call of CEDR's interface that it is, and between which channels."""

    @property
    def api(self) -> str:
        """Return the call of CEDR's interface that the task is, empty where it is none."""
        return self.part.partition(" ")[0]

    @property
    def layer_name(self) -> str:
        """Return the name of a task of one layer: the module's path, or the value; and the part."""
        first = self.calls[0]
        name = first.module or first.value
        return f"{name}/{self.part}" if self.part else name


@dataclass(frozen=True)
class CppProgram:
    """A network that is ready to be written as C++."""

    name: str
    inputs: tuple[TensorBuffer, ...]
    outputs: tuple[TensorBuffer, ...]
    groups: tuple[CallGroup, ...]
    weights: Mapping[str, np.ndarray]
    """Float32, by the name of their buffer."""
    whole_inputs: frozenset[str] = frozenset()
    """Names of inputs that hold whole numbers: ids of tokens."""

    @property
    def calls(self) -> tuple[OperatorCall, ...]:
        """Return all calls in order."""
        return tuple(chain.from_iterable(group.calls for group in self.groups))

    @property
    def views(self) -> Iterator[TensorView]:
        """Return everything that calls read and write, in order."""
        return chain.from_iterable(call.views for call in self.calls)

    @property
    def macs(self) -> int:
        """Return the multiply-accumulates of all calls."""
        return sum(call.macs for call in self.calls)
