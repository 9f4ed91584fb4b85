"""The PyTorch backend: sub-graphs in ONNX form, rebuilt as ordinary layers by the project's own
reader. No pickle is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from nnstretch.bundle.manifest import Subgraph
from nnstretch.bundle.model_files.check import member_label
from nnstretch.bundle.model_files.edges import TensorInfo, check_names, check_read
from nnstretch.errors import BadInput, BrokenFile, CannotCapture, NnstretchError, UnsupportedOp
from nnstretch.run.backends.io_check import check_outputs, first_line, refusal_label

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nnstretch.graph import TensorSpec


class OnnxModule:
    """A sub-graph's module, fed by the names of its ports."""

    def __init__(self, subgraph: Subgraph, model: bytes, bundle: str) -> None:
        """Load a sub-graph's layers. Raises BrokenFile, UnsupportedOp or CannotCapture for the
        file, BadInput where PyTorch or onnx is missing.
        """
        self.where = member_label(subgraph, bundle)
        try:
            from nnstretch.capture.onnx.subgraph import read_subgraph
        except ImportError as error:
            raise BadInput(
                f"PyTorch or onnx is not installed ({error}), backend torch, pip install"
                " 'nnstretch[capture]'"
            ) from error
        try:
            program = read_subgraph(model, subgraph.file)
        except Exception as error:
            # Broad on purpose: a file that anybody may have written fails in protobuf, in onnx or
            # in PyTorch's shape functions.
            kind: type[NnstretchError] = BrokenFile
            where = self.where
            if isinstance(error, (UnsupportedOp, CannotCapture)):
                kind, where = type(error), refusal_label(subgraph, bundle, "torch")
            raise kind(f"{where}, PyTorch cannot load it ({failure_reason(error)})") from error
        check_read(self.where, subgraph.inputs, _tensor_info(program.inputs))
        check_names(self.where, "writes", subgraph.outputs, _tensor_info(program.outputs))
        self.module: nn.Module = program.module
        self._reads, self._writes = list(program.inputs), list(program.outputs)
        self._ports = subgraph.output_names

    def __call__(self, values: Mapping[str, Tensor]) -> list[Tensor]:
        """Return outputs in the order of the sub-graph's ports, contiguous."""
        outputs = self.module(*(values[name] for name in self._reads))
        by_name = dict(
            zip(
                self._writes,
                outputs if isinstance(outputs, (tuple, list)) else (outputs,),
                strict=True,
            )
        )
        return [by_name[name].contiguous() for name in self._ports]


class TorchBackend:
    """Computes one sub-graph on the calling thread, in float32; several may call at once."""

    def __init__(self, subgraph: Subgraph, model: bytes, bundle: str, threads: int = 1) -> None:
        self._layers, self._ports, self._threads = (
            OnnxModule(subgraph, model, bundle),
            subgraph.outputs,
            threads,
        )

    def run(self, inputs: Mapping[str, np.ndarray], /) -> Sequence[np.ndarray]:
        """Run the sub-graph; see `Backend`. Raises BrokenFile when PyTorch refuses."""
        import torch

        try:
            with torch.inference_mode(), intra_op_threads(self._threads):
                tensors = self._layers(
                    {name: torch.from_numpy(array) for name, array in inputs.items()}
                )
        except Exception as error:
            raise BrokenFile(
                f"{self._layers.where}, PyTorch cannot run it ({first_line(error)})"
            ) from error
        outputs = [apart_from(inputs, tensor.numpy()) for tensor in tensors]
        check_outputs(self._layers.where, self._ports, outputs)
        return outputs


def apart_from(inputs: Mapping[str, np.ndarray], output: np.ndarray) -> np.ndarray:
    """Return an output in memory of its own: a reshape's is that of its input, the caller's."""
    shared = any(np.may_share_memory(output, array) for array in inputs.values())
    return output.copy() if shared else output


@contextmanager
def intra_op_threads(threads: int) -> Iterator[None]:
    """Set how many threads an operator takes; PyTorch keeps that with the calling thread.

    Afterwards it is what it was. In a fork an operator takes one.
    """
    import torch

    from nnstretch.capture.host_process import operator_threads

    before, threads = torch.get_num_threads(), operator_threads(threads)
    if before == threads:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def failure_reason(error: Exception) -> str:
    """Return an error as one line."""
    return str(error)[:300] if isinstance(error, NnstretchError) else first_line(error)


def _tensor_info(specs: Mapping[str, TensorSpec]) -> dict[str, TensorInfo]:
    return {name: TensorInfo(spec.shape, spec.dtype) for name, spec in specs.items()}
