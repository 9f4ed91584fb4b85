"""One module -> .tflite.

Float32, then int8 throughout by what each tensor holds on calibration images; and its interpreter.

Tensors of four dimensions are NCHW in PyTorch and NHWC in every file written here; `LiteRT` turns
them, so callers stay in PyTorch's order. Whole networks and sub-graphs go the same way: several
inputs, one output. Batch norms are folded by the converter.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from nnstretch.bundle.quantization import from_codes, to_codes
from nnstretch.capture.exported_program import eval_mode
from nnstretch.capture.silence import silence_process as silent
from nnstretch.errors import BadInput, UnsupportedOp

SIGNATURE = "serving_default"
"""The one entry that litert-torch gives a file; its inputs are args_0, args_1, ..."""
CHANNELS_LAST = {0: 0, 1: 3, 2: 1, 3: 2}
"""Where a dimension of an NCHW map is in NHWC."""
Ranges = dict[str, dict[str, Any]]
"""What tensors hold, by their names in the file: `min` and `max`."""
CALIBRATION_CHUNK = 8
"""Inputs between two reports of progress; the quantizer opens the file anew for each chunk."""
BORDERS = ("QUANTIZE", "DEQUANTIZE")
"""Operators that are float on one side by their nature."""
CULPRITS = (
    r"Lowering not found: (?:aten\.)?(\w+)",
    r"target=torch\.ops\.(?:aten\.)?(\w+)",
    r"builtin opcode '(\w+)'",
    r"unresolved custom op: (\w+)",
)
"""Where LiteRT's complaints name an operator."""


def to_litert(module: nn.Module, examples: Sequence[torch.Tensor], name: str) -> bytes:
    """Convert to a float32 .tflite that takes inputs of exactly the examples' shapes (maps NHWC).

    Converts evaluation mode and leaves the module's modes as they were. Raises UnsupportedOp with
    the operator for which LiteRT has no form, BadInput where its packages are missing.
    """
    require_packages()
    import litert_torch

    with eval_mode(module), converter_errors(name, "float32"), silent(), torch.no_grad():
        maps = [i for i, example in enumerate(examples) if example.dim() == 4]
        outputs = [0] if module(*examples).dim() == 4 else []
        wrapped = litert_torch.to_channel_last_io(module, args=maps, outputs=outputs).eval()
        return bytes(
            litert_torch.convert(wrapped, tuple(channels_last(e) for e in examples)).model_content()
        )


class Concat(nn.Module):
    """A concatenation of tensors in the file's own order."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Concatenate the inputs."""
        return torch.cat(inputs, self.axis)


def to_litert_concat(examples: Sequence[torch.Tensor], axis: int, name: str) -> bytes:
    """Build a float32 .tflite of one operator that puts its inputs side by side.

    `axis` is PyTorch's, maps are NHWC in the file.
    """
    require_packages()
    import litert_torch

    dims = examples[0].dim()
    axis_last = CHANNELS_LAST[axis % dims] if dims == 4 else axis % dims
    with converter_errors(name, "float32"), silent(), torch.no_grad():
        return bytes(
            litert_torch.convert(
                Concat(axis_last).eval(), tuple(channels_last(e) for e in examples)
            ).model_content()
        )


