"""The OpenVINO meter: lone kernels and whole networks, float32, with copies between layouts told apart by the runtime's records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino  # type: ignore[import-untyped]

from nnstretch.errors import BadInput, UnsupportedOp
from nnstretch.fusion import Blocked
from nnstretch.profile.onnx_kernels import Model, emit, inputs_of
from nnstretch.profile.turns import LEAST_US, in_turns, wall_us
from nnstretch.protocols import Kernel

if TYPE_CHECKING:
    import torch
    from torch import nn

FRAMED = 200
"""Inferences behind the cost of one that computes next to nothing."""
LAUNCHES = 32
COPIES = frozenset({"Reorder", "Convert"})


class OpenVino:
    """Float32 kernels, on one thread where the device is the CPU."""

    name = "openvino"
    dtype = "float32"

    def __init__(self, device: str = "CPU") -> None:
        """Raises BadInput where OpenVINO finds no such device."""
        self.core, self.device = openvino.Core(), device
        if (found := self.core.available_devices) and device not in found:
            raise BadInput(f"no device {device!r}, OpenVINO {openvino.__version__}, it finds {', '.join(found)}")
        self.version = f"openvino {openvino.__version__.split('-')[0]}"

    def blocked(self) -> Blocked | None:
        return None

    def measure(self, chains: Sequence[tuple[Kernel, ...]], rounds: int, /) -> list[tuple[float, ...]]:
        """Microseconds of every chain in every round; see `Meter`.

        The share of the copies between layouts that OpenVINO wraps around a lone chain is taken out: between two
        convolutions of a network there is none.
        """
        loaded = [self.loaded(chain) for chain in chains]
        runs = [one and one.infer for one in loaded]
        times = in_turns(runs, [one.feed if one else nothing for one in loaded], rounds, self.framing_us)
        return [
            tuple(max(LEAST_US, us * one.own_share()) for us in found) if one else () for one, found in zip(loaded, times, strict=True)
        ]

    def loaded(self, chain: tuple[Kernel, ...]) -> Loaded | None:
        """None where the chain has no ONNX form, or OpenVINO refuses it."""
        try:
            return self.load(onnx_of(chain), records=True)
        except (UnsupportedOp, RuntimeError, ValueError):
            return None

    def load(self, model: bytes, records: bool) -> Loaded:
        settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "PERF_COUNT": records}
        if self.device == "CPU":
            settings |= {"INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False}
        return Loaded(self.core.compile_model(self.core.read_model(model), self.device, settings))

    @cached_property
    def framing_us(self) -> float:
        """What an inference costs before it launches anything: one tiny launch, less what one launch in a row of many costs."""
        one_us, many_us = (
            float(np.median([wall_us(tiny.infer) for _ in range(FRAMED)]))
            for tiny in (self.load(row(1), records=True), self.load(row(LAUNCHES), records=True))
        )
        return max(0.0, one_us - max(0.0, many_us - one_us) / (LAUNCHES - 1))

    def network(self, module: nn.Module, example: torch.Tensor, /) -> Callable[[], None]:
        """One inference of the exported module, on one input that stays the same. Raises UnsupportedOp with the reason."""
        from nnstretch.profile.networks import to_onnx

        model = to_onnx(module, example)
        try:
            return self.load(model, records=False).infer
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1][:200]
            raise UnsupportedOp(f"cannot compile {type(module).__name__} for OpenVINO, device {self.device}, {reason}") from error


class Loaded:
    """A compiled model with numbers in its inputs."""

    def __init__(self, compiled: openvino.CompiledModel) -> None:
        rng = np.random.default_rng(0)
        self.request = compiled.create_infer_request()
        self.fed = [rng.standard_normal(tuple(port.shape), dtype=np.float32) for port in compiled.inputs]
        self.data = [data.copy() for data in self.fed]
        for index, data in enumerate(self.fed):
            self.request.set_input_tensor(index, openvino.Tensor(data, shared_memory=True))

    def feed(self) -> None:
        for fed, data in zip(self.fed, self.data, strict=True):
            np.copyto(fed, data)

    def infer(self) -> None:
        self.request.infer(share_outputs=True)

    def own_share(self) -> float:
        """Of the time of all launches, that of those which are no copies; 0 where the runtime launches nothing at all."""
        ran = [one for one in self.request.profiling_info if one.status == one.Status.EXECUTED]
        spent_us = [one.real_time.total_seconds() * 1e6 for one in ran]
        if all(one.node_type not in COPIES for one in ran):
            return float(bool(ran))
        return sum(us for us, one in zip(spent_us, ran, strict=True) if one.node_type not in COPIES) / max(1e-9, sum(spent_us))


def onnx_of(chain: Sequence[Kernel]) -> bytes:
    """Nothing but the chain, all that its last kernel writes as outputs. Raises UnsupportedOp, naming the kernel, where it has no ONNX form."""
    model, value = Model(), ""
    for position, kernel in enumerate(chain):
        fresh = [model.read(shape) for i, shape in enumerate(inputs_of(kernel)) if i or not position]
        value = emit(model, kernel, [value, *fresh] if position else fresh)
    for name in model.nodes[-1].output:
        model.write(name)
    return model.bytes()


def row(launches: int) -> bytes:
    """Softmaxes over a few numbers, which no runtime fuses."""
    model = Model()
    value = model.read((1, 4))
    for _ in range(launches):
        value = model.add("Softmax", value, axis=-1)
    model.write(value)
    return model.bytes()


def nothing() -> None:
    pass
