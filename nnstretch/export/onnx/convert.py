"""One module -> one ONNX file, checked against the module it came from."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper
from torch import nn

from nnstretch.bundle.manifest import Port
from nnstretch.capture.host_process import silence_python
from nnstretch.capture.rebuild_module import MODULE
from nnstretch.errors import LONGEST_REASON, Mismatch, UnsupportedOp, one_line
from nnstretch.export.onnx.attention import FourDimensionalAttention
from nnstretch.export.onnx.operator_tables import keep_operator_tables
from nnstretch.export.onnx.rename_io import rename_io
from nnstretch.graph import TensorSpec

OPSET = 20
AVERAGES = (torch.ops.aten.avg_pool2d.default, torch.ops.aten.avg_pool3d.default)
DIVISOR = 6
"""Position of divisor_override among their arguments."""
STACK_TRACE = "pkg.torch.onnx.stack_trace"
"""Metadata of a node, from PyTorch's exporter."""
TOLERANCE = 1e-4
"""Largest difference from the module, over the largest magnitude it writes (or 1)."""
ROUNDINGS = 4
"""Roundings of float16 in a row that two orders of computing differ by."""


def export_model(name: str, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> onnx.ModelProto:
    """Export by PyTorch's exporter (opset 20, weights inside), quiet.

    Raises UnsupportedOp with PyTorch's first reason where an operator has no ONNX form.
    """
    check_operators(name, module)
    try:
        with silence_python(), torch.no_grad(), keep_operator_tables(), FourDimensionalAttention():
            program = torch.onnx.export(
                module.eval(),
                inputs,
                dynamo=True,
                external_data=False,
                opset_version=OPSET,
                optimize=True,
                verbose=False,
            )
    except ModuleNotFoundError:
        raise  # a package is missing, not an operator
    except Exception as error:
        raise UnsupportedOp(f"cannot export {name} to ONNX, {refusal(module, error)}") from error
    assert program is not None
    model = program.model_proto
    close_shapes(model, inputs)
    drop_source_paths(model)
    return model


def check_operators(name: str, module: nn.Module) -> None:
    """Check that PyTorch's exporter leaves nothing out: it ignores an average's own divisor, and
    the projection of an LSTM.

    Raises UnsupportedOp with the first such operator, in a module that was rebuilt from a graph.
    """
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            if reason := left_out(node):
                operator = node.target._schema.name.partition("::")[2]
                where = node.meta.get(MODULE) or "forward"
                raise UnsupportedOp(
                    f"cannot export {name} to ONNX, {operator} ({node.name}) in {where} has"
                    f" {reason}"
                )


def left_out(node: torch.fx.Node) -> str:
    """Return what of a call ONNX's operator has not, and what to do instead; else nothing."""
    args: Any = node.args
    if node.target in AVERAGES and len(args) > DIVISOR and args[DIVISOR]:
        return (
            f"divisor_override={args[DIVISOR]}, which ONNX's AveragePool has not; average without"
            " it and multiply the result"
        )
    if node.target is torch.ops.aten.lstm.input:
        _, _, weights, has_biases, layers, _, _, is_bidirectional, *_ = args
        runs = layers * (2 if is_bidirectional else 1)
        if len(weights) > runs * (4 if has_biases else 2):
            return (
                "proj_size, which ONNX's LSTM has not; train another network, such as a linear"
                " layer behind an LSTM without it"
            )
    return ""


def refusal(module: nn.Module, error: Exception) -> str:
    """Return why PyTorch's exporter refuses a module: the operator and where it is called, or its
    own first line.
    """
    cause = first_cause(error)
    operator = re.search(r"No ONNX function found for .*\bop='\w+\.(\w+)'", str(cause))
    if operator is None:
        reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), "")
        return f"{type(cause).__name__}, {reason[:200]}"
    called = operator[1]
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            if str(node.target).split(".")[1:2] == [operator[1]]:
                called = f"{operator[1]} ({node.name}) in {node.meta.get(MODULE) or 'forward'}"
    return f"{called} has no ONNX form in PyTorch's exporter"


def first_cause(error: BaseException) -> BaseException:
    """Return the exception that began it all: PyTorch's own words around it are of no use."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def close_shapes(model: onnx.ModelProto, inputs: Sequence[torch.Tensor]) -> None:
    """Say every size of the inputs: PyTorch's exporter leaves some open where it tries again."""
    weights = {tensor.name for tensor in model.graph.initializer}
    reads = [value for value in model.graph.input if value.name not in weights]
    for value, example in zip(reads, inputs, strict=False):
        for dim, size in zip(value.type.tensor_type.shape.dim, example.shape, strict=False):
            dim.dim_value = size


