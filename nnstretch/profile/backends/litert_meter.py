"""The LiteRT meter: lone kernels and whole networks through the interpreter with its XNNPACK
delegate, float32 or int8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.metadata import version
from itertools import product
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from nnstretch.errors import UnsupportedOp
from nnstretch.graph import ELEMENT_BYTES
from nnstretch.kernel import WEIGHTED, FusionRules, Kernel
from nnstretch.profile.kernel_models.tflite_builder import TfliteModelBuilder
from nnstretch.profile.kernel_models.tflite_models import build

if TYPE_CHECKING:
    import torch
    from torch import nn

CLAMPED = (*WEIGHTED, "add", "mul", "norm", "pool")
RULES = FusionRules(
    frozenset(
        {
            *product(WEIGHTED, ("batch_norm", "scale", "shift", "hardsigmoid")),
            *product(CLAMPED, ("relu", "relu6", "hardtanh")),
        }
    ),
    after_activation=False,
    copies_padding=True,
)
"""Read off converted networks.

Clamps are attributes of the operator before them, sums and all other activations launch alone.
"""
WARM_UP = 2
LEAST_US = 0.05
"""A launch that costs less than an inference of nothing varies."""
HARNESS_ROUNDS = 200
NETWORK_BYTES = {"float32": 24 << 20, "int8": 3 << 20}
"""Bytes that chains measured in turns hold together: about those of a network.

So weights come from the same level of the memory hierarchy as in a network.
"""
MOST_COPIES = 8
COPIED_OPERATIONS = 40_000_000
"""Operations of all copies of a chain in one model at most.

There are at least two copies, so that outputs are warm as in a network.
"""


class LiteRTMeter:
    """One thread, as users get it; int8 means weights and activations, inputs and outputs."""

    name = "litert"
    rules = RULES

    def __init__(self, dtype: str = "int8") -> None:
        self.dtype = dtype
        self.version = f"ai-edge-litert {version('ai-edge-litert')}"

    def measure(
        self, chains: Sequence[tuple[Kernel, ...]], rounds: int, /
    ) -> list[tuple[float, ...]]:
        """Time every chain in every round, us; see `Meter`.

        Chains take turns in groups of a network's size.
        """
        times: list[tuple[float, ...]] = []
        group: list[tuple[Kernel, ...]] = []
        for chain in chains:
            group.append(chain)
            if (
                sum(resident_bytes(member, self.dtype) for member in group)
                >= NETWORK_BYTES[self.dtype]
            ):
                times += self.measure_group(group, rounds)
                group = []
        return times + self.measure_group(group, rounds)

    def measure_group(
        self, chains: list[tuple[Kernel, ...]], rounds: int
    ) -> list[tuple[float, ...]]:
        """Time a group of chains in turns; a chain without times could not be loaded. us."""
        loaded = [self.load_chain(chain) for chain in chains]
        ready = [model for model in loaded if model is not None]
        missing = NETWORK_BYTES[self.dtype] - sum(
            resident_bytes(chain, self.dtype) for chain in chains
        )
        ballast = np.zeros(max(0, missing), np.int8)
        for turn in range(-WARM_UP, rounds):
            ballast += 1
            for model in ready:
                time_us = (model.timed_us() - self.harness_us[model.copies]) / model.copies
                if turn >= 0:
                    model.times_us.append(max(LEAST_US, time_us))
        return [tuple(model.times_us) if model is not None else () for model in loaded]

    def load_chain(self, chain: tuple[Kernel, ...]) -> LoadedTfliteModel | None:
        """Load a chain, None where it has no TFLite form, or LiteRT refuses it."""
        copies = copies_for_timing(chain, self.dtype)
        try:
            return LoadedTfliteModel(build(chain, self.dtype, copies), copies)
        except (UnsupportedOp, RuntimeError, ValueError):
            return None

    @property
    def call_us(self) -> float:
        """Return the time of a call that computes nothing, us."""
        return self.harness_us[1]

    def blocked(self) -> None:
        """Return None: maps are channels-last throughout."""

    def launches(self, chain: tuple[Kernel, ...], /) -> None:
        """Return None: the delegate runs many operators in one and does not say how many."""

    @cached_property
    def harness_us(self) -> list[float]:
        """Measure what an inference costs by copies before it computes anything.

        One number taken of one tensor, again and again.
        """
        times_us = []
        for copies in range(MOST_COPIES + 1):
            model = TfliteModelBuilder(self.dtype)
            value = model.read((1, 2, 2, 2))
            model.outputs = [model.first_number(value) for _ in range(max(1, copies))]
            tiny = LoadedTfliteModel(model.bytes())
            times_us.append(float(np.median([tiny.timed_us() for _ in range(HARNESS_ROUNDS)])))
        return times_us

    def network(self, module: nn.Module, example: torch.Tensor, /) -> Callable[[], None]:
        """Return one inference of the module as deployed, on one input that stays the same."""
        from nnstretch.profile.backends.litert_network import to_tflite, with_nontrivial_weights

        return LoadedTfliteModel(
            to_tflite(with_nontrivial_weights(module), example, self.dtype)
        ).interpreter.invoke


def copies_for_timing(chain: tuple[Kernel, ...], dtype: str) -> int:
    """Return how often a chain stands in its model, so that one call is long enough to time."""
    operations = sum(kernel.macs + 10 * kernel.write_elements for kernel in chain) + 1
    weight_bytes = sum(kernel.weight_elements for kernel in chain) * ELEMENT_BYTES[dtype] + 1
    room = max(1, NETWORK_BYTES[dtype] // weight_bytes)
    return min(MOST_COPIES, room, max(2, COPIED_OPERATIONS // operations))


def resident_bytes(chain: tuple[Kernel, ...], dtype: str) -> int:
    """Return the bytes of weights of all copies, and the activations that they share."""
    weights = copies_for_timing(chain, dtype) * sum(kernel.weight_elements for kernel in chain)
    return (
        weights + sum(kernel.read_elements + kernel.write_elements for kernel in chain)
    ) * ELEMENT_BYTES[dtype]


class LoadedTfliteModel:
    """A model in an interpreter of its own, and numbers to feed it."""

    def __init__(self, model: bytes, copies: int = 1) -> None:
        self.copies = copies
        self.interpreter = Interpreter(model_content=model, num_threads=1)
        self.interpreter.allocate_tensors()
        self.feeds = [(d["index"], numbers(d)) for d in self.interpreter.get_input_details()]
        self.feed()
        self.times_us: list[float] = []

    def feed(self) -> None:
        """Write new inputs: in a network, what a kernel reads was just written and is in the near
        caches.
        """
        for index, data in self.feeds:
            self.interpreter.set_tensor(index, data)

    def timed_us(self) -> float:
        """Run once and return the time it took, us."""
        self.feed()
        start = perf_counter_ns()
        self.interpreter.invoke()
        return (perf_counter_ns() - start) / 1000


def numbers(details: dict[str, Any]) -> np.ndarray:
    """Return random int8 values of a tensor's shape."""
    rng = np.random.default_rng(0)
    if details["dtype"] == np.float32:
        return rng.standard_normal(details["shape"], dtype=np.float32)
    return rng.integers(-128, 128, details["shape"], dtype=np.int8)
