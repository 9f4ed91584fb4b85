"""Tests that every predictor passes.

Inherit the suite and give it its fixtures:

    class TestMine(PredictorSuite):
        @pytest.fixture
        def predictor(self): return Mine("cpu")

        @pytest.fixture
        def forms(self): return (KernelForm("conv", "conv2d", window=3),)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.predict.learned import estimate_many
from nnstretch.predictor import Predictor
from nnstretch.stretch.cost.polynomials import COUNTS
from nnstretch.testing.strategies import (
    CHANNEL_STEP,
    KernelForm,
    KernelSize,
    kernel_of_form,
    kernel_sizes,
    kernels,
)

SETTINGS = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
ROUNDING = 1e-9
SMALL = KernelSize(CHANNEL_STEP, CHANNEL_STEP, 7, 1)
SWEPT = KernelSize(4 * CHANNEL_STEP, 4 * CHANNEL_STEP, 14, 1)
"""Kernel of which one width at a time is swept."""
MOST_BLOCKS = 48

Forms = tuple[KernelForm, ...]


class PredictorSuite:
    """Tests over two fixtures: a `predictor`, and the `forms` of kernels that it answers for."""

    @SETTINGS
    @given(data=st.data())
    def test_estimates_are_positive_and_finite_and_inside_their_interval(
        self, predictor: Predictor, forms: Forms, data: st.DataObject
    ) -> None:
        """Check the range of latency, error and interval."""
        estimate = predictor.estimate(data.draw(kernels(forms)))
        assert 0 < estimate.latency_us < math.inf
        assert 0 <= estimate.error_us < estimate.latency_us
        if estimate.interval_us is not None:
            low, high = estimate.interval_us
            assert 0 < low <= estimate.latency_us <= high < math.inf

    @SETTINGS
    @given(data=st.data())
    def test_equal_kernels_have_equal_estimates(
        self, predictor: Predictor, forms: Forms, data: st.DataObject
    ) -> None:
        """Check that an estimate depends on the kernel alone, not on names in its network."""
        kernel = data.draw(kernels(forms))
        alike = replace(kernel, name="another_7", nodes=("another_7", "relu_7"))
        for twin in (replace(kernel), alike):
            assert predictor.estimate(kernel) == predictor.estimate(twin)

    @settings(SETTINGS, max_examples=150)
    @given(data=st.data())
    def test_a_larger_kernel_is_never_faster(
        self, predictor: Predictor, forms: Forms, data: st.DataObject
    ) -> None:
        """Check that latency does not fall with channels, side or batch."""
        form, size = data.draw(st.sampled_from(forms)), data.draw(kernel_sizes())
        field = data.draw(st.sampled_from(("cin", "cout", "side", "batch")))
        step = CHANNEL_STEP if field in ("cin", "cout") else 1
        growth = step * data.draw(st.integers(1, 40))
        larger = replace(size, **{field: getattr(size, field) + growth})
        before = predictor.estimate(kernel_of_form(form, size)).latency_us
        after = predictor.estimate(kernel_of_form(form, larger)).latency_us
        assert after >= before * (1 - ROUNDING), (form, size, larger)

    @pytest.mark.parametrize("field", ["cin", "cout"])
    def test_the_next_width_is_never_faster(
        self, predictor: Predictor, forms: Forms, field: str
    ) -> None:
        """Check every step from one width to the next, which drawn sizes seldom take."""
        sizes = [replace(SWEPT, **{field: CHANNEL_STEP * i}) for i in range(1, MOST_BLOCKS + 1)]
        for form in forms:
            kernels_of_form = [kernel_of_form(form, size) for size in sizes]
            latency_us = estimate_many(predictor, kernels_of_form).latency_us.tolist()
            for size, (before, after) in zip(sizes, pairwise(latency_us), strict=False):
                assert after >= before * (1 - ROUNDING), (form, size, field)

    @SETTINGS
    @given(data=st.data())
    def test_more_work_or_traffic_alone_is_never_faster(
        self, predictor: Predictor, forms: Forms, data: st.DataObject
    ) -> None:
        """Check that latency does not fall with one count while the others stay."""
        kernel = data.draw(kernels(forms))
        before = predictor.estimate(kernel).latency_us
        for field in ("macs", "read_elements", "write_elements", "weight_elements"):
            factor = data.draw(st.integers(2, 9))
            larger = replace(kernel, **{field: factor * getattr(kernel, field)})
            assert predictor.estimate(larger).latency_us >= before * (1 - ROUNDING), field

    @SETTINGS
    @given(data=st.data())
    def test_estimates_of_many_kernels_are_those_of_each(
        self, predictor: Predictor, forms: Forms, data: st.DataObject
    ) -> None:
        """Check vectorized against single estimates."""
        many = data.draw(st.lists(kernels(forms), min_size=1, max_size=12))
        batch = estimate_many(predictor, many)
        singles = [predictor.estimate(kernel) for kernel in many]
        latencies_us = [single.latency_us for single in singles]
        errors_us = [single.error_us for single in singles]
        assert batch.latency_us.tolist() == pytest.approx(latencies_us, rel=1e-12)
        assert batch.error_us.tolist() == pytest.approx(errors_us, rel=1e-12)
        for single, low_us, high_us in zip(singles, batch.low_us, batch.high_us, strict=True):
            if single.interval_us is not None:
                assert (low_us, high_us) == pytest.approx(single.interval_us, rel=1e-12)

    @SETTINGS
    @given(data=st.data())
    def test_estimates_of_a_grid_are_those_of_each(
        self, predictor: Predictor, forms: Forms, data: st.DataObject
    ) -> None:
        """Check arrays of counts, where the predictor takes them, against single estimates."""
        estimate_grid = getattr(predictor, "estimate_grid", None)
        if estimate_grid is None:
            return
        form, size = data.draw(st.sampled_from(forms)), data.draw(kernel_sizes())
        widths = st.lists(st.integers(1, MOST_BLOCKS), min_size=1, max_size=4)
        cins, couts = data.draw(widths), data.draw(widths)
        grid = []
        for blocks in product(cins, couts):
            cin, cout = (CHANNEL_STEP * count for count in blocks)
            grid.append(kernel_of_form(form, replace(size, cin=cin, cout=cout)))
        shape = (len(cins), len(couts))
        times_us = np.asarray(estimate_grid(kernel_of_counts(grid, shape)))
        expected_us = [predictor.estimate(kernel).latency_us for kernel in grid]
        assert np.broadcast_to(times_us, shape).ravel().tolist() == pytest.approx(
            expected_us, rel=ROUNDING
        ), (form, size, cins, couts)

    def test_the_smallest_kernel_takes_time(self, predictor: Predictor, forms: Forms) -> None:
        """Check that a launch is never free."""
        smallest = KernelSize(CHANNEL_STEP, CHANNEL_STEP, 1, 1)
        for form in forms:
            assert predictor.estimate(kernel_of_form(form, smallest)).latency_us > 0, form

    @SETTINGS
    @given(data=st.data())
    def test_kernels_of_unknown_shapes_take_time(
        self, predictor: Predictor, forms: Forms, data: st.DataObject
    ) -> None:
        """Check kernels of which a search knows the counts, as of concatenations, and no shapes."""
        kernel = data.draw(kernels(forms))
        for unknown in (
            replace(kernel, shapes_in=()),
            replace(kernel, shape_out=()),
            replace(kernel, shapes_in=(), shape_out=()),
        ):
            assert 0 < predictor.estimate(unknown).latency_us < math.inf, unknown

    def test_an_unmeasured_kind_is_refused_by_name(
        self, predictor: Predictor, forms: Forms
    ) -> None:
        """Check that `UnsupportedOp` names kind, kernel and processor in one line.

        A grid refuses the kind, too.
        """
        measured = kernel_of_form(forms[0], SMALL)
        unknown = replace(measured, name="node_7", kind="made_up", op="made_up")
        message = rf"'made_up'.*node_7.*{predictor.processor}"
        with pytest.raises(UnsupportedOp, match=message) as single:
            predictor.estimate(unknown)
        with pytest.raises(UnsupportedOp, match=message) as batch:
            estimate_many(predictor, [measured, unknown])
        assert "\n" not in f"{single.value}{batch.value}"
        if hasattr(predictor, "estimate_grid"):
            with pytest.raises(UnsupportedOp):
                predictor.estimate_grid(kernel_of_counts([unknown], (1,)))


def kernel_of_counts(grid: Sequence[Kernel], shape: tuple[int, ...]) -> Kernel:
    """Return the kernel of a grid whose counts are arrays, of length 1 where all are the same."""
    counts: dict[str, Any] = {}
    for name in COUNTS:
        values = np.array([float(getattr(kernel, name)) for kernel in grid]).reshape(shape)
        for axis in range(values.ndim):
            first = values.take([0], axis)
            values = first if (values == first).all() else values
        counts[name] = values
    return replace(grid[0], **counts)
