"""Replacement of weights inside a sub-graph's file, at byte offsets, without parsing the file."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnstretch.errors import BadInput
from nnstretch.pipeline import Parameter, ParameterGroup
from nnstretch.run.tensor_io import count_non_finite, describe_value, matches_spec


def read_weights(group: ParameterGroup, data: bytes) -> dict[str, np.ndarray]:
    """Return the weights of a group from a sub-graph's file."""
    return {parameter.name: read_weight(parameter, data) for parameter in group.parameters}


def read_weight(parameter: Parameter, data: bytes) -> np.ndarray:
    """Return one parameter from a file's bytes."""
    stored = np.dtype(parameter.spec.dtype).newbyteorder("<")
    array = np.frombuffer(
        data, stored, int(np.prod(parameter.spec.shape)), parameter.offset_bytes
    ).reshape(parameter.spec.shape)
    return array.astype(parameter.spec.dtype)


def patch_weights(group: ParameterGroup, data: bytes, arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return a sub-graph's file with some or all parameters of a group replaced.

    Raises BadInput for what does not fit, for nothing, and for NaN or infinity where the weight
    that is replaced has none.
    """
    where = f"parameter group {group.name}"
    if not isinstance(arrays, Mapping) or not arrays:
        raise BadInput(f"no parameters, {where}, give arrays by name")
    known = {parameter.name: parameter for parameter in group.parameters}
    changed = bytearray(data)
    for name, array in arrays.items():
        if name not in known:
            raise BadInput(
                f"unknown parameter {str(name)[:80]!r}, {where}, it has {', '.join(known)}"
            )
        parameter = known[name]
        if not matches_spec(array, parameter.spec):
            raise BadInput(
                f"parameter {name} is {describe_value(array)}, {where}, expected {parameter.spec}"
                f" {parameter.spec.dtype}"
            )
        plain = np.asarray(array, order="C")
        if (
            plain.dtype.kind == "f"
            and (wrong := count_non_finite(plain))
            and not count_non_finite(read_weight(parameter, data))
        ):
            raise BadInput(
                f"parameter {name} has {wrong} of {plain.size} numbers that are NaN or infinite,"
                f" {where}, what it replaces has none"
            )
        stored = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
        changed[parameter.offset_bytes : parameter.offset_bytes + parameter.spec.size_bytes] = (
            stored.tobytes()
        )
    return bytes(changed)
