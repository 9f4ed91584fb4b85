"""Tensors at the edge of a network: PyTorch's form outside, what its ports say inside.

Outside, a quantized port has float32 and a channels-last map is NCHW, so one array fits every
bundle of a network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import isfinite
from typing import Any, TypeVar

import numpy as np

from nnstretch.bundle.manifest import Port
from nnstretch.bundle.pipeline_view import torch_spec
from nnstretch.bundle.quantization import from_codes, to_codes
from nnstretch.errors import BadInput, one_line
from nnstretch.files.limits import shorten
from nnstretch.graph import TensorSpec

NAMED = 8
"""Names that a message lists."""
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


Tensor = TypeVar("Tensor")


def to_ports(ports: Sequence[Port], arrays: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Return an array for every port, by name, as the port holds it. Raises BadInput."""
    return {port.name: to_port(port, arrays[port.name]) for port in ports}


def check_values(ports: Sequence[Port], values: object) -> None:
    """Raise BadInput unless `values` are arrays by name, as `to_ports` returns them."""
    if type(values) is not dict:
        raise BadInput(f"values is {shorten(values)}, session, give a dictionary of arrays by name")
    for port in ports:
        array = values.get(port.name)
        if not matches_spec(array, port.spec):
            needed = f"expected {port.spec} {port.spec.dtype}"
            raise BadInput(f"input {port.name} of values, {needed}, got {describe_value(array)}")


def from_ports(ports: Sequence[Port], values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return an array for every port, by name, in PyTorch's form."""
    return {port.name: from_port(port, values[port.name]) for port in ports}


def single_or_named(tensors: dict[str, Tensor]) -> Tensor | dict[str, Tensor]:
    """Return a single tensor as it is, several by name: what a caller gets."""
    return next(iter(tensors.values())) if len(tensors) == 1 else tensors


def to_port(port: Port, array: object, what: str = "") -> np.ndarray:
    """Return `array`, in PyTorch's form or the port's, as the port holds it.

    Where both forms are one (float32 with as many channels as rows and columns) it counts as
    PyTorch's. `what`: its name in messages. Raises BadInput for another shape or type, a mask, and
    for NaN or infinity.
    """
    outside = torch_spec(port)
    is_outside = matches_spec(array, outside)
    if not is_outside and not matches_spec(array, port.spec):
        raise BadInput(f"{_expected(port, what)}, got {describe_value(array)}")
    values = np.asarray(array)  # a subclass may calculate otherwise
    if values.dtype.kind == "f" and (count := count_non_finite(values)):
        raise BadInput(
            f"{_expected(port, what)}, got {count} of {values.size} numbers that are NaN or"
            " infinite"
        )
    if is_outside:
        values = quantize(values, port) if port.scale else values
        values = values.transpose(TO_LAST) if port.layout == "NHWC" else values
    return np.asarray(values, order="C")


def copy_if_shared(array: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Return an array whose values stay what they are when the owner of `source` writes on it."""
    return array.copy() if np.may_share_memory(array, source) else array


def matches_spec(array: object, spec: TensorSpec) -> bool:
    """Return whether it is an array of exactly this shape and type, without a mask."""
    return (
        isinstance(array, np.ndarray)
        and array.shape == spec.shape
        and array.dtype == spec.dtype  # the text of a dtype takes 3 us
        and not is_masked_array(array)
    )


def is_masked_array(array: np.ndarray) -> bool:
    """Return whether it has a mask, which no network heeds."""
    return isinstance(array, np.ma.MaskedArray)


def describe_value(array: object) -> str:
    """Return a value's type and shape, for messages."""
    if not isinstance(array, np.ndarray):
        return f"{type(array).__name__}, not a numpy array"
    mask = (
        " with a mask, which nothing here heeds: fill it first (array.filled(0))"
        if is_masked_array(array)
        else ""
    )
    return f"{'x'.join(map(str, array.shape)) or 'scalar'} {array.dtype}{mask}"


def describe_names(names: Iterable[object]) -> str:
    """Return a caller's names for messages, the first few of many."""
    listed = [one_line(n)[:60] if type(n) is str else shorten(n) for n in islice(names, NAMED + 1)]
    several = ", ".join(listed[:NAMED]) or "none"
    return several if len(listed) <= NAMED else f"{several} and more"


def count_non_finite(array: np.ndarray) -> int:
    """Return how many numbers are NaN or infinite."""
    # then the largest or the smallest is, too: to ask those first is far faster
    if not array.size or (isfinite(array.max()) and isfinite(array.min())):
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
    """Draw values in PyTorch's form: standard normal numbers, or 0 and 1 for integers."""
    spec = torch_spec(port)
    kind = np.dtype(spec.dtype)
    if kind.kind == "f":
        return generator.standard_normal(spec.shape).astype(kind)
    return generator.integers(0, 2, spec.shape).astype(kind)


def _expected(port: Port, what: str) -> str:
    outside = torch_spec(port)
    named, inside = f"{outside} {outside.dtype}", f"{port.spec} {port.spec.dtype}"
    described = f"{what or f'input {port.name}'}, expected {named}"
    if inside == named:
        return described
    return f"{described} or {inside}{f' {port.layout}' if port.layout else ''}"
