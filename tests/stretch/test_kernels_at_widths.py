"""Predictors that are asked one kernel at a time see kernels whose shapes are those of the counts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

import pytest
from support.search_instances import random_instance

from nnstretch.kernel import Kernel
from nnstretch.predictor import Estimate
from nnstretch.profile.sampling.kernel_spec import KernelSpec, kernel_of_spec
from nnstretch.stretch.cost.kernel_variants import kernel_with_counts
from nnstretch.stretch.cost.polynomials import COUNTS

MAP, WIDE = (1, 16, 8, 8), (1, 24, 8, 8)


@dataclass
class ShapeRate:
    """Prices the elements that shapes have, and keeps what it was asked."""

    processor: str
    elements_per_us: float
    asked: list[Kernel] = field(default_factory=list)

    def estimate(self, kernel: Kernel, /) -> Estimate:
        self.asked.append(kernel)
        moved = sum(map(prod, kernel.shapes_in)) + prod(kernel.shape_out)
        us = 1.0 + moved / self.elements_per_us + kernel.macs / (10 * self.elements_per_us)
        return Estimate(us, us / 10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_search_prices_plans_by_shapes_as_they_will_be(seed: int) -> None:
    """`answer` checks that the proven bound is the latency of the plan that is built."""
    drawn = random_instance(seed)
    predictors = {p: ShapeRate(p, 100.0 + 50 * n) for n, p in enumerate(drawn.processors)}
    one = replace(drawn, soc=replace(drawn.soc, predictors=predictors))
    one.answer()
    asked = [kernel for predictor in predictors.values() for kernel in predictor.asked]
    assert asked
    for kernel in asked:
        assert sum(map(prod, kernel.shapes_in)) == kernel.read_elements, kernel
        assert prod(kernel.shape_out) == kernel.write_elements, kernel


def at(kernel: Kernel, like: Kernel) -> Kernel:
    """A kernel with the counts of another one."""
    return kernel_with_counts(kernel, {name: getattr(like, name) for name in COUNTS})


@pytest.mark.parametrize(
    ("narrow", "wide", "epilogue"),
    [
        (
            KernelSpec("conv", "conv2d", (MAP,), (1, 32, 4, 4), 3, 2),
            KernelSpec("conv", "conv2d", (WIDE,), (1, 40, 4, 4), 3, 2),
            ("add", "relu"),
        ),
        (
            KernelSpec("dwconv", "conv2d", (MAP,), MAP, 3, 1, 16),
            KernelSpec("dwconv", "conv2d", (WIDE,), WIDE, 3, 1, 24),
            (),
        ),
        (
            KernelSpec("mul", "mul", (MAP, (1, 16, 1, 1)), MAP),
            KernelSpec("mul", "mul", (WIDE, (1, 24, 1, 1)), WIDE),
            (),
        ),
        (
            KernelSpec("linear", "linear", ((1, 5, 16),), (1, 5, 32)),
            KernelSpec("linear", "linear", ((1, 5, 24),), (1, 5, 64)),
            ("add",),
        ),
        (
            KernelSpec("gap", "mean", (MAP,), (1, 16)),
            KernelSpec("gap", "mean", (WIDE,), (1, 24)),
            (),
        ),
        (
            KernelSpec("reshape", "chunk", (MAP,), (1, 8, 8, 8)),
            KernelSpec("reshape", "chunk", (WIDE,), (1, 12, 8, 8)),
            (),
        ),
    ],
    ids=lambda value: getattr(value, "op", ""),
)
def test_shapes_follow_the_channels(
    narrow: KernelSpec, wide: KernelSpec, epilogue: tuple[str, ...]
) -> None:
    expected = kernel_of_spec(wide, "k", epilogue)
    assert at(kernel_of_spec(narrow, "k", epilogue), expected) == expected


def test_shapes_that_channels_do_not_tell_are_empty() -> None:
    narrow = kernel_of_spec(KernelSpec("concat", "cat", (MAP, WIDE), (1, 40, 8, 8)), "k")
    wide = kernel_of_spec(KernelSpec("concat", "cat", (WIDE, MAP), (1, 40, 8, 8)), "k")
    grown = kernel_of_spec(KernelSpec("concat", "cat", (MAP, MAP), (1, 32, 8, 8)), "k")
    assert at(narrow, wide).shapes_in == ()
    assert at(narrow, grown) == replace(grown, shapes_in=())
