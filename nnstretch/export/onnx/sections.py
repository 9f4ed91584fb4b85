"""Pieces of a network with any number of inputs and outputs -> ONNX files, each checked against its
module, and all in a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from torch import nn

from nnstretch.bundle.manifest import Port
from nnstretch.capture.silence import silence_python
from nnstretch.errors import UnsupportedOp
from nnstretch.export.onnx.convert import OPSET, check_close, spec_of, with_metadata
from nnstretch.export.onnx.rename_io import rename_io
from nnstretch.graph import TensorSpec

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class SectionFile:
    """One exported piece."""

    data: bytes
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    max_abs_error: float
    """From its module, on what the module before it wrote."""
    parameters: tuple[tuple[str, TensorSpec], ...]
    """Weights of the network that are still there under their own names.

    What was folded into others is not.
    """


def section_file(
    name: str,
    module: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    outputs: Sequence[str],
    notes: Mapping[str, str],
) -> SectionFile:
    """Export an ONNX file that reads `given` and writes `outputs` under these names.

    Raises UnsupportedOp, Mismatch.
    """
    with torch.no_grad():
        results = module.eval()(*inputs.values())
    written = dict(zip(outputs, results if isinstance(results, tuple) else (results,), strict=True))
    model = rename_io(
        export_module(name, module, tuple(inputs.values())), tuple(inputs), tuple(outputs)
    )
    data = with_metadata(model, notes)
    computed = SectionRunner(data).run({key: value.numpy() for key, value in inputs.items()})
    error = max(
        check_close(written[key].numpy(), computed[key], f"sub-graph {name}, {key},")
        for key in outputs
    )
    tensors = {
        key.name: TensorSpec(tuple(key.dims), "float32")
        for key in model.graph.initializer
        if key.data_type == onnx.TensorProto.FLOAT
    }
    named = {path for path, _ in module.named_parameters()}
    parameters = tuple((path, spec) for path, spec in tensors.items() if path in named)
    return SectionFile(data, ports_of(inputs), ports_of(written), error, parameters)


def ports_of(values: Mapping[str, torch.Tensor]) -> tuple[Port, ...]:
    """Return a port for each tensor."""
    return tuple(
        Port(name, spec_of(value), "NCHW" if value.dim() == 4 else "")
        for name, value in values.items()
    )


def export_module(
    name: str, module: nn.Module, inputs: tuple[torch.Tensor, ...]
) -> onnx.ModelProto:
    """Export by PyTorch's exporter, quiet. Raises UnsupportedOp with its first reason."""
    try:
        with silence_python(), torch.no_grad():
            program = torch.onnx.export(
                module,
                inputs,
                dynamo=True,
                external_data=False,
                opset_version=OPSET,
                optimize=True,
                verbose=False,
            )
    except Exception as error:
        reason = next(
            (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        raise UnsupportedOp(
            f"cannot export {name} to ONNX, {type(error).__name__}, {reason[:200]}"
        ) from error
    assert program is not None
    return program.model_proto


class SectionRunner:
    """An ONNX file on one core, by names."""

    def __init__(self, data: bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(
            data, options, providers=["CPUExecutionProvider"]
        )

    def run(self, inputs: Arrays) -> Arrays:
        """Run one inference."""
        names = [get_output.name for get_output in self._session.get_outputs()]
        return dict(zip(names, map(np.asarray, self._session.run(names, inputs)), strict=True))


def run_in_sequence(files: Sequence[SectionFile], inputs: Arrays) -> Arrays:
    """Run files in order, each reading what those before it wrote; return everything they write."""
    values = dict(inputs)
    for file in files:
        values |= SectionRunner(file.data).run(
            {port.name: values[port.name] for port in file.inputs}
        )
    return values
