"""A .tflite ready to run; float32 of PyTorch's order goes in and comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nnstretch.bundle.quantization import from_codes, to_codes
from nnstretch.capture.host_process import silence_process as silent
from nnstretch.errors import BadInput
from nnstretch.export.litert.packages import converter_errors, require_packages
from nnstretch.export.litert.tensor_layout import argument_number, nchw, nhwc


class LiteRTRunner:
    """A .tflite ready to run.

    Float32 of PyTorch's order goes in and comes out, whatever the file computes in.

    Raises UnsupportedOp for an operator that the interpreter lacks, BadInput where LiteRT is
    missing.
    """

    def __init__(self, model: bytes, name: str) -> None:
        require_packages()
        from ai_edge_litert.interpreter import Interpreter

        with converter_errors(name, "inference"), silent():
            interpreter = Interpreter(model_content=model, num_threads=1)
            interpreter.allocate_tensors()
            self._runner = interpreter.get_signature_runner()
        details: dict[str, dict[str, Any]] = self._runner.get_input_details()
        names = sorted(details, key=argument_number)
        self.inputs = {name: details[name] for name in names}
        """By name, in the order of the module's arguments.

        Shape (NHWC), dtype, scale and zero point.
        """
        self.output_name, self.output = next(iter(self._runner.get_output_details().items()))

    def run(self, *inputs: np.ndarray) -> np.ndarray:
        """Run one inference, on the batch that the file was made for (1).

        Raises BadInput for another number of inputs.
        """
        if len(inputs) != len(self.inputs):
            raise BadInput(f"{len(inputs)} inputs, LiteRT file, it takes {len(self.inputs)}")
        feeds: dict[str, np.ndarray] = {}
        for values, (name, how) in zip(inputs, self.inputs.items(), strict=True):
            feeds[name] = fit_shape(quantize(nhwc(values), how), name, how)
        return nchw(dequantize(self._runner(**feeds)[self.output_name], self.output))


def holds_codes(how: Mapping[str, Any]) -> bool:
    """Return whether a tensor holds codes of real numbers; integers without a scale are tokens."""
    scale, _ = how["quantization"]
    return bool(np.issubdtype(how["dtype"], np.integer)) and scale != 0


def quantize(values: np.ndarray, how: Mapping[str, Any]) -> np.ndarray:
    """Return real numbers as the tensor holds them.

    `round(x / scale) + zero_point`, what is out of range at its end.
    """
    if not holds_codes(how):
        return np.ascontiguousarray(values, how["dtype"])
    scale, zero_point = how["quantization"]
    return to_codes(values, np.dtype(how["dtype"]).name, scale, zero_point)


def dequantize(values: np.ndarray, how: Mapping[str, Any]) -> np.ndarray:
    """Return `(q - zero_point) * scale`, float32."""
    if not holds_codes(how):
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
