"""State of a translation: views of values, calls so far, weights, and what may still be fused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from nnstretch.export.cpp import view_algebra
from nnstretch.export.cpp.program import (
    Activation,
    Attribute,
    Extents,
    OperatorCall,
    TensorBuffer,
    TensorView,
    whole_view,
)
from nnstretch.graph import Argument, Graph, Node, ValueRef

Views = TensorView | tuple[TensorView, ...]
FUSES_ACTIVATION = frozenset(
    {"Conv2d", "ConvTranspose2d", "Matmul", "Elementwise", "Binary", "Scalar", "ChannelAffine"}
)
MOST_AXES = 8
"""`kMaxRank` of cpp/include/nnstretch/view.hpp."""
FUSES_RESIDUAL = frozenset({"Conv2d", "Matmul"})


class UnsupportedArguments(Exception):
    """An operator is known, but not with these arguments; the message says which."""


@dataclass
class Translation:
    """Translation of one graph, node by node."""

    graph: Graph
    constants: Mapping[str, np.ndarray]
    """Weights and what follows from them alone, by name; float32 once they are read."""
    calls: list[OperatorCall] = field(default_factory=list)
    values: dict[str, Views] = field(default_factory=dict)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    """What the program reads, by the name of its buffer."""
    last_call: dict[str, int] = field(default_factory=dict)
    """Value -> number of the call that computed it, while nothing but its own reader sees it."""

    def __post_init__(self) -> None:
        self.specs = self.graph.specs()
        readers = self.graph.consumers()
        self.reader_count = {name: len(nodes) for name, nodes in readers.items()}
        for name in self.graph.outputs:
            self.reader_count[name] = self.reader_count.get(name, 0) + 1
        for value in self.graph.inputs:
            self.values[value.name] = whole_view(
                TensorBuffer(value.name, "input", value.spec.shape)
            )

    def view_of(self, argument: Argument) -> TensorView:
        """Return the view of a value or a weight. Raises UnsupportedArguments for anything else."""
        if not isinstance(argument, ValueRef):
            raise UnsupportedArguments(f"{argument} where a tensor is read")
        if argument.name in self.values:
            view = self.values[argument.name]
            if isinstance(view, tuple):
                raise UnsupportedArguments("a list of tensors where one is read")
            return view
        return self.constant(argument.name, self.constants[argument.name])

    def constant(self, name: str, array: np.ndarray) -> TensorView:
        """Return the view of a constant, which becomes a weight of the program."""
        if array.dtype != np.float32:
            if array.dtype.kind not in "fiub":
                raise UnsupportedArguments(f"{name} holds {array.dtype}, only float32 is computed")
            exact = array
            array = array.astype(np.float32)
            if exact.dtype.kind in "iu" and not np.array_equal(array, exact):
                raise UnsupportedArguments(f"{name} holds {exact.dtype} beyond 2^24")
        known = self.weights.get(name)
        if known is not None and known is not array and not np.array_equal(known, array):
            return self.constant(f"{name}_", array)
        self.weights[name] = np.asarray(array, order="C")
        return whole_view(TensorBuffer(name, "weight", tuple(array.shape)))

    def call(
        self,
        node: Node,
        operation: str,
        reads: tuple[TensorView | None, ...],
        shape: Extents,
        attributes: Mapping[str, Attribute] | None = None,
        activation: Activation | None = None,
        write: TensorView | None = None,
        suffix: str = "",
    ) -> TensorView:
        """Add a call and return what it computes: a new tensor of the arena, or `write`.

        Raises UnsupportedArguments where it reads nothing, or has to do with more axes than the
        runtime has.
        """
        value = node.name + suffix
        if any(view is not None and not view.elements for view in reads):
            raise UnsupportedArguments("a tensor without elements")
        target = write if write is not None else whole_view(TensorBuffer(value, "arena", shape))
        if any(len(view.shape) > MOST_AXES for view in (*reads, target) if view is not None):
            raise UnsupportedArguments(f"a tensor of more than {MOST_AXES} axes")
        self.calls.append(
            OperatorCall(
                operation,
                value,
                reads,
                target,
                tuple((attributes or {}).items()),
                activation,
                node.module,
                node.macs if not suffix else 0,
            )
        )
        if write is None and not suffix:
            self.last_call[node.name] = len(self.calls) - 1
        return target

    def dense(self, view: TensorView, node: Node) -> TensorView:
        """Return a dense view of the same elements, by a copy where it takes one."""
        if view.is_dense:
            return view
        return self.call(node, "Copy", (view,), view.shape, suffix=f"_dense{len(self.calls)}")

    def optional_dense(self, argument: Argument, node: Node) -> TensorView | None:
        """Return a dense view of a value, None for None."""
        return None if argument is None else self.dense(self.view_of(argument), node)

    def reshape(self, view: TensorView, shape: Extents, node: Node) -> TensorView:
        """Return the elements under another shape, by a copy where it takes one."""
        alias = view_algebra.reshape(view, shape)
        if alias is not None:
            return alias
        reshaped = view_algebra.reshape(self.dense(view, node), shape)
        assert reshaped is not None
        return reshaped

    def sole_call(self, argument: Argument) -> int | None:
        """Return the number of the call behind a value that one node alone reads, else None.

        None, too, where the value's elements are in another order than the call writes them.
        """
        if not isinstance(argument, ValueRef) or self.reader_count.get(argument.name) != 1:
            return None
        number, view = self.last_call.get(argument.name), self.values.get(argument.name)
        if number is None or not isinstance(view, TensorView):
            return None
        return number if view_algebra.same_order(view, self.calls[number].write) else None

    def pass_on(self, source: Argument, node: Node) -> None:
        """Let a node that only renames a value keep what may be fused behind it."""
        number = self.sole_call(source)
        if number is not None:
            self.last_call[node.name] = number

    def fuse_activation(self, node: Node, activation: Activation) -> TensorView | None:
        """Apply an activation inside the call before it; None where that cannot be."""
        number = self.sole_call(node.args[0])
        if number is None:
            return None
        call = self.calls[number]
        if call.operation not in FUSES_ACTIVATION or call.activation is not None:
            return None
        self.calls[number] = replace(call, activation=activation)
        self.last_call[node.name] = number
        return call.write

    def fuse_residual(self, node: Node) -> TensorView | None:
        """Add a sum's other operand inside the convolution or product before it, else None."""
        for source, summand in (node.args[1::-1], node.args[:2]):
            number = self.sole_call(source)
            if number is None or not isinstance(summand, ValueRef) or summand == source:
                continue
            call = self.calls[number]
            residual = view_of_shape(self.view_of(summand), node.output.shape, call.write.shape)
            taken = len(call.reads) > 3 and call.reads[3] is not None
            if call.operation not in FUSES_RESIDUAL or call.activation is not None or taken:
                continue
            if residual is None:
                continue
            bias = call.reads[2] if len(call.reads) > 2 else None
            fused = replace(call, reads=(*call.reads[:2], bias, residual))
            self.move_to_end(number, fused)
            self.last_call[node.name] = len(self.calls) - 1
            return call.write
        return None

    def move_to_end(self, number: int, call: OperatorCall) -> None:
        """Put a call behind all others: nothing but its coming reader waits for it."""
        del self.calls[number]
        self.calls.append(call)
        for name, position in self.last_call.items():
            if position > number:
                self.last_call[name] = position - 1


def view_of_shape(view: TensorView, shape: Extents, target: Extents) -> TensorView | None:
    """Return a dense view of a shape under another shape; None where it is not that."""
    if view.shape != shape or not view.is_dense or prod(shape) != prod(target):
        return None
    return view_algebra.reshape(view, target)
