"""Tensors of the Open Inference Protocol: types, and values as JSON or as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from nnstretch.bundle.manifest import Port
from nnstretch.bundle.pipeline_view import torch_spec
from nnstretch.errors import BadInput, one_line
from nnstretch.files.limits import shorten
from nnstretch.serve.number_lists import NumberList, holds_numbers, holds_truth, text_of_numbers

DATATYPES: Mapping[str, str] = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
"""The protocol's name of each of numpy's types that it has."""
KINDS = {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}
"""What kinds of JSON values a kind of tensor takes."""


def datatype_of(port: Port) -> str:
    """Return the protocol's type of a port. Raises BadInput where it has none."""
    dtype = torch_spec(port).dtype
    if dtype not in DATATYPES:
        raise BadInput(f"{port.name} is {dtype}, serve, the protocol has {', '.join(DATATYPES)}")
    return DATATYPES[dtype]


def tensor_of_bytes(port: Port, data: memoryview) -> np.ndarray:
    """Return the tensor of a port from its bytes, without a copy. Raises BadInput."""
    spec = torch_spec(port)
    dtype = np.dtype(spec.dtype)
    size_bytes = prod(spec.shape) * dtype.itemsize
    if len(data) != size_bytes:
        raise BadInput(f"input {port.name} has {len(data)} bytes, needed are {size_bytes}")
    return np.frombuffer(data, dtype).reshape(spec.shape)


def tensor_of_json(port: Port, data: object) -> np.ndarray:
    """Return the tensor of a port from its numbers in a list, flat or nested. Raises BadInput."""
    spec = torch_spec(port)
    values = values_of_json(port, data)
    dtype = np.dtype(spec.dtype)
    assert isinstance(data, list | NumberList)
    if values.dtype.kind == "O" and dtype.kind == "f":
        values = floats_of(values)
    if values.dtype.kind not in KINDS[dtype.kind] or (dtype.kind != "b" and holds_truth(data)):
        raise BadInput(f"data of input {port.name} are no numbers of {datatype_of(port)}")
    if values.shape != spec.shape and values.shape != (prod(spec.shape),):
        shape = one_line(list(values.shape))
        raise BadInput(f"data of input {port.name} has shape {shape}, needed is {list(spec.shape)}")
    check_range(port, values, dtype)
    with np.errstate(over="ignore"):
        return values.astype(dtype).reshape(spec.shape)


def values_of_json(port: Port, data: object) -> np.ndarray:
    """Return the numbers of a list, of whatever type and shape. Raises BadInput for no list."""
    spec = torch_spec(port)
    if isinstance(data, NumberList):
        try:
            return data.numbers(spec.shape)
        except ValueError as error:
            reason = one_line(error)[:200]
            raise BadInput(
                f"data of input {port.name} are not {spec} numbers in a list, {reason}"
            ) from None
    if type(data) is not list:
        raise BadInput(f"data of input {port.name} is {shorten(data)}, needed is a list of numbers")
    try:
        if not holds_numbers(data):
            raise BadInput(f"data of input {port.name} are no numbers of {datatype_of(port)}")
        return np.asarray(data)
    except (ValueError, RecursionError):
        raise BadInput(f"data of input {port.name} is ragged, needed are {spec} numbers") from None


def floats_of(values: np.ndarray) -> np.ndarray:
    """Return whole numbers that no integer type holds as real ones, or as they are where one is
    greater than any of these.
    """
    try:
        return values.astype(np.float64)
    except OverflowError:
        return values


def check_range(port: Port, values: np.ndarray, dtype: np.dtype[Any]) -> None:
    """Check that whole numbers fit their type. Raises BadInput."""
    if dtype.kind not in "iu":
        return
    bounds = np.iinfo(dtype)
    least, most = int(values.min()), int(values.max())
    if least < bounds.min or most > bounds.max:
        worst = least if least < bounds.min else most
        raise BadInput(f"data of input {port.name} has {worst}, {datatype_of(port)} has no such")


def json_of_tensor(name: str, array: np.ndarray) -> str:
    """Return a tensor's numbers as a flat JSON list. Raises BadInput for NaN and infinity."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise BadInput(f"output {name} has NaN or infinity, JSON has neither, ask for binary data")
    return text_of_numbers(array)
