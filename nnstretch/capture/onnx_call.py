"""One ONNX node while it is translated: what its rule reads, and how the rule calls PyTorch's operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx
import torch

from nnstretch.capture.onnx_names import module_path, value_name
from nnstretch.capture.onnx_walk import Batch, FixedBatch, Value, Walker, spec_of
from nnstretch.errors import BrokenFile, NnstretchError, UnsupportedOp
from nnstretch.graph import Argument, Node, Ref
from nnstretch.work import macs_of

MOST_ELEMENTS = 2**28
"""A constant larger than this (1 GiB of float32) is a mistake or an attack, not a mask."""


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
