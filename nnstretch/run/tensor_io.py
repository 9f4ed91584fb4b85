"""The way in and out of a network.

Real numbers in PyTorch's order outside, what its ports say inside.

Outside, a quantised port holds float32 and a channels-last map is NCHW, so one array fits every
bundle of a network.
"""

from __future__ import annotations

import numpy as np

from nnstretch.bundle.manifest import Port
from nnstretch.bundle.quantization import from_codes, to_codes
from nnstretch.errors import BadInput
from nnstretch.graph import TensorSpec

TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def torch_form(port: Port) -> tuple[tuple[int, ...], str]:
    """Return shape and element type of a port as PyTorch has it."""
    shape = port.spec.shape
    return tuple(shape[i] for i in TO_FIRST) if port.layout == "NHWC" else shape, (
        "float32" if port.scale else port.spec.dtype
    )


def to_port(port: Port, array: object, what: str = "") -> np.ndarray:
    """Return `array` as the port holds it.

    Turned and quantised where it comes in PyTorch's form, as it is where it has the port's.

    Where both forms are one (float32 with as many channels as rows and columns) it counts as
    PyTorch's. `what` it is, for messages, is input NAME where nothing is said. Raises BadInput.
    """
    expected = _expected(port, what or f"input {port.name}")
    if not isinstance(array, np.ndarray):
        raise BadInput(f"{expected}, got {describe_value(array)}")
    form = (array.shape, str(array.dtype))
    if form not in (torch_form(port), (port.spec.shape, port.spec.dtype)) or is_masked_array(array):
        raise BadInput(f"{expected}, got {describe_value(array)}")
    array = np.asarray(array)  # a subclass may calculate otherwise
    if array.dtype.kind == "f" and (wrong := count_non_finite(array)):
        raise BadInput(f"{expected}, got {wrong} of {array.size} numbers that are NaN or infinite")
    if form == torch_form(port):
        array = quantize(array, port) if port.scale else array
        array = array.transpose(TO_LAST) if port.layout == "NHWC" else array
    return np.asarray(array, order="C")


def matches_spec(array: object, spec: TensorSpec) -> bool:
    """Return whether it is an array of exactly this shape and type, without a mask."""
    return (
        isinstance(array, np.ndarray)
        and (array.shape, str(array.dtype)) == (spec.shape, spec.dtype)
        and not is_masked_array(array)
    )


def is_masked_array(array: np.ndarray) -> bool:
    """Return whether it has a mask, which no network heeds."""
    return isinstance(array, np.ma.MaskedArray)


def describe_value(array: object) -> str:
    """Return what was given, for messages."""
    if not isinstance(array, np.ndarray):
        return f"{type(array).__name__}, not a numpy array"
    mask = (
        " with a mask, which nothing here heeds: fill it first (array.filled(0))"
        if is_masked_array(array)
        else ""
    )
    return f"{'x'.join(map(str, array.shape)) or 'scalar'} {array.dtype}{mask}"


def count_non_finite(array: np.ndarray) -> int:
    """Return how many numbers are NaN or infinite.

    Then the largest or the smallest is, too: to ask those first is far faster.
    """
    if not array.size or (np.isfinite(array.max()) and np.isfinite(array.min())):
        return 0
    return array.size - int(np.isfinite(array).sum())


def from_port(port: Port, array: np.ndarray) -> np.ndarray:
    """Return what a port holds, in PyTorch's form."""
    array = array.transpose(TO_FIRST) if port.layout == "NHWC" else array
    return np.asarray(dequantize(array, port) if port.scale else array, order="C")


def quantize(values: np.ndarray, port: Port) -> np.ndarray:
    """Quantize: `round(x / scale) + zero_point`, half to even, what is out of range at its end."""
    return to_codes(values, port.spec.dtype, port.scale, port.zero_point)


def dequantize(values: np.ndarray, port: Port) -> np.ndarray:
    """Return `(q - zero_point) * scale`, float32."""
    return from_codes(values, port.scale, port.zero_point)


def random_for_port(port: Port, generator: np.random.Generator) -> np.ndarray:
    """Draw values in PyTorch's form: standard normal numbers, or small counts for integers."""
    shape, dtype = torch_form(port)
    kind = np.dtype(dtype)
    return (
        generator.standard_normal(shape) if kind.kind == "f" else generator.integers(0, 2, shape)
    ).astype(kind)


def _expected(port: Port, what: str) -> str:
    shape, dtype = torch_form(port)
    inside = f"{port.spec} {port.spec.dtype}"
    first = f"{'x'.join(map(str, shape)) or 'scalar'} {dtype}"
    return f"{what}, expected {first}" + (
        f" or {inside}{f' {port.layout}' if port.layout else ''}" if inside != first else ""
    )
