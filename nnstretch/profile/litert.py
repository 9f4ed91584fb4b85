"""The LiteRT meter: lone kernels and whole networks through the interpreter with its XNNPACK delegate, float32 or int8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.metadata import version
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from nnstretch.errors import UnsupportedOp
from nnstretch.fusion import WEIGHTED, FusionRules
from nnstretch.profile.tflite_kernels import build
from nnstretch.profile.tflite_model import Model
from nnstretch.protocols import Kernel

if TYPE_CHECKING:
    import torch
    from torch import nn

CLAMPED = (*WEIGHTED, "add", "mul", "norm", "pool")
RULES = FusionRules(
    frozenset(
        {(kind, op) for kind in WEIGHTED for op in ("batch_norm", "scale", "shift", "hardsigmoid")}
        | {(kind, op) for kind in CLAMPED for op in ("relu", "relu6", "hardtanh")}
    ),
    after_activation=False,
)
"""Read off converted networks: clamps are attributes of the operator before them, sums and all other activations launch alone."""
WARM_UP = 2
LEAST_US = 0.05
"""A launch that costs less than an inference of nothing varies."""
HARNESS_ROUNDS = 200


class LiteRT:
    """One thread, as users get it; int8 means weights and activations, inputs and outputs."""

    name = "litert"

    def __init__(self, dtype: str = "int8") -> None:
        self.dtype = dtype
        self.version = f"ai-edge-litert {version('ai-edge-litert')}"

    def measure(self, chains: Sequence[tuple[Kernel, ...]], rounds: int, /) -> list[tuple[float, ...]]:
        """Microseconds of every chain in every round; see `Meter`."""
        loaded = [self.loaded(chain) for chain in chains]
        ready = [one for one in loaded if one is not None]
        for one in ready * WARM_UP:
            one.timed_us()
        for _ in range(rounds):
            for one in ready:
                one.times_us.append(max(LEAST_US, one.timed_us() - self.harness_us))
        return [tuple(one.times_us) if one is not None else () for one in loaded]

    def loaded(self, chain: tuple[Kernel, ...]) -> Loaded | None:
        """None where the chain has no TFLite form, or LiteRT refuses it."""
        try:
            return Loaded(build(chain, self.dtype))
        except (UnsupportedOp, RuntimeError, ValueError):
            return None

    @cached_property
    def harness_us(self) -> float:
        """What an inference costs before it computes anything: one operator on one number."""
        model = Model(self.dtype)
        value = model.read((1, 1, 1, 1))
        model.outputs.append(model.op("ADD", (value, value), (1, 1, 1, 1), "AddOptions"))
        tiny = Loaded(model.bytes())
        return float(np.median([tiny.timed_us() for _ in range(HARNESS_ROUNDS)]))

    def network(self, module: nn.Module, example: torch.Tensor, /) -> Callable[[], None]:
        """One inference of the module as deployed, on one input that stays the same."""
        from nnstretch.profile.litert_network import to_tflite, trained

        return Loaded(to_tflite(trained(module), example, self.dtype)).interpreter.invoke


class Loaded:
    """A model in an interpreter of its own, and numbers to feed it."""

    def __init__(self, model: bytes) -> None:
        self.interpreter = Interpreter(model_content=model, num_threads=1)
        self.interpreter.allocate_tensors()
        self.feeds = [(one["index"], numbers(one)) for one in self.interpreter.get_input_details()]
        self.feed()
        self.times_us: list[float] = []

    def feed(self) -> None:
        """In a network, what a kernel reads was just written: it is in the near caches."""
        for index, data in self.feeds:
            self.interpreter.set_tensor(index, data)

    def timed_us(self) -> float:
        self.feed()
        start = perf_counter_ns()
        self.interpreter.invoke()
        return (perf_counter_ns() - start) / 1000


def numbers(details: dict[str, Any]) -> np.ndarray:
    rng = np.random.default_rng(0)
    if details["dtype"] == np.float32:
        return rng.standard_normal(details["shape"], dtype=np.float32)
    return rng.integers(-128, 128, details["shape"], dtype=np.int8)
