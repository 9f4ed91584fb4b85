"""PyTorch on a CUDA card.

Branches on streams of their own, a whole request recorded once as one CUDA graph and replayed.

Every processor of the plan is a stream. A sub-graph waits, by an event, for what others write on
other streams; side streams fork from the first one and all join it at the end, as a recording
needs. Inputs and outputs have one place on the card for good; a request copies its inputs there,
replays, and copies the outputs back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Port, Subgraph
from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.run.backends.io_check import check_outputs, first_line, member_label
from nnstretch.run.backends.torch_cpu import OnnxModule
from nnstretch.run.tensor_io import from_port, to_port

Made = TypeVar("Made")

WARM_UPS = 3
"""Runs before the recording, in which libraries make their choices and workspaces."""
RECORDING = Lock()
"""One recording at a time: stages of a pipeline load at once."""
START = ""
"""Stands for the beginning of a request among what a sub-graph waits for."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One sub-graph on its stream."""

    subgraph: str
    stream: str
    """The processor's name; the first step's stream is the one that others fork from and join."""
    waits: tuple[str, ...] = ()
    """Sub-graphs on other streams that have to be done before, or START for a stream's first work.
    """


def recorded_steps(subgraphs: Iterable[Subgraph]) -> tuple[RecordedStep, ...]:
    """Return the steps in the order in which they are recorded.

    What runs on the same stream needs no event: it is in order.
    """
    steps: list[RecordedStep] = []
    streams: dict[str, str] = {}
    writers: dict[str, str] = {}
    for sub in subgraphs:
        needs = dict.fromkeys(writers[port.name] for port in sub.inputs if port.name in writers)
        waits = tuple(need for need in needs if streams[need] != sub.processor)
        if steps and not waits and sub.processor not in streams.values():
            waits = (START,)
        steps.append(RecordedStep(sub.name, sub.processor, waits))
        streams[sub.name] = sub.processor
        writers |= {port.name: sub.name for port in sub.outputs}
    return tuple(steps)


