"""One ONNX node while it is translated: what its rule reads and calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx
import torch

from nnstretch.capture.constant_folding import MAX_CONSTANT_ELEMENTS
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


@dataclass
class NodeContext:
    """One node of the file while it is translated."""

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

    def get_attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or its default."""
        return self.attributes.get(name, default)

    def int_values(self, i: int, name: str) -> tuple[int, ...] | None:
        """Return sizes or axes, an input in newer opsets, else an attribute; None where absent."""
        value = self.optional_input(i)
        if value is None:
            attribute = self.get_attribute(name)
            return None if attribute is None else tuple(int(v) for v in attribute)
        return tuple(int(v) for v in self.require_constant(value).constant_data.flatten())

    def number_value(self, i: int, name: str, default: float | None) -> float | None:
        """Return the number in a constant input or attribute; a whole one of whole numbers.

        Raises UnsupportedOp when the input is no constant.
        """
        value = self.optional_input(i)
        if value is None:
            return self.get_attribute(name, default)  # type: ignore[no-any-return]
        data = self.require_constant(value).constant_data
        return data.item() if data.numel() == 1 else default

    def require_constant(self, value: OnnxValue) -> OnnxValue:
        """Return a constant value. Raises UnsupportedOp when it depends on the input."""
        if not value.constant:
            raise self.unsupported_error("it needs a size that depends on the input's values")
        return value

    def layer_path(self, weight: OnnxValue | None = None) -> str:
        """Return where a layer's weights belong: beside an initializer named like one, or here."""
        source = weight.source if weight is not None else ""
        if source.endswith(".weight") and self.builder.readers[source] <= 1:
            return source.removesuffix(".weight")
        return module_path(self.node) or value_name(self.node.output[0])

    def layer_weights(
        self, weight: OnnxValue, bias: OnnxValue | None
    ) -> tuple[OnnxValue | None, ...]:
        """Return weight and bias as those of one layer."""
        return self.builder.layer_weights(self.layer_path(weight), {"weight": weight, "bias": bias})

    def emit(self, op: str, *args: Any, **kwargs: Any) -> OnnxValue:
        """Call a PyTorch operator that writes one tensor."""
        return self.emit_all(op, *args, **kwargs)[0]

    def emit_all(self, op: str, *args: Any, **kwargs: Any) -> tuple[OnnxValue, ...]:
        """Call a PyTorch operator and return everything that it writes."""
        leaves = flatten_nested((args, tuple(kwargs.values())))
        read = [leaf for leaf in leaves if isinstance(leaf, OnnxValue)]
        constant = all(value.constant for value in read)
        constant = constant and not any(isinstance(leaf, BatchSize) for leaf in leaves)
        count = len(self.builder.input.probes) if self.builder.input else 1
        if constant and not any(value.varies_with_batch for value in read):
            probes = [self.run_probe(op, args, kwargs, 0, constant)] * count
        else:
            probes = [self.run_probe(op, args, kwargs, i, constant) for i in range(count)]
        columns = tuple(zip(*probes, strict=True))
        if constant:
            return tuple(OnnxValue(column, True) for column in columns)
        return self.add_node(op, args, kwargs, columns)

    def run_probe(
        self, op: str, args: Any, kwargs: Any, i: int, constant: bool
    ) -> tuple[torch.Tensor, ...]:
        """Compute an operator at one batch size: constants by value, others on the meta device.

        Raises UnsupportedOp when a constant is too large; BrokenFile or FixedBatch when PyTorch
        refuses.
        """
        function = aten_operator(op)
        try:
            tensors = self.call_operator(function, args, kwargs, i, real=False)
            elements = sum(tensor.numel() for tensor in tensors)
            if constant and elements > MAX_CONSTANT_ELEMENTS:
                raise self.unsupported_error(
                    f"a constant of {elements} elements, at most {MAX_CONSTANT_ELEMENTS} are"
                    " computed"
                )
            if not constant:
                return tensors
            return self.call_operator(function, args, kwargs, i, real=True)
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

    def call_operator(
        self, function: Callable[..., Any], args: Any, kwargs: Any, i: int, real: bool
    ) -> tuple[torch.Tensor, ...]:
        """Call an operator on the numbers of probe `i`, or on their shapes only."""
        result = function(*(self.probe_argument(arg, i, real) for arg in args), **kwargs)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    def probe_argument(self, value: Any, i: int, real: bool) -> Any:
        """Return an argument as probe `i` has it."""
        if isinstance(value, OnnxValue):
            return value.probes[i] if real else value.probes[i].to("meta")
        if isinstance(value, BatchSize):
            assert self.builder.input is not None
            return self.builder.input.probes[i].shape[0]
        if isinstance(value, (tuple, list)):
            return [self.probe_argument(item, i, real) for item in value]
        return value

    def add_node(
        self, op: str, args: Any, kwargs: Any, columns: tuple[tuple[torch.Tensor, ...], ...]
    ) -> tuple[OnnxValue, ...]:
        """Add a node, and a `getitem` for each of several results; return the results."""
        builder = self.builder
        name = builder.names.make_unique(value_name(self.node.output[0]))
        outputs = tuple(tensor_spec(column[0]) for column in columns)
        spelled = tuple(self.convert_argument(arg) for arg in args)
        kind = op.split(".")[0]
        macs = count_macs(kind, spelled, outputs[0], builder.specs)
        pairs = tuple((key, self.convert_argument(value)) for key, value in kwargs.items())
        module = module_path(self.node)
        builder.nodes[name] = Node(name, op, spelled, outputs, module, pairs, macs)
        builder.specs[name] = outputs[0]
        if len(columns) == 1 and kind not in MULTI_OUTPUT_OPERATORS:
            return (OnnxValue(columns[0], False, name),)
        picked: list[OnnxValue] = []
        for i, column in enumerate(columns):
            item = builder.names.make_unique(f"getitem_{len(builder.nodes)}")
            builder.nodes[item] = Node(item, "getitem", (ValueRef(name), i), (outputs[i],), module)
            builder.specs[item] = outputs[i]
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
    if not isinstance(value, (tuple, list)):
        return [value]
    leaves: list[Any] = []
    for item in value:
        leaves += flatten_nested(item)
    return leaves


TranslationRule = Callable[[NodeContext], OnnxValue | tuple[OnnxValue, ...]]
"""Translation of one node into calls of PyTorch's operators."""
