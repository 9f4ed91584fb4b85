"""A made-up processor whose latencies are known, to fit predictors to."""

from __future__ import annotations

import random

from nnstretch.kernel import Kernel
from nnstretch.profile.sampling.sample import Sample
from nnstretch.testing.strategies import KernelForm, KernelSize, kernel_of_form

FORMS = (
    KernelForm("conv", "conv2d", 1, "blocked"),
    KernelForm("conv", "conv2d", 1, "blocked", ("relu",)),
    KernelForm("conv", "conv2d", 1, "blocked", ("silu",)),
    KernelForm("dwconv", "conv2d", 3, "blocked"),
    KernelForm("activation", "relu"),
    KernelForm("activation", "gelu"),
)


def truth_us(one: Kernel) -> float:
    """Launch, arithmetic that gets more efficient with size, traffic, and a dear activation."""
    arithmetic = one.macs**0.75 / 2e3
    traffic = (one.read_elements + one.write_elements) * 4 / 8000 + one.weight_elements * 4 / 20000
    dear = ("silu" in one.epilogue) or one.op == "gelu"
    return 2.0 + arithmetic + traffic + dear * one.write_elements / 1000


def samples(count: int, seed: int, noise: float = 0.05) -> list[Sample]:
    """Every kernel with 7 rounds; the noise of a kernel stays, that of a round does not."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        size = KernelSize(16 * rng.randint(1, 32), 16 * rng.randint(1, 32), rng.randint(1, 56), 1)
        one = kernel_of_form(rng.choice(FORMS), size)
        middle = truth_us(one) * rng.lognormvariate(0, noise)
        found.append(Sample(one, tuple(middle * (1 + abs(rng.gauss(0, 0.01))) for _ in range(7))))
    return found