class CudaGraphRecording:
    """Sub-graphs recorded together; `cuda` is `torch.cuda`, or what a test puts in its place.

    One request at a time.
    """

    def __init__(
        self,
        layers: Mapping[str, OnnxModule],
        subgraphs: Sequence[Subgraph],
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        device: str,
        cuda: Any,
    ) -> None:
        import torch

        self._layers, self._subgraphs, self._cuda, self._device = (
            layers,
            {sub.name: sub for sub in subgraphs},
            cuda,
            device,
        )
        self._steps, self.lock = recorded_steps(subgraphs), Lock()
        for layer in layers.values():
            layer.module.to(device)
        self._inputs = {
            port.name: torch.zeros(
                port.spec.shape, dtype=getattr(torch, port.spec.dtype), device=device
            )
            for port in inputs
        }
        self._streams = {
            name: cuda.Stream(device=device)
            for name in dict.fromkeys(step.stream for step in self._steps)
        }
        self._graph = cuda.CUDAGraph()
        # TF32 would leave three digits; recorded kernels stay what they were chosen as.
        with (
            torch.inference_mode(),
            cuda.device(device),
            torch.backends.cudnn.flags(enabled=True, allow_tf32=False),
        ):
            self._values = self._record(self._steps[0].stream)
        self._outputs = [self._values[port.name] for port in outputs]

    def _record(self, first: str) -> dict[str, Any]:
        """Record the request; everything that was computed stays.

        Memory that one stream let go could be another's while it is still read.
        """
        main = self._streams[first]
        main.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(main):
            for _ in range(WARM_UPS):
                self._play(main)
        self._cuda.synchronize()
        with (
            RECORDING,
            self._cuda.graph(self._graph, stream=main, capture_error_mode="thread_local"),
        ):  # other threads may copy meanwhile
            return self._play(main)

    def _play(self, main: Any) -> dict[str, Any]:
        values, done = dict(self._inputs), {START: self._cuda.Event()}
        done[START].record(main)
        for step in self._steps:
            stream = self._streams[step.stream]
            for wait in step.waits:
                stream.wait_event(done[wait])
            with self._cuda.stream(stream):
                outputs = self._layers[step.subgraph](values)
            values.update(
                zip(
                    (port.name for port in self._subgraphs[step.subgraph].outputs),
                    outputs,
                    strict=True,
                )
            )
            done[step.subgraph] = self._cuda.Event()
            done[step.subgraph].record(stream)
        last = {step.stream: step.subgraph for step in self._steps}
        for name, subgraph in last.items():
            if self._streams[name] is not main:
                main.wait_event(done[subgraph])
        return values

    def copy_streams(self) -> CopyStreams:
        """Return the request in three parts, for a stream of them."""
        return CopyStreams(self, self._outputs, self._inputs, self._device, self._cuda)

    def replay(self) -> None:
        """Run once more on what the inputs hold; returns before the card is done."""
        self._graph.replay()

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run on the device and return the outputs."""
        import torch

        with self.lock, torch.inference_mode(), self._cuda.device(self._device):
            for name, tensor in self._inputs.items():
                tensor.copy_(torch.from_numpy(inputs[name]))
            self.replay()
            return [output.to("cpu", copy=True).numpy() for output in self._outputs]


class CopyStreams:
    """Copies to a card, replays and copies from it, each on a stream of its own, so that three
    threads overlap with three items.

    Each waits for its stream before it returns, so the next finds everything there; inputs and
    outputs on the card are each item's own.
    """

    def __init__(
        self,
        recording: CudaGraphRecording,
        outputs: Sequence[Any],
        inputs: Mapping[str, Any],
        device: str,
        cuda: Any,
    ) -> None:
        self._recording, self._inputs, self._outputs, self._cuda, self._device = (
            recording,
            inputs,
            outputs,
            cuda,
            device,
        )
        self._into, self._main, self._out = (cuda.Stream(device=device) for _ in range(3))
        self._pins = (
            device != "cpu"
        )  # copies run beside kernels from and to pinned memory only; a stand-in has none

    def copied_in(self, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Copy inputs to the device on a stream of their own."""
        import torch

        with self._on(self._into):
            host = {name: torch.from_numpy(inputs[name]) for name in self._inputs}
            host = {name: one.pin_memory() for name, one in host.items()} if self._pins else host
            return {
                name: one.to(self._device, non_blocking=True, copy=True)
                for name, one in host.items()
            }

    def computed(self, tensors: Mapping[str, Any]) -> list[Any]:
        """Compute on the device what was copied in."""
        with self._recording.lock, self._on(self._main):
            for name, tensor in self._inputs.items():
                tensor.copy_(tensors[name])
            self._recording.replay()
            return [output.clone() for output in self._outputs]

    def copied_out(self, tensors: Sequence[Any]) -> list[np.ndarray]:
        """Copy outputs to the host on a stream of their own."""
        import torch

        with self._on(self._out):
            host = [
                torch.empty(array.shape, dtype=array.dtype, pin_memory=self._pins)
                for array in tensors
            ]
            for array, tensor in zip(host, tensors, strict=True):
                array.copy_(tensor, non_blocking=True)
        return [array.numpy() for array in host]

    @contextmanager
    def _on(self, stream: Any) -> Iterator[None]:
        import torch

        with torch.inference_mode(), self._cuda.device(self._device), self._cuda.stream(stream):
            yield
            stream.synchronize()


class TorchCuda:
    """One sub-graph as a CUDA graph of its own.

    For bundles of which only a part runs on the card.
    """

    def __init__(
        self, subgraph: Subgraph, model: bytes, bundle: str, device: str = "cuda", cuda: Any = None
    ) -> None:
        cuda = require_cuda(device) if cuda is None else cuda
        self._where, self._ports = member_label(subgraph, bundle), subgraph.outputs
        layers = OnnxModule(subgraph, model, bundle)
        try:
            self._recording = CudaGraphRecording(
                {subgraph.name: layers},
                (subgraph,),
                subgraph.inputs,
                subgraph.outputs,
                device,
                cuda,
            )
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

    def _with_cuda_errors(self, part: Callable[[], Made]) -> Made:
        try:
            return part()
        except Exception as error:
            raise BrokenFile(f"{self._where}, CUDA cannot run it ({first_line(error)})") from error


class CudaGraphSession:
    """A whole bundle as one CUDA graph.

    Branches on streams of their own, inputs and outputs as `Session` has them.
    """

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
        outputs = self.recording.run(
            {port.name: to_port(port, inputs[port.name]) for port in self.manifest.inputs}
        )
        check_outputs("request", self.manifest.outputs, outputs)
        return {
            port.name: from_port(port, array)
            for port, array in zip(self.manifest.outputs, outputs, strict=True)
        }


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
