"""PyTorch on a CUDA card: one sub-graph, or a whole bundle, as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Subgraph
from nnstretch.bundle.model_files.check import member_label
from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.run.backends.cuda_recording import CudaGraphRecording
from nnstretch.run.backends.io_check import check_outputs, first_line
from nnstretch.run.backends.torch_cpu import OnnxModule
from nnstretch.run.tensor_io import from_ports, to_ports

Result = TypeVar("Result")


class TorchCuda:
    """One sub-graph as a CUDA graph, for bundles of which only a part runs on the card."""

    def __init__(
        self, subgraph: Subgraph, model: bytes, bundle: str, device: str = "cuda", cuda: Any = None
    ) -> None:
        cuda = require_cuda(device) if cuda is None else cuda
        self._where, self._ports = member_label(subgraph, bundle), subgraph.outputs
        layers = OnnxModule(subgraph, model, bundle)
        try:
            modules = {subgraph.name: layers}
            reads, writes = subgraph.inputs, subgraph.outputs
            self._recording = CudaGraphRecording(modules, (subgraph,), reads, writes, device, cuda)
            self._threads = self._recording.copy_streams()
        except Exception as error:
            raise BrokenFile(
                f"{self._where}, CUDA cannot record it ({first_line(error)})"
            ) from error

    def run(self, inputs: Mapping[str, np.ndarray], /) -> Sequence[np.ndarray]:
        """Run on the device and return the outputs."""
        outputs = self._with_cuda_errors(lambda: self._recording.run(inputs))
        check_outputs(self._where, self._ports, outputs)
        return outputs

    def upload(self, inputs: Mapping[str, np.ndarray], /) -> object:
        """Copy inputs to the device; see `DeviceBackend`."""
        return self._with_cuda_errors(lambda: self._threads.copied_in(inputs))

    def execute(self, tensors: Any, /) -> object:
        """Compute on the device; see `DeviceBackend`."""
        return self._with_cuda_errors(lambda: self._threads.computed(tensors))

    def download(self, tensors: Any, /) -> Sequence[np.ndarray]:
        """Copy outputs to the host; see `DeviceBackend`."""
        outputs = self._with_cuda_errors(lambda: self._threads.copied_out(tensors))
        check_outputs(self._where, self._ports, outputs)
        return outputs

    def _with_cuda_errors(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except Exception as error:
            raise BrokenFile(f"{self._where}, CUDA cannot run it ({first_line(error)})") from error


class CudaGraphSession:
    """A whole bundle as one CUDA graph, with inputs and outputs as `Session` has them."""

    def __init__(self, bundle: Bundle, device: str = "cuda", cuda: Any = None) -> None:
        """Record a CUDA graph. Raises BadInput where CUDA is missing or a sub-graph is not ONNX,
        and what `OnnxModule` raises.
        """
        self._cuda = require_cuda(device) if cuda is None else cuda
        self.manifest = bundle.manifest
        for sub in bundle.manifest.subgraphs:
            if sub.format != "onnx":
                raise BadInput(
                    f"backend torch:{device}, sub-graph {sub.name} of {bundle.name}, it reads onnx"
                    f" and the file is {sub.format}"
                )
        subs = bundle.manifest.subgraphs
        layers = {sub.name: OnnxModule(sub, bundle.files[sub.file], bundle.name) for sub in subs}
        try:
            self.recording = CudaGraphRecording(
                layers, subs, bundle.manifest.inputs, bundle.manifest.outputs, device, self._cuda
            )
        except Exception as error:
            raise BrokenFile(
                f"broken bundle {bundle.name}, CUDA cannot record it ({first_line(error)})"
            ) from error

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run one request: arrays by name in, arrays by name out, in PyTorch's order."""
        ports = self.manifest.outputs
        outputs = self.recording.run(to_ports(self.manifest.inputs, inputs))
        check_outputs("request", ports, outputs)
        named = {port.name: array for port, array in zip(ports, outputs, strict=True)}
        return from_ports(ports, named)


def require_cuda(device: str) -> Any:
    """Return `torch.cuda`, where it has that device. Raises BadInput or UnknownName."""
    try:
        import torch
    except ImportError as error:
        raise BadInput(
            f"PyTorch is not installed ({error}), backend torch:{device}, pip install"
            " 'nnstretch[capture]'"
        ) from error
    if not torch.cuda.is_available():
        raise BadInput(
            f"no CUDA device, backend torch:{device}, PyTorch {torch.__version__} finds none on"
            " this machine"
        )
    if int(device.partition(":")[2] or 0) >= (count := torch.cuda.device_count()):
        raise UnknownName(
            f"unknown device {device!r}, backend torch, PyTorch finds {count} CUDA"
            f" device{'s' * (count > 1)}"
        )
    return torch.cuda