class LiteRTCalibration:
    """A float file whose tensors are watched on calibration inputs, so that it can become int8.

    The range of each tensor is the moving average of what it holds, so the order of inputs counts.
    """

    def __init__(self, model: bytes, name: str, threads: int = 1) -> None:
        require_packages()
        self.model, self.name, self._threads = model, name, threads
        self.ranges: Ranges = {}
        self._worker = self._quantizer()

    def _quantizer(self) -> Any:
        from ai_edge_quantizer import quantizer, recipe

        with converter_errors(self.name, "int8"), silent():
            return quantizer.Quantizer(bytearray(self.model), recipe.static_wi8_ai8())

    def watch(self, inputs: Sequence[Sequence[torch.Tensor]]) -> None:
        """Run the file on the inputs of one inference after another, in PyTorch's order.

        Ranges move.
        """
        feeds = {SIGNATURE: [name_inputs(input_) for input_ in inputs]}
        with converter_errors(self.name, "int8"), silent():
            self.ranges = self._worker.calibrate(
                feeds, previous_calibration_result=self.ranges or None, num_threads=self._threads
            )

    def quantize(self, ranges: Ranges | None = None) -> bytes:
        """Return the int8 file of the ranges watched, or of others.

        Raises BadInput where nothing was watched, UnsupportedOp.
        """
        ranges = self.ranges if ranges is None else ranges
        if not ranges:
            raise BadInput(
                f"no calibration inputs, int8 of {self.name}, ranges of activations are measured on"
                " at least one"
            )
        with converter_errors(self.name, "int8"), silent():
            # A quantizer alters what it is given, and is good for one file.
            return bytes(self._quantizer().quantize(copy.deepcopy(ranges)).quantized_model)


def to_int8(
    model: bytes,
    calibration: Iterable[Sequence[torch.Tensor]],
    name: str,
    progress: Callable[[int], None] | None = None,
    threads: int = 1,
) -> bytes:
    """Convert to a .tflite of int8 weights (a scale per output channel) and int8 activations,
    inputs and outputs (a scale per tensor).

    `calibration` holds the inputs of one inference after another, as the float file of `to_litert`
    takes them but in PyTorch's order; the range of each tensor is the moving average of what it
    holds on them, so their order counts. `progress` is told how many are done. Operators that have
    no int8 form stay float: see `float_operators`. Raises BadInput without calibration inputs,
    UnsupportedOp where the quantizer refuses.
    """
    watched, done, feeds = LiteRTCalibration(model, name, threads), 0, iter(calibration)
    while chunk := list(islice(feeds, CALIBRATION_CHUNK)):
        watched.watch(chunk)
        done += len(chunk)
        if progress is not None:
            progress(done)
    return watched.quantize()


class LiteRTRunner:
    """A .tflite ready to run.

    Float32 of PyTorch's order goes in and comes out, whatever the file computes in.

    Raises UnsupportedOp for an operator that the interpreter lacks, BadInput where LiteRT is
    missing.
    """

    def __init__(self, model: bytes, name: str, threads: int = 1) -> None:
        require_packages()
        from ai_edge_litert.interpreter import Interpreter

        with converter_errors(name, "inference"), silent():
            interpreter = Interpreter(model_content=model, num_threads=threads)
            interpreter.allocate_tensors()
            self._runner = interpreter.get_signature_runner()
        self.inputs: dict[str, dict[str, Any]] = dict(
            sorted(
                self._runner.get_input_details().items(),
                key=lambda input_spec: argument_number(input_spec[0]),
            )
        )
        """By name, in the order of the module's arguments.

        Shape (NHWC), dtype, scale and zero point.
        """
        self.output_name, self.output = next(iter(self._runner.get_output_details().items()))

    def run(self, *inputs: np.ndarray) -> np.ndarray:
        """Run one inference, on the batch that the file was made for (1). Raises BadInput when
        their number differs.

        Raises BadInput when their number differs.
        """
        if len(inputs) != len(self.inputs):
            raise BadInput(f"{len(inputs)} inputs, LiteRT file, it takes {len(self.inputs)}")
        feeds = {
            name: fit_shape(quantize(nhwc(x), how), name, how)
            for x, (name, how) in zip(inputs, self.inputs.items(), strict=True)
        }
        return nchw(dequantize(self._runner(**feeds)[self.output_name], self.output))


def quantize(values: np.ndarray, how: Mapping[str, Any]) -> np.ndarray:
    """Return real numbers as the tensor holds them.

    `round(x / scale) + zero_point`, what is out of range at its end.
    """
    if not np.issubdtype(how["dtype"], np.integer):
        return np.ascontiguousarray(values, how["dtype"])
    scale, zero_point = how["quantization"]
    return to_codes(values, np.dtype(how["dtype"]).name, scale, zero_point)


