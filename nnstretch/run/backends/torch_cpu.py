"""The PyTorch backend: sub-graphs in ONNX form, rebuilt as ordinary layers by the project's own
reader. No pickle is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from nnstretch.bundle.manifest import Subgraph
from nnstretch.bundle.model_files.check import member_label
from nnstretch.bundle.model_files.edges import TensorInfo, check_names, check_read
from nnstretch.errors import (
    BadInput,
    BrokenFile,
    CannotCapture,
    NnstretchError,
    UnsupportedOp,
    one_line,
)
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
        reads, writes = _tensor_info(program.inputs), _tensor_info(program.outputs)
        _check_computed_types(
            refusal_label(subgraph, bundle, "torch"), subgraph, {**reads, **writes}
        )
        check_read(self.where, subgraph.inputs, reads)
        check_names(self.where, "writes", subgraph.outputs, writes)
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
        self._layers = OnnxModule(subgraph, model, bundle)
        self._ports, self._threads = subgraph.outputs, threads

    def run(self, inputs: Mapping[str, np.ndarray], /) -> Sequence[np.ndarray]:
        """Run the sub-graph; see `Backend`. Raises BrokenFile when PyTorch refuses."""
        import torch

        try:
            input_tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
            with torch.inference_mode(), intra_op_threads(self._threads):
                tensors = self._layers(input_tensors)
        except Exception as error:
            raise BrokenFile(
                f"{self._layers.where}, PyTorch cannot run it ({first_line(error)})"
            ) from error
        outputs = apart(tensors, input_tensors.values())
        check_outputs(self._layers.where, self._ports, outputs)
        return outputs


def apart(tensors: Sequence[Tensor], input_tensors: Iterable[Tensor]) -> list[np.ndarray]:
    """Return outputs, each in memory of its own: a reshape's is that of what it reads, such as the
    caller's input or another output.
    """
    taken, outputs = set(map(memory_of, input_tensors)), list[np.ndarray]()
    for tensor in tensors:
        memory, array = memory_of(tensor), tensor.numpy()
        outputs.append(array.copy() if memory in taken else array)
        taken.add(memory)
    return outputs


def memory_of(tensor: Tensor) -> int:
    """Return where the memory begins that a tensor and its views share."""
    return tensor.untyped_storage().data_ptr()


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


def _check_computed_types(
    where: str, subgraph: Subgraph, computed: Mapping[str, TensorInfo]
) -> None:
    """Raise UnsupportedOp for a port of other floating numbers than those it is computed in."""
    for port in (*subgraph.inputs, *subgraph.outputs):
        tensor, kind = computed.get(port.name), port.spec.dtype
        if port.spec.is_floating and tensor is not None and tensor.dtype == "float32" != kind:
            name = one_line(port.name[:80])
            raise UnsupportedOp(f"{where}, it computes in float32, {name} is {kind}")


def _tensor_info(specs: Mapping[str, TensorSpec]) -> dict[str, TensorInfo]:
    return {name: TensorInfo(spec.shape, spec.dtype) for name, spec in specs.items()}
