"""The OpenVINO meter: lone kernels and whole networks, float32, with copies between layouts told
apart by the runtime's records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino
from openvino import Layout
from openvino.preprocess import PrePostProcessor

from nnstretch.errors import BadInput, UnsupportedOp
from nnstretch.kernel import ChannelBlockedLayout, FusionRules, Kernel
from nnstretch.profile.interleaved_timing import LEAST_US, WARM_UP, time_interleaved, wall_us
from nnstretch.profile.kernel_models.kernel_shapes import changed_axis, input_shapes
from nnstretch.profile.kernel_models.onnx_builder import OnnxModelBuilder
from nnstretch.profile.kernel_models.onnx_chains import build_chain
from nnstretch.profile.sampling.kernel_spec import CONVOLUTIONS

if TYPE_CHECKING:
    import torch
    from torch import nn

COPIES = frozenset({"Reorder", "Convert"})
CALLS = 200
CARRIER = "GroupConvolution"
SPLITS = frozenset({"chunk", "split", "split_with_sizes"})
ALIGNED = 16
"""Elements between which tensors start: 64 bytes."""
MAPS = frozenset({*CONVOLUTIONS, "pool", "gap", "add", "mul", "concat"})
"""Kinds that OpenVINO runs on maps whose channels lie last, so that lone ones are fed such maps."""


class OpenVINOMeter:
    """Float32 kernels, on one thread where the device is the CPU."""

    name = "openvino"
    dtype = "float32"

    def __init__(self, device: str = "CPU") -> None:
        """Open a device. Raises BadInput where OpenVINO finds no such device."""
        self.core, self.device = openvino.Core(), device
        devices = self.core.available_devices
        if device not in devices:
            raise BadInput(
                f"no device {device!r}, OpenVINO {openvino.__version__}, it finds"
                f" {', '.join(devices) or 'none'}"
            )
        self.version = f"openvino {openvino.__version__.split('-')[0]}"

    @property
    def rules(self) -> FusionRules | None:
        """Return None: fusion must be probed."""
        return None

    @cached_property
    def call_us(self) -> float:
        """Return the time of one inference of next to nothing, us."""
        model = OnnxModelBuilder()
        model.write(model.add("Softmax", model.read((1, 4)), axis=-1))
        tiny = LoadedOpenVINOModel(
            self.compile_model(self.core.read_model(model.bytes()), records=False), COPIES
        )
        share_memory([tiny])
        return float(np.median([wall_us(tiny.infer) for _ in range(CALLS)]))

    def blocked(self) -> ChannelBlockedLayout | None:
        """Return None: OpenVINO chooses layouts itself."""
        return None

    def launches(self, chain: tuple[Kernel, ...], /) -> int | None:
        """Return how many kernels were launched."""
        model = self.load_chain(chain)
        if model is None:
            return None
        share_memory([model])
        model.infer()
        return len(model.launched())

    def measure(
        self, chains: Sequence[tuple[Kernel, ...]], rounds: int, /
    ) -> list[tuple[float, ...]]:
        """Time every chain in every round, us; see `Meter`.

        What is counted is the mean of the runtime's records, spread over the rounds as the
        inferences themselves were: neither the call around a launch nor a copy between layouts that
        a lone chain is wrapped in and a network is not.
        """
        loaded = [self.load_chain(chain) for chain in chains]
        share_memory([model for model in loaded if model])
        times = time_interleaved(
            [model.infer if model else None for model in loaded],
            [model.feed if model else do_nothing for model in loaded],
            rounds,
        )
        return [
            model.own_us(walls) if model else () for model, walls in zip(loaded, times, strict=True)
        ]

    def load_chain(self, chain: tuple[Kernel, ...]) -> LoadedOpenVINOModel | None:
        """Load a chain, None where it has no ONNX form, or OpenVINO refuses it."""
        copies = (
            COPIES if any(kernel.kind == "reshape" for kernel in chain) else COPIES | {"Transpose"}
        )
        try:
            if wants_carrier(chain):
                return self.load(
                    build_chain(chain, carried=True), True, COPIES | {"Transpose", CARRIER}
                )
            return self.load(
                build_chain(chain), all(kernel.kind in MAPS for kernel in chain), copies
            )
        except (UnsupportedOp, RuntimeError, ValueError):
            return None

    def load(
        self, model: bytes, channels_last: bool, copies: frozenset[str]
    ) -> LoadedOpenVINOModel:
        """Compile a model and bind its memory."""
        read = self.core.read_model(model)
        return LoadedOpenVINOModel(
            self.compile_model(fed_channels_last(read) if channels_last else read, records=True),
            copies,
        )

    def compile_model(self, model: openvino.Model, records: bool) -> openvino.CompiledModel:
        """Compile a model for the device on one stream."""
        settings: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "PERF_COUNT": records,
        }
        if self.device == "CPU":
            settings |= {"INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False}
        return self.core.compile_model(model, self.device, settings)

    def network(self, module: nn.Module, example: torch.Tensor, /) -> Callable[[], None]:
        """Return one inference of the exported module, on one input that stays the same.

        Raises UnsupportedOp with the reason.
        """
        from nnstretch.profile.backends.onnx_network import to_onnx

        model = to_onnx(module, example)
        try:
            loaded = LoadedOpenVINOModel(
                self.compile_model(self.core.read_model(model), records=False), COPIES
            )
        except RuntimeError as error:
            reason = " ".join(str(error).split())[-200:]
            raise UnsupportedOp(
                f"cannot compile {type(module).__name__} for OpenVINO, device {self.device},"
                f" {reason}"
            ) from error
        share_memory((loaded,))
        loaded.feed()
        return loaded.infer


class LoadedOpenVINOModel:
    """A compiled model, and views of the memory that it reads and writes."""

    def __init__(self, compiled: openvino.CompiledModel, copies: frozenset[str]) -> None:
        self.request, self.copies = compiled.create_infer_request(), copies
        self.reads = [tuple(port.shape) for port in compiled.inputs]
        self.writes = [tuple(port.shape) for port in compiled.outputs]
        self.fed: list[np.ndarray] = []
        self.data: list[np.ndarray] = []
        self.outputs: list[np.ndarray] = []
        self.runs = 0
        self.warm_us = 0.0

    @property
    def elements(self) -> int:
        """Return the elements that all inputs and outputs need."""
        return sum(allocate_tensor(shape) for shape in self.reads + self.writes)

    def borrow(self, memory: np.ndarray, noise: np.ndarray) -> None:
        """Bind inputs and outputs to shared memory."""
        self.data = tensor_views(noise, self.reads)
        views = tensor_views(memory, self.reads + self.writes)
        self.fed, self.outputs = views[: len(self.reads)], views[len(self.reads) :]
        for index, data in enumerate(self.fed):
            self.request.set_input_tensor(index, openvino.Tensor(data, shared_memory=True))
        for index, data in enumerate(self.outputs):
            self.request.set_output_tensor(index, openvino.Tensor(data, shared_memory=True))

    def feed(self) -> None:
        """Write inputs and touch outputs, as a network would have just before."""
        for data in self.outputs:
            data.fill(0)
        for fed, data in zip(self.fed, self.data, strict=True):
            np.copyto(fed, data)

        if self.runs == WARM_UP:
            self.warm_us = self.recorded_us()

    def infer(self) -> None:
        """Run the model once."""
        self.runs += 1
        self.request.infer(share_outputs=True)

    def recorded_us(self) -> float:
        """Return the time of all launches so far but copies, us; the runtime keeps means, cut to
        whole microseconds.
        """
        return self.runs * sum(
            launch.real_time.total_seconds() * 1e6 + 0.5 for launch in self.launched()
        )

    def launched(self) -> list[Any]:
        """Return the records of what ran and is neither a copy nor a carrier."""
        return [
            launch
            for launch in self.request.profiling_info
            if launch.status == launch.Status.EXECUTED and launch.node_type not in self.copies
        ]

    def own_us(self, walls_us: Sequence[float]) -> tuple[float, ...]:
        """Return the share of wall times that was not copying, us."""
        spent_us = sum(walls_us)
        share = (
            min(1.0, max(0.0, self.recorded_us() - self.warm_us) / spent_us) if spent_us else 0.0
        )
        return tuple(max(LEAST_US, us * share) for us in walls_us)


def share_memory(models: Sequence[LoadedOpenVINOModel]) -> None:
    """Share one memory among models, as the layers of a network do."""
    size = max((model.elements for model in models), default=0)
    memory, noise = (
        np.zeros(size + ALIGNED, np.float32),
        np.random.default_rng(0).standard_normal(size + ALIGNED, dtype=np.float32),
    )
    skipped = -memory.ctypes.data // memory.itemsize % ALIGNED
    for model in models:
        model.borrow(memory[skipped:], noise)


def tensor_views(memory: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Return views of shared memory, one for each shape."""
    starts = np.cumsum([0, *map(allocate_tensor, shapes)])
    return [
        memory[at : at + prod(shape)].reshape(shape)
        for at, shape in zip(starts, shapes, strict=False)
    ]


def allocate_tensor(shape: tuple[int, ...]) -> int:
    """Return the elements of a tensor, rounded up to a cache line."""
    return -(-prod(shape) // ALIGNED) * ALIGNED


def fed_channels_last(model: openvino.Model) -> openvino.Model:
    """Return the model with inputs in NHWC."""
    steps = PrePostProcessor(model)
    for ports, side in ((model.inputs, steps.input), (model.outputs, steps.output)):
        for index, port in enumerate(ports):
            if len(port.partial_shape) == 4:
                side(index).tensor().set_layout(Layout("NHWC"))
                side(index).model().set_layout(Layout("NCHW"))
    return steps.build()


def wants_carrier(chain: Sequence[Kernel]) -> bool:
    """Return whether a lone kernel would read maps plain, or side by side already, and in a network
    reads with channels last.
    """
    kernel = chain[0]
    shape = input_shapes(kernel)[0]
    if len(chain) > 1 or len(shape) != 4:
        return False
    if kernel.kind in ("pool", "gap"):
        return True
    over_channels = changed_axis(shape, kernel.shape_out, default=1) == 1
    return over_channels and (kernel.kind == "concat" or kernel.op in SPLITS)


def do_nothing() -> None:
    """Return at once."""
    pass
