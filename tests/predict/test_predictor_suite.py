"""Every shipped predictor, and one fitted here, keeps the promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from support import synthetic
from support.shipped_forms import forms_of
from support.slow_half import half_slow

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.predict import known_socs, load_soc
from nnstretch.predict.learned import Estimates, estimate_row
from nnstretch.predictor import Estimate
from nnstretch.profile.fitting.fit_predictor import fit
from nnstretch.testing.predictor_suite import PredictorSuite
from nnstretch.testing.strategies import KernelForm, KernelSize, kernel_of_form

SHIPPED = [(soc, processor.name) for soc in known_socs() for processor in load_soc(soc).processors]


@pytest.mark.parametrize(
    ("soc", "processor"), half_slow(SHIPPED), ids=["-".join(pair) for pair in SHIPPED]
)
class TestShipped(PredictorSuite):
    @pytest.fixture
    def predictor(self, soc: str, processor: str) -> Any:
        return load_soc(soc).predictors[processor]

    @pytest.fixture
    def forms(self, predictor: Any) -> tuple[KernelForm, ...]:
        return forms_of(predictor)


@pytest.fixture(scope="module")
def fitted() -> Any:
    return fit(synthetic.samples(600, seed=1), "cpu", "float32")


@dataclass(frozen=True)
class Altered:
    """Times of a predictor times a factor that depends on the kernel."""

    factor_of: Callable[[Kernel], float]
    processor: str = "cpu"

    def estimate(self, kernel: Kernel, /) -> Estimate:
        time_us = (5.0 + kernel.macs / 20_000) * self.factor_of(kernel)
        return Estimate(time_us, time_us / 10)


FORMS = (KernelForm("conv", "conv2d", window=3), KernelForm("dwconv", "conv2d", window=3))
JUMPS: dict[str, Callable[[Kernel], float]] = {
    "cout": lambda kernel: 1.5 if kernel.kind == "conv" and kernel.cout % 64 == 0 else 1.0,
    "cin": lambda kernel: 3.0 if kernel.kind == "conv" and kernel.cin == 256 else 1.0,
}
OF_DEPTHWISE: dict[str, Callable[[Kernel], float]] = {
    "cin": lambda kernel: 2.0 if kernel.kind == "dwconv" and kernel.cin == 96 else 1.0
}


@pytest.mark.parametrize("jumps", [JUMPS, OF_DEPTHWISE])
def test_a_width_that_is_slower_than_the_next_is_always_caught(
    jumps: dict[str, Callable[[Kernel], float]],
) -> None:
    for field, factor_of in jumps.items():
        with pytest.raises(AssertionError, match=field):
            PredictorSuite().test_the_next_width_is_never_faster(Altered(factor_of), FORMS, field)
    for field in ("cin", "cout"):
        even = Altered(lambda kernel: 1.0)
        PredictorSuite().test_the_next_width_is_never_faster(even, FORMS, field)


def test_a_predictor_that_reads_names_is_always_caught() -> None:
    by_name = Altered(lambda kernel: 1.0 + len(kernel.name) / 100)
    by_nodes = Altered(lambda kernel: 1.0 + len(kernel.nodes) / 100)
    for predictor in (by_name, by_nodes):
        with pytest.raises(AssertionError):
            PredictorSuite().test_equal_kernels_have_equal_estimates(predictor, FORMS)


@dataclass(frozen=True)
class ByShapes:
    """Times by the channels of a shape."""

    field: str
    processor: str = "cpu"

    def estimate(self, kernel: Kernel, /) -> Estimate:
        shapes = {"shapes_in": lambda: kernel.shapes_in[0], "shape_out": lambda: kernel.shape_out}
        return Estimate(5.0 + shapes[self.field]()[1], 0.5)


@pytest.mark.parametrize("field", ["shapes_in", "shape_out"])
def test_a_predictor_that_needs_shapes_is_always_caught(field: str) -> None:
    with pytest.raises(IndexError):
        PredictorSuite().test_kernels_of_unknown_shapes_take_time(ByShapes(field), FORMS)


class Reversed(Altered):
    """Right one by one, in the wrong order at once."""

    def estimate_many(self, kernels: Sequence[Kernel], /) -> Estimates:
        rows = np.array([estimate_row(self.estimate(kernel)) for kernel in reversed(kernels)])
        return Estimates(*rows.T)


class Falling(Altered):
    """Right one by one, falling with work in a grid."""

    def estimate_grid(self, kernel: Kernel, /) -> Any:
        return 1e6 / (1.0 + np.asarray(kernel.macs))


class Gridded(Altered):
    """Right for arrays, too."""

    def estimate_grid(self, kernel: Kernel, /) -> Any:
        return 5.0 + np.asarray(kernel.macs) / 20_000


def even(kernel: Kernel) -> float:
    """Return a factor that alters nothing."""
    return 1.0


def test_answers_for_many_that_are_not_those_of_each_are_always_caught() -> None:
    suite = PredictorSuite()
    for method in ("estimates_of_many_kernels", "estimates_of_a_grid"):
        check = getattr(suite, f"test_{method}_are_those_of_each")
        for predictor in (Altered(even), Gridded(even)):
            check(predictor, FORMS)
    with pytest.raises(AssertionError):
        suite.test_estimates_of_many_kernels_are_those_of_each(Reversed(even), FORMS)
    with pytest.raises(AssertionError):
        suite.test_estimates_of_a_grid_are_those_of_each(Falling(even), FORMS)


class TestLearned(PredictorSuite):
    @pytest.fixture
    def predictor(self, fitted: Any) -> Any:
        return fitted

    @pytest.fixture
    def forms(self) -> tuple[KernelForm, ...]:
        return synthetic.FORMS

    def test_the_trees_take_part(self, predictor: Any) -> None:
        assert any(family.forest for family in predictor.families.values())

    def test_an_operator_nobody_measured_is_refused_by_name(self, predictor: Any) -> None:
        one = kernel_of_form(KernelForm("activation", "relu"), KernelSize(16, 16, 7, 1))
        with pytest.raises(
            UnsupportedOp, match=r"'activation' of operator 'mish'.*kernel k.*processor cpu"
        ):
            predictor.estimate(replace(one, op="mish"))

    def test_a_follower_nobody_measured_is_refused_by_name(self, predictor: Any) -> None:
        with pytest.raises(
            UnsupportedOp, match=r"'mish' fused behind 'conv'.*kernel k.*processor cpu"
        ):
            predictor.estimate(
                kernel_of_form(
                    KernelForm("conv", "conv2d", 1, "blocked", ("mish",)), KernelSize(16, 16, 7, 1)
                )
            )
