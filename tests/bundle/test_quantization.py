"""int8 codes: one rule, whoever asks."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.bundle.manifest import Port
from nnstretch.bundle.quantization import from_codes, to_codes
from nnstretch.graph import TensorSpec
from nnstretch.run.tensor_io import dequantize, quantize

SCALES = st.floats(1e-6, 1e3)
ZERO_POINTS = st.integers(-128, 127)


@given(SCALES, ZERO_POINTS, st.integers(0, 2**32 - 1))
def test_codes_survive_a_round_through_real_numbers(scale: float, zero: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(-128, 128, 100).astype(np.int8)
    again = to_codes(from_codes(codes, scale, zero), "int8", scale, zero)
    np.testing.assert_array_equal(again, codes)


@given(SCALES, ZERO_POINTS, st.integers(0, 2**32 - 1))
def test_real_numbers_come_back_within_half_a_step(scale: float, zero: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(-128, 128, 100)
    values = ((codes - zero) * scale).astype(np.float32)
    back = from_codes(to_codes(values, "int8", scale, zero), scale, zero)
    assert np.abs(back - values).max() <= 0.5 * scale * (1 + 1e-5) + 1e-6 * np.abs(values).max()


@pytest.mark.parametrize(
    ("value", "code"), [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (1e30, 127), (-1e30, -128)]
)
def test_halves_go_to_even_and_what_is_out_of_range_to_its_end(value: float, code: int) -> None:
    assert to_codes(np.array([value], np.float32), "int8", 1.0, 0) == [code]


def test_codes_next_to_a_half_are_those_of_the_exact_quotient() -> None:
    """Divided in float32, half of these fall on the half itself."""
    scale = 0.0173
    halves = ((np.arange(-100, 100) + 0.5) * scale).astype(np.float32)
    values = np.concatenate([halves, np.nextafter(halves, 9), np.nextafter(halves, -9)])
    exact = [round(Fraction(float(value)) / Fraction(scale)) + 3 for value in values]
    assert to_codes(values, "int8", scale, 3).tolist() == exact


def test_export_verifies_the_codes_that_the_runtime_computes() -> None:
    """In float32 arithmetic some of these million values would get another code."""
    litert = pytest.importorskip("nnstretch.export.litert.runner")
    generator = np.random.default_rng(0)
    values = generator.standard_normal(1_000_000).astype(np.float32)
    scale, zero_point = 0.0235294122248888, -7
    port = Port("x", TensorSpec(values.shape, "int8"), scale=scale, zero_point=zero_point)
    how = {"dtype": np.int8, "quantization": (scale, zero_point)}
    np.testing.assert_array_equal(quantize(values, port), litert.quantize(values, how))
    codes = quantize(values, port)
    np.testing.assert_array_equal(dequantize(codes, port), litert.dequantize(codes, how))