def dequantize(values: np.ndarray, how: Mapping[str, Any]) -> np.ndarray:
    """Return `(q - zero_point) * scale`, float32."""
    if not np.issubdtype(how["dtype"], np.integer):
        return values
    scale, zero_point = how["quantization"]
    return from_codes(values, scale, zero_point)


def fit_shape(values: np.ndarray, name: str, how: Mapping[str, Any]) -> np.ndarray:
    """Return values of the shape that the file takes. Raises BadInput."""
    wanted = tuple(int(size) for size in how["shape"])
    if values.shape != wanted:
        raise BadInput(
            f"input {name} is {values.shape}, LiteRT file, it takes {wanted} (channels last)"
        )
    return values


def float_operators(model: bytes) -> tuple[str, ...]:
    """Return the kinds of operator of a file that compute in float, sorted.

    None in a file that is int8 throughout.
    """
    from ai_edge_litert import schema_py_generated as schema

    names = {
        number: name
        for name, number in vars(schema.BuiltinOperator).items()
        if not name.startswith("_")
    }
    parsed, kinds = schema.Model.GetRootAs(model, 0), set()
    for graph in (parsed.Subgraphs(i) for i in range(parsed.SubgraphsLength())):
        for operator in (graph.Operators(i) for i in range(graph.OperatorsLength())):
            code = parsed.OperatorCodes(operator.OpcodeIndex())
            ends = {operator.Inputs(i) for i in range(operator.InputsLength())} | {
                operator.Outputs(i) for i in range(operator.OutputsLength())
            }
            if any(graph.Tensors(end).Type() == schema.TensorType.FLOAT32 for end in ends - {-1}):
                kinds.add(
                    code.CustomCode().decode()
                    if code.CustomCode()
                    else names[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
                )
    return tuple(sorted(kinds - set(BORDERS)))


def nhwc(values: np.ndarray) -> np.ndarray:
    """Return an NCHW array as NHWC; other ranks as they are."""
    return values.transpose(0, 2, 3, 1) if values.ndim == 4 else values


def nchw(values: np.ndarray) -> np.ndarray:
    """Return an NHWC array as NCHW; other ranks as they are."""
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2)) if values.ndim == 4 else values


def channels_last(values: torch.Tensor) -> torch.Tensor:
    """Return an NCHW tensor as NHWC; other ranks as they are."""
    return values.permute(0, 2, 3, 1).contiguous() if values.dim() == 4 else values


def name_inputs(inputs: Sequence[torch.Tensor]) -> dict[str, np.ndarray]:
    """Return inputs of one inference under the names that the converter gave them."""
    return {f"args_{i}": channels_last(x).numpy() for i, x in enumerate(inputs)}


def argument_number(name: str) -> int:
    """Return the number at the end of an argument's name."""
    return int(name.rpartition("_")[2])


def require_packages() -> None:
    """Check that the extra `litert` is installed. Raises BadInput where it is not."""
    try:
        with silent():
            for package in (
                "litert_torch",
                "ai_edge_litert.interpreter",
                "ai_edge_quantizer.quantizer",
            ):
                import_module(package)
    except ImportError as error:
        raise BadInput(
            f"LiteRT is not installed ({error}), conversion to .tflite, pip install"
            " 'nnstretch[litert]'"
        ) from error


@contextlib.contextmanager
def converter_errors(name: str, what: str) -> Iterator[None]:
    """Turn what a converter or interpreter throws into one line that names the operator,
    where known.

    Raises UnsupportedOp in their place.
    """
    try:
        yield
    except Exception as error:
        text = str(error)
        culprit = next(
            (match[1] for match in (re.search(pattern, text) for pattern in CULPRITS) if match),
            None,
        )
        where = f"operator {culprit}" if culprit else "LiteRT"
        reason = next(
            (line.strip() for line in text.splitlines() if line.strip()), type(error).__name__
        )
        raise UnsupportedOp(
            f"cannot convert {name} to LiteRT {what}, {where}, {reason[:200]}"
        ) from error
