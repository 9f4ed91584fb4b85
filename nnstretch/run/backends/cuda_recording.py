"""Sub-graphs recorded together as one CUDA graph, branches on streams of their own.

Every processor of the plan is a stream. A sub-graph waits, by an event, for what it reads from
other streams; side streams fork from the first one and all join it at the end, as a recording
needs. Inputs and outputs have one place on the card for good; a request copies its inputs there,
replays, and copies the outputs back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from nnstretch.bundle.manifest import Port, Subgraph
from nnstretch.run.backends.torch_cpu import OnnxModule
from nnstretch.schedule import subgraph_tasks
from nnstretch.schedule.executors.static_order import start_order
from nnstretch.soc import Processor
from nnstretch.task import Task

Result = TypeVar("Result")
WARM_UPS = 3
"""Runs before the recording, in which libraries choose kernels and workspaces."""
RECORDING = Lock()
"""One recording at a time, warm-ups included: stages of a pipeline load at once, and CUDA refuses
to wait for a whole device, as every recording does when it begins, while another is under way.
"""
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


def recorded_steps(order: Sequence[tuple[str, Task]]) -> tuple[RecordedStep, ...]:
    """Return the steps of a `start_order`; only what another stream computes needs an event."""
    steps: list[RecordedStep] = []
    recorded: dict[str, RecordedStep] = {}
    for stream, task in order:
        needed = [recorded[need] for need in sorted(task.needs)]
        waits = tuple(step.subgraph for step in needed if step.stream != stream)
        if steps and not waits and all(step.stream != stream for step in steps):
            waits = (START,)
        steps.append(RecordedStep(task.subgraph, stream, waits))
        recorded[task.name] = steps[-1]
    return tuple(steps)


def order_on_streams(subgraphs: Sequence[Subgraph]) -> tuple[tuple[str, Task], ...]:
    """Return the start order of sub-graphs, where every processor of theirs is a stream."""
    names = dict.fromkeys(sub.processor for sub in subgraphs)
    streams = tuple(Processor(name, "stream", 1) for name in names)
    return start_order(subgraph_tasks(subgraphs), streams)


def record(compute: Callable[[], Result], main: Any, cuda: Any) -> tuple[Any, Result]:
    """Record what a call launches as a CUDA graph; return it and what the call returned.

    Work on other streams has to fork from `main` and to join it. What the call returned should stay
    referenced: memory that one stream let go could be another's while it is still read.
    """
    import torch

    graph = cuda.CUDAGraph()
    # TF32 would leave three digits; recorded kernels stay what they were chosen as.
    exact = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
    with RECORDING, exact:
        main.wait_stream(cuda.current_stream())
        with cuda.stream(main):
            for _ in range(WARM_UPS):
                compute()
        main.synchronize()
        # other threads may copy meanwhile
        with cuda.graph(graph, stream=main, capture_error_mode="thread_local"):
            return graph, compute()


class CudaGraphRecording:
    """A recorded request, for one at a time; `cuda` is `torch.cuda` or a test's substitute."""

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

        self._layers, self._cuda, self._device = layers, cuda, device
        self._writes = {sub.name: sub.output_names for sub in subgraphs}
        self._steps, self.lock = recorded_steps(order_on_streams(subgraphs)), Lock()
        for layer in layers.values():
            layer.module.to(device)
        self._inputs = {}
        for port in inputs:
            dtype = getattr(torch, port.spec.dtype)
            self._inputs[port.name] = torch.zeros(port.spec.shape, dtype=dtype, device=device)
        streams = dict.fromkeys(step.stream for step in self._steps)
        self._streams = {name: cuda.Stream(device=device) for name in streams}
        main = self._streams[self._steps[0].stream]
        with torch.inference_mode(), cuda.device(device):
            self._graph, self._values = record(lambda: self._play(main), main, cuda)
        self._outputs = [self._values[port.name] for port in outputs]

    def _play(self, main: Any) -> dict[str, Any]:
        values, done = dict(self._inputs), {START: self._cuda.Event()}
        done[START].record(main)
        for step in self._steps:
            stream = self._streams[step.stream]
            for wait in step.waits:
                stream.wait_event(done[wait])
            with self._cuda.stream(stream):
                outputs = self._layers[step.subgraph](values)
            values.update(zip(self._writes[step.subgraph], outputs, strict=True))
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
    """Copies to a card, replays and copies from it on three streams: three items overlap.

    Each call waits for its stream; every item has memory of its own on the card.
    """

    def __init__(
        self,
        recording: CudaGraphRecording,
        outputs: Sequence[Any],
        inputs: Mapping[str, Any],
        device: str,
        cuda: Any,
    ) -> None:
        self._recording, self._inputs, self._outputs = recording, inputs, outputs
        self._cuda, self._device = cuda, device
        self._into, self._main, self._out = (cuda.Stream(device=device) for _ in range(3))
        self._pins = device != "cpu"
        """Copies run beside kernels from and to pinned memory only; a test's CPU has none."""

    def copied_in(self, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Copy inputs to the device on a stream of their own."""
        import torch

        with self._on(self._into):
            copied = {}
            for name in self._inputs:
                host = torch.from_numpy(inputs[name])
                host = host.pin_memory() if self._pins else host
                copied[name] = host.to(self._device, non_blocking=True, copy=True)
            return copied

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
            host = []
            for tensor in tensors:
                array = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pins)
                array.copy_(tensor, non_blocking=True)
                host.append(array)
        return [array.numpy() for array in host]

    @contextmanager
    def _on(self, stream: Any) -> Iterator[None]:
        import torch

        with torch.inference_mode(), self._cuda.device(self._device), self._cuda.stream(stream):
            yield
            stream.synchronize()