def drop_source_paths(model: onnx.ModelProto) -> None:
    """Delete stack traces that name files: they would tell folders of the machine that exports."""
    for node in model.graph.node:
        for entry in reversed(node.metadata_props):
            if entry.key == STACK_TRACE and 'File "/' in entry.value:
                node.metadata_props.remove(entry)


def to_onnx(
    module: nn.Module, example: torch.Tensor, source: Port, target: Port, notes: Mapping[str, str]
) -> bytes:
    """Convert to an ONNX file whose input and output are named as the ports are.

    Raises UnsupportedOp with PyTorch's first reason where an operator has no ONNX form.
    """
    model = export_model(target.name, module, (example,))
    return with_metadata(rename_io(model, [source.name], [target.name]), notes)


def with_metadata(model: onnx.ModelProto, notes: Mapping[str, str]) -> bytes:
    """Return the file, with notes that viewers show."""
    for key, value in notes.items():
        model.metadata_props.add(key=key, value=value)
    return bytes(model.SerializeToString(deterministic=True))


def value_info(port: Port) -> onnx.ValueInfoProto:
    """Return a tensor's description in an ONNX graph."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(port.spec.dtype))
    return helper.make_tensor_value_info(port.name, kind, port.spec.shape)


def merge_onnx(sources: Sequence[Port], target: Port, axis: int, notes: Mapping[str, str]) -> bytes:
    """Return an ONNX file of a meeting point: outputs side by side."""
    inputs = list(map(value_info, sources))
    output = value_info(target)
    names = [port.name for port in sources]
    node = helper.make_node("Concat", names, [target.name], name="merge", axis=axis)
    model = helper.make_model(
        helper.make_graph([node], "merge", inputs, [output]),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=9,
    )
    return with_metadata(model, notes)


@contextmanager
def runtime_refusals() -> Iterator[None]:
    """Raise UnsupportedOp for what ONNX Runtime refuses: not every file of an exporter runs."""
    try:
        yield
    except Exception as error:  # Broad on purpose: its types have no base of their own.
        raise UnsupportedOp(
            "the ONNX file cannot be run, ONNX Runtime refuses it:"
            f" {one_line(error)[:LONGEST_REASON]}"
        ) from error


class OnnxRunner:
    """ONNX file, its bytes or its path, ready to run on one core.

    Raises UnsupportedOp where ONNX Runtime cannot load or run it.
    """

    def __init__(self, data: bytes | str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        with runtime_refusals():
            self._session = onnxruntime.InferenceSession(
                data, options, providers=["CPUExecutionProvider"]
            )
        self._inputs = [value.name for value in self._session.get_inputs()]
        self._outputs = [value.name for value in self._session.get_outputs()]

    def run(self, *inputs: np.ndarray) -> np.ndarray:
        """Run one inference, inputs in the file's order; return the first output."""
        named = self.run_named(dict(zip(self._inputs, inputs, strict=True)))
        return named[self._outputs[0]]

    def run_named(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run one inference, inputs and outputs by name."""
        with runtime_refusals():
            outputs = self._session.run(self._outputs, dict(inputs))
        return dict(zip(self._outputs, map(np.asarray, outputs), strict=True))


def check_close(expected: np.ndarray, actual: np.ndarray, what: str) -> float:
    """Return the largest absolute difference.

    Raises Mismatch when the difference is more than rounding explains.
    """
    error = max_abs_difference(expected, actual, what)
    largest = float(np.abs(expected).max(initial=0.0, where=np.isfinite(expected)))
    allowed = tolerance_of(expected.dtype) * max(1.0, largest)
    if not error <= allowed:
        raise Mismatch(f"{what} differs from the module by {error:.3g}, allowed are {allowed:.3g}")
    return error


def tolerance_of(dtype: np.dtype) -> float:
    """Return what rounding explains, over the largest number: more for those of few digits."""
    is_short = dtype == np.float16
    return max(TOLERANCE, ROUNDINGS * float(np.finfo(dtype).eps)) if is_short else TOLERANCE


def max_abs_difference(expected: np.ndarray, actual: np.ndarray, what: str) -> float:
    """Return the largest absolute difference, whatever it is.

    Equal infinities do not differ, nor does NaN from NaN. Raises Mismatch where shapes differ, or
    where a number is NaN or infinite in one of both.
    """
    if expected.shape != actual.shape:
        raise Mismatch(f"{what} writes {actual.shape}, the module writes {expected.shape}")
    # As float64, as unsigned numbers wrap around below 0, and truth values know no difference.
    same = (expected == actual) | ((expected != expected) & (actual != actual))
    difference = np.zeros(expected.shape)
    np.subtract(expected, actual, dtype=np.float64, out=difference, where=~same)
    error = float(np.abs(difference).max(initial=0.0))
    if not math.isfinite(error):
        raise Mismatch(
            f"{what} differs from the module by {error}, one of them has NaN or infinite numbers"
        )
    return error


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Return the spec of a tensor."""
    return TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
