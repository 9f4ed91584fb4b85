"""The ONNX Runtime backend: one session per sub-graph, one thread, the numbers everything else is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime  # type: ignore[import-untyped]

from nnstretch.bundle import Port, Subgraph
from nnstretch.errors import BrokenFile

TYPES = {"float": "float32", "double": "float64", "float16": "float16", "bfloat16": "bfloat16"}
"""ONNX Runtime's element types where they are not numpy's names."""
FATAL = 4
"""Only fatal messages: everything else arrives as an exception and is told in one line."""


class OnnxRuntime:
    """Computes one sub-graph on the calling thread."""

    def __init__(self, subgraph: Subgraph, model: bytes, bundle: str) -> None:
        self._where = f"broken bundle {bundle}, member {subgraph.file}"
        self._subgraph = subgraph
        try:
            self._session = onnxruntime.InferenceSession(model, _options(), providers=["CPUExecutionProvider"])
        except Exception as error:
            raise BrokenFile(f"{self._where}, ONNX Runtime cannot load it ({_first_line(error)})") from error
        self._check(subgraph.inputs, self._session.get_inputs(), "reads")
        self._check(subgraph.outputs, self._session.get_outputs(), "writes")
        self._names = [port.name for port in subgraph.outputs]

    def run(self, inputs: Mapping[str, np.ndarray], /) -> Sequence[np.ndarray]:
        try:
            outputs: Sequence[np.ndarray] = self._session.run(self._names, dict(inputs))
        except Exception as error:
            raise BrokenFile(f"{self._where}, ONNX Runtime cannot run it ({_first_line(error)})") from error
        for port, output in zip(self._subgraph.outputs, outputs, strict=True):
            if (output.shape, str(output.dtype)) != (port.spec.shape, port.spec.dtype):
                raise BrokenFile(f"{self._where}, {port.name} came out as {output.shape} {output.dtype}, the manifest says {port.spec}")
        return outputs

    def _check(self, ports: tuple[Port, ...], found: Sequence[onnxruntime.NodeArg], verb: str) -> None:
        """The file's tensors are the manifest's; a symbolic dimension fits any number."""
        types = {arg.name: arg for arg in found}
        if types.keys() != {port.name for port in ports}:
            raise BrokenFile(f"{self._where}, it {verb} {sorted(types)}, the manifest says {sorted(port.name for port in ports)}")
        for port in ports:
            shape, element = types[port.name].shape, types[port.name].type.removeprefix("tensor(").removesuffix(")")
            fits = len(shape) == len(port.spec.shape) and all(
                not isinstance(there, int) or there == here for there, here in zip(shape, port.spec.shape, strict=True)
            )
            dtype = TYPES.get(element, element)
            if not fits or dtype != port.spec.dtype:
                promised = f"{port.spec} {port.spec.dtype}"
                raise BrokenFile(f"{self._where}, it {verb} {port.name} as {shape} {dtype}, the manifest says {promised}")


def _options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = FATAL
    return options


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", maxsplit=1)[0][:200]
