"""One ONNX node while it is translated.

What its rule reads, and how the rule calls PyTorch's operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx
import torch

from nnstretch.capture.onnx.graph_builder import (
    BatchSize,
    FixedBatch,
    GraphBuilder,
    OnnxValue,
    tensor_spec,
)
from nnstretch.capture.onnx.names import module_path, value_name
from nnstretch.errors import BrokenFile, NnstretchError, UnsupportedOp
from nnstretch.graph import Argument, Node, ValueRef
from nnstretch.structure.macs import count_macs

MAX_CONSTANT_ELEMENTS = 2**28
"""A constant larger than this (1 GiB of float32) is a mistake or an attack, not a mask."""


@dataclass
class NodeContext:
    """One node of the file while it is translated: what a rule reads, and how it writes."""

    builder: GraphBuilder
    node: onnx.NodeProto
    opset: int
    attributes: dict[str, Any]

    @property
    def location(self) -> str:
        """Return operator, node and file for messages."""
        return (
            f"{self.node.op_type} {self.node.name or self.node.output[0]!r} in {self.builder.file}"
        )

    def unsupported_error(self, why: str) -> UnsupportedOp:
        """Return the error that names the node and the reason."""
        return UnsupportedOp(f"unsupported operator {self.location}, {why}")

    def input(self, i: int) -> OnnxValue:
        """Return input i. Raises UnsupportedOp when the node lacks it."""
        value = self.optional_input(i)
        if value is None:
            raise BrokenFile(f"broken ONNX file, {self.location}, input {i} is missing")
        return value

    def optional_input(self, i: int) -> OnnxValue | None:
        """Return input i, or None where it is missing or has no name."""
        name = self.node.input[i] if i < len(self.node.input) else ""
        return self.builder.values[name] if name else None

    def get_attribute(self, name: str, otherwise: Any = None) -> Any:
        """Return an attribute, or its default."""
        return self.attributes.get(name, otherwise)

    def int_values(self, i: int, name: str) -> tuple[int, ...] | None:
        """Return sizes or axes: an input in newer opsets, an attribute in older ones.

        None where absent.
        """
        value = self.optional_input(i)
        if value is None:
            attribute = self.get_attribute(name)
            return None if attribute is None else tuple(int(v) for v in attribute)
        return tuple(int(v) for v in self.require_constant(value).constant_data.flatten())

    def number_value(self, i: int, name: str, otherwise: float | None) -> float | None:
        """Return the number in a constant input or attribute.

        Raises UnsupportedOp when it is computed.
        """
        value = self.optional_input(i)
        if value is None:
            return self.get_attribute(name, otherwise)  # type: ignore[no-any-return]
        data = self.require_constant(value).constant_data
        return float(data.reshape(())) if data.numel() == 1 else otherwise

    def require_constant(self, value: OnnxValue) -> OnnxValue:
        """Return a constant value. Raises UnsupportedOp when it depends on the input."""
        if not value.constant:
            raise self.unsupported_error("it needs a size that depends on the input's values")
        return value

    def layer_path(self, weight: OnnxValue | None = None) -> str:
        """Return where a layer's weights belong.

        Beside the initializer if that is named like one, else at the node.
        """
        if (
            weight is not None
            and weight.source.endswith(".weight")
            and self.builder.readers[weight.source] <= 1
        ):
            return weight.source.removesuffix(".weight")
        return module_path(self.node) or value_name(self.node.output[0])

    def emit(self, op: str, *args: Any, **kwargs: Any) -> OnnxValue:
        """Call a PyTorch operator that writes one tensor."""
        result = self.emit_all(op, *args, **kwargs)
        return result[0]

    def emit_all(self, op: str, *args: Any, **kwargs: Any) -> tuple[OnnxValue, ...]:
        """Emit an operator with several results and return them all."""
        read = [
            v for v in flatten_nested((args, tuple(kwargs.values()))) if isinstance(v, OnnxValue)
        ]
        constant = all(v.constant for v in read) and not any(
            isinstance(v, BatchSize) for v in flatten_nested(args)
        )
        count = len(self.builder.input.probes) if self.builder.input else 1
        unvaried = constant and not any(v.varies_with_batch for v in read)
        probes = [
            self.run_probe(op, args, kwargs, i, constant) for i in range(1 if unvaried else count)
        ]
        columns = tuple(zip(*(probes * count if unvaried else probes), strict=True))
        if constant:
            return tuple(OnnxValue(c, True) for c in columns)
        return self.add_node(op, args, kwargs, columns)

    def run_probe(
        self, op: str, args: Any, kwargs: Any, i: int, constant: bool
    ) -> tuple[torch.Tensor, ...]:
        """Compute an operator at one batch size: constants by value, others on the meta device.

        Raises UnsupportedOp when a constant is too large; BrokenFile or FixedBatch when PyTorch
        refuses.
        """
        function = aten_operator(op)
        batch = self.builder.input.shape[0] if i == 0 and self.builder.input else None

        def at(value: Any, real: bool) -> Any:
            if isinstance(value, OnnxValue):
                return value.probes[i] if real else value.probes[i].to("meta")
            if isinstance(value, BatchSize):
                assert self.builder.input is not None
                return batch if batch is not None else self.builder.input.probes[i].shape[0]
            return [at(v, real) for v in value] if isinstance(value, (tuple, list)) else value

        try:
            result = function(*(at(a, False) for a in args), **kwargs)
            tensors = tuple(result) if isinstance(result, (tuple, list)) else (result,)
            if not constant:
                return tensors
            if sum(t.numel() for t in tensors) > MAX_CONSTANT_ELEMENTS:
                raise self.unsupported_error(
                    f"a constant of {sum(t.numel() for t in tensors)} elements, at most"
                    f" {MAX_CONSTANT_ELEMENTS} are computed"
                )
            result = function(*(at(a, True) for a in args), **kwargs)
        except NnstretchError:
            raise
        except Exception as error:
            # Broad on purpose: PyTorch's operators raise many types, and each means that these
            # shapes do not go together.
            if i > 0:
                raise FixedBatch(f"{self.location}: {error}") from error
            reason = (" ".join(str(error).split()) or type(error).__name__)[:200]
            raise BrokenFile(
                f"broken ONNX file, {self.location}, PyTorch's {op} refuses: {reason}"
            ) from error
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    def add_node(
        self, op: str, args: Any, kwargs: Any, columns: tuple[tuple[torch.Tensor, ...], ...]
    ) -> tuple[OnnxValue, ...]:
        """Add a node and return its results.

        Raises UnsupportedOp when torch refuses the arguments.
        """
        walker = self.builder
        name = walker.names.make_unique(value_name(self.node.output[0]))
        outputs = tuple(tensor_spec(column[0]) for column in columns)
        spelled = tuple(self.convert_argument(a) for a in args)
        macs = count_macs(op.split(".")[0], spelled, outputs[0], walker.specs)
        pairs = tuple((k, self.convert_argument(v)) for k, v in kwargs.items())
        module = module_path(self.node)
        walker.nodes[name] = Node(name, op, spelled, outputs, module, pairs, macs)
        walker.specs[name] = outputs[0]
        if len(columns) == 1 and op.split(".")[0] not in MULTI_OUTPUT_OPERATORS:
            return (OnnxValue(columns[0], False, name),)
        picked: list[OnnxValue] = []
        for i, column in enumerate(columns):
            item = walker.names.make_unique(f"getitem_{len(walker.nodes)}")
            walker.nodes[item] = Node(item, "getitem", (ValueRef(name), i), (outputs[i],), module)
            walker.specs[item] = outputs[i]
            picked.append(OnnxValue(column, False, item))
        return tuple(picked)

    def convert_argument(self, value: Any) -> Argument:
        """Return an argument as a graph stores it."""
        if isinstance(value, OnnxValue):
            return self.builder.to_reference(value)
        if isinstance(value, BatchSize):
            return ValueRef(self.builder.batch_size())
        if isinstance(value, (tuple, list)):
            return tuple(self.convert_argument(v) for v in value)
        return str(value) if isinstance(value, torch.dtype) else value


MULTI_OUTPUT_OPERATORS = frozenset({"chunk", "split", "split_with_sizes", "unbind"})
"""They write several tensors, even where there is only one."""


def aten_operator(op: str) -> Callable[..., Any]:
    """Return the aten operator named `base.overload`."""
    base, _, overload = op.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")  # type: ignore[no-any-return]


def flatten_nested(value: Any) -> list[Any]:
    """Return the leaves of nested lists in order."""
    return (
        [leaf for v in value for leaf in flatten_nested(v)]
        if isinstance(value, (tuple, list))
        else [value]
    )
