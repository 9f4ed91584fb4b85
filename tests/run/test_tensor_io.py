"""The way in and out of a network.

Real numbers in PyTorch's order outside, what ports say inside.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.bundle.manifest import Port
from nnstretch.bundle.pipeline_view import torch_spec
from nnstretch.errors import BadInput
from nnstretch.graph import TensorSpec
from nnstretch.run.tensor_io import dequantize, from_port, quantize, to_port

scales = st.floats(1e-6, 1e3).map(lambda scale: float(np.float32(scale)))
int8s = st.builds(
    lambda scale, zero: Port("q", TensorSpec((1, 2, 3, 4), "int8"), "NHWC", scale, zero),
    scales,
    st.integers(-128, 127),
)


@given(int8s)
def test_every_integer_survives_going_out_and_in(port: Port) -> None:
    steps = np.arange(-128, 128, dtype=np.int8)
    real = dequantize(steps, port)
    assert real.dtype == np.float32
    assert np.array_equal(quantize(real, port), steps)


@given(int8s, st.floats(-1e4, 1e4, width=32))
def test_a_real_number_moves_by_half_a_step_or_to_the_end(port: Port, number: float) -> None:
    found = float(dequantize(quantize(np.array([number], np.float32), port), port)[0])
    low, high = ((end - port.zero_point) * port.scale for end in (-128, 127))
    assert abs(found - min(max(number, low), high)) <= port.scale / 2 * (1 + 1e-4) + 1e-6 * abs(
        found
    )


def test_halves_go_to_the_even_step() -> None:
    port = Port("q", TensorSpec((6,), "int8"), scale=0.5, zero_point=0)
    assert quantize(np.array([0.25, 0.75, 1.25, -0.25, -0.75, 1e9], np.float32), port).tolist() == [
        0,
        2,
        2,
        0,
        -2,
        127,
    ]


@given(int8s, st.integers(0, 2**32 - 1))
def test_both_forms_of_an_input_are_one(port: Port, seed: int) -> None:
    real = np.random.default_rng(seed).standard_normal(torch_spec(port).shape).astype(np.float32)
    inside = to_port(port, real)
    assert (inside.shape, inside.dtype.name, inside.flags.c_contiguous) == (
        port.spec.shape,
        "int8",
        True,
    )
    assert np.array_equal(to_port(port, inside), inside)
    assert np.array_equal(to_port(port, from_port(port, inside)), inside)
    assert np.array_equal(quantize(real, port).transpose(0, 2, 3, 1), inside)


def test_an_input_that_could_be_either_is_pytorchs() -> None:
    port = Port("x", TensorSpec((1, 2, 2, 2)), "NHWC")
    x = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
    assert np.array_equal(to_port(port, x), x.transpose(0, 2, 3, 1))


def test_a_wrong_input_is_told_both_forms() -> None:
    port = Port("x", TensorSpec((1, 8, 6, 3), "int8"), "NHWC", 0.1)
    message = r"^input x, expected 1x3x8x6 float32 or 1x8x6x3 int8 NHWC, got 1x3x8x6 int8$"
    with pytest.raises(BadInput, match=message):
        to_port(port, np.zeros((1, 3, 8, 6), np.int8))
    with pytest.raises(BadInput, match=r"got 1 of 144 numbers that are NaN or infinite$"):
        to_port(
            port, np.where(np.arange(144).reshape(1, 3, 8, 6) == 5, np.nan, 0).astype(np.float32)
        )


def test_a_scalar_stays_a_scalar() -> None:
    port = Port("x", TensorSpec(()))
    assert (
        to_port(port, np.array(1, np.float32)).shape
        == from_port(port, np.array(1, np.float32)).shape
        == ()
    )
