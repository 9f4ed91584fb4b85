"""One module -> .tflite.

Float32, then int8 throughout by what each tensor holds on calibration images.

Tensors of four dimensions are NCHW in PyTorch and NHWC in every file written here; `LiteRTRunner`
turns them, so callers stay in PyTorch's order. Whole networks and sub-graphs go the same way:
several inputs, one output. Batch norms are folded by the converter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from nnstretch.capture.exported_program import eval_mode
from nnstretch.capture.host_process import silence_process as silent
from nnstretch.errors import BadInput
from nnstretch.export.litert.culprit import refused_operator
from nnstretch.export.litert.packages import converter_errors, require_packages
from nnstretch.export.litert.tensor_layout import channels_last, name_inputs

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


def to_litert(module: nn.Module, examples: Sequence[torch.Tensor], name: str) -> bytes:
    """Convert to a float32 .tflite that takes inputs of exactly the examples' shapes (maps NHWC).

    Converts evaluation mode and leaves the module's modes as they were. Raises UnsupportedOp with
    the operator for which LiteRT has no form and its module, BadInput where its packages are
    missing.
    """
    require_packages()
    import litert_torch

    def find(named: str | None) -> str:
        return refused_operator(module, examples, litert_torch.convert, named)

    with eval_mode(module), silent(), torch.no_grad(), converter_errors(name, "float32", find):
        maps = [i for i, example in enumerate(examples) if example.dim() == 4]
        outputs = [0] if module(*examples).dim() == 4 else []
        wrapped = litert_torch.to_channel_last_io(module, args=maps, outputs=outputs).eval()
        feeds = tuple(channels_last(example) for example in examples)
        return bytes(litert_torch.convert(wrapped, feeds).model_content())


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
        feeds = tuple(channels_last(example) for example in examples)
        return bytes(litert_torch.convert(Concat(axis_last).eval(), feeds).model_content())


class LiteRTCalibration:
    """A float file whose tensors are watched on calibration inputs, so that it can become int8.

    The range of each tensor is the moving average of what it holds, so the order of inputs counts.
    """

    def __init__(self, model: bytes, name: str) -> None:
        require_packages()
        self.model, self.name = model, name
        self.ranges: Ranges = {}
        self._worker = self._quantizer()

    def _quantizer(self) -> Any:
        from ai_edge_quantizer import quantizer, recipe

        with converter_errors(self.name, "int8"), silent():
            return quantizer.Quantizer(bytearray(self.model), recipe.static_wi8_ai8())

    def watch(self, inputs: Sequence[Sequence[torch.Tensor]]) -> None:
        """Run the file on the inputs of one inference after another, in PyTorch's order.

        Ranges move. Raises BadInput where they are none, of which int8 could be made, though it
        crashes where it runs.
        """
        feeds = {SIGNATURE: [name_inputs(input_) for input_ in inputs]}
        with converter_errors(self.name, "int8"), silent():
            self.ranges = self._worker.calibrate(
                feeds, previous_calibration_result=self.ranges or None, num_threads=1
            )
        ranges = self.ranges.values()
        bounds = [*(ends["min"] for ends in ranges), *(ends["max"] for ends in ranges)]
        if not all(np.isfinite(bound).all() for bound in bounds):
            raise BadInput(
                f"{self.name} computes NaN or infinity, calibration inputs, int8"
                " needs their ranges, mend its weights or statistics"
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
) -> bytes:
    """Convert to a .tflite of int8 weights (a scale per output channel) and int8 activations,
    inputs and outputs (a scale per tensor).

    `calibration` holds the inputs of one inference after another, as the float file of `to_litert`
    takes them but in PyTorch's order; the range of each tensor is the moving average of what it
    holds on them, so their order counts. `progress` is told how many are done. Operators that have
    no int8 form stay float: see `float_operators`. Raises BadInput without calibration inputs,
    UnsupportedOp where the quantizer refuses.
    """
    watched, done, feeds = LiteRTCalibration(model, name), 0, iter(calibration)
    while chunk := list(islice(feeds, CALIBRATION_CHUNK)):
        watched.watch(chunk)
        done += len(chunk)
        if progress is not None:
            progress(done)
    return watched.quantize()


def float_operators(model: bytes) -> tuple[str, ...]:
    """Return the kinds of operator of a file that compute in float, sorted.

    None in a file that is int8 throughout.
    """
    from ai_edge_litert import schema_py_generated as schema

    codes = vars(schema.BuiltinOperator).items()
    names = {number: name for name, number in codes if not name.startswith("_")}
    parsed = schema.Model.GetRootAs(model, 0)
    kinds: set[str] = set()
    for number in range(parsed.SubgraphsLength()):
        graph = parsed.Subgraphs(number)
        for position in range(graph.OperatorsLength()):
            operator = graph.Operators(position)
            types = {graph.Tensors(tensor).Type() for tensor in operator_tensors(operator)}
            if schema.TensorType.FLOAT32 not in types:
                continue
            code = parsed.OperatorCodes(operator.OpcodeIndex())
            if code.CustomCode():
                kinds.add(code.CustomCode().decode())
            else:
                kinds.add(names[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())])
    return tuple(sorted(kinds - set(BORDERS)))


def operator_tensors(operator: Any) -> set[int]:
    """Return the numbers of all tensors that an operator reads or writes."""
    read = {operator.Inputs(position) for position in range(operator.InputsLength())}
    written = {operator.Outputs(position) for position in range(operator.OutputsLength())}
    return (read | written) - {-1}
