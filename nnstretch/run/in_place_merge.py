"""In-place merges: branches write side by side into the tensor that their merge would write.

A merge is left out only where its file was seen to concatenate, on numbers that differ everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from nnstretch.bundle.manifest import Manifest, Port, Subgraph
from nnstretch.protocols import Backend

PATTERNS = (4099, 4111, 4127, 4129, 4133)
"""How many numbers repeat.

Primes, and the one is taken that no side of a tensor is a multiple of, so that its rows differ.
"""


def in_place_merges(manifest: Manifest, backends: Mapping[str, Backend]) -> dict[str, int]:
    """Return, by merge that need not run, the axis along which its inputs are concatenated.

    Nothing else may read those inputs.
    """
    readers = Counter((*manifest.input_names, *manifest.output_names))
    for sub in manifest.subgraphs:
        readers.update(sub.input_names)
    axes = {}
    for sub in manifest.subgraphs:
        if sub.role == "merge" and all(readers[port.name] == 1 for port in sub.inputs):
            axis = concat_axis(sub)
            if axis is not None and is_plain_concat(sub, backends[sub.name], axis):
                axes[sub.name] = axis
    return axes


def port_form(port: Port) -> tuple[object, ...]:
    """Return what ports must have in common to share one block of memory."""
    return port.spec.dtype, port.layout, port.scale, port.zero_point, len(port.spec.shape)


def concat_axis(sub: Subgraph) -> int | None:
    """Return the one axis along which inputs of one form make up the output, or None."""
    if len(sub.inputs) < 2 or len(sub.outputs) != 1:
        return None
    (end,), dims = sub.outputs, len(sub.outputs[0].spec.shape)
    if len(set(map(port_form, (*sub.inputs, end)))) > 1:
        return None
    for axis in range(dims):
        sizes = [port.spec.shape[axis] for port in sub.inputs]
        alike = {shape_without(port, axis) for port in (*sub.inputs, end)}
        if len(alike) == 1 and sum(sizes) == end.spec.shape[axis] and all(sizes):
            return axis
    return None


def shape_without(port: Port, axis: int) -> tuple[int, ...]:
    """Return a port's shape without one axis."""
    return port.spec.shape[:axis] + port.spec.shape[axis + 1 :]


def is_plain_concat(sub: Subgraph, backend: Backend, axis: int) -> bool:
    """Return whether a file concatenates its inputs; False where it cannot run, and for truth
    values: too few of them differ to tell.
    """
    if any(port.spec.dtype == "bool" for port in sub.inputs):
        return False
    inputs = {port.name: random_pattern(port, number) for number, port in enumerate(sub.inputs)}
    try:
        (merged,) = backend.run(inputs)
    except Exception:
        return False
    return np.array_equal(merged, np.concatenate(list(inputs.values()), axis))


def random_pattern(port: Port, seed: int) -> np.ndarray:
    """Return random numbers of a type's whole range, so that clipping or rounding shows."""
    generator, kind = np.random.default_rng(seed), np.dtype(port.spec.dtype)
    count = next(
        (prime for prime in PATTERNS if all(side % prime for side in port.spec.shape)),
        port.spec.elements,
    )
    if kind.kind in "iu":
        bounds = np.iinfo(kind)
        numbers = generator.integers(bounds.min, bounds.max, count, kind, endpoint=True)
    else:
        bits = np.finfo(kind)
        exponents = generator.integers(bits.minexp // 2, bits.maxexp - 3, count)
        numbers = np.ldexp(generator.standard_normal(count), exponents).astype(kind)
    return np.resize(numbers, port.spec.shape)


def slice_view(whole: np.ndarray, axis: int, begin: int, size: int) -> np.ndarray:
    """Return the view of a part of an array along an axis."""
    return whole[(slice(None),) * axis + (slice(begin, begin + size),)]


def copy_into(target: np.ndarray) -> Callable[[np.ndarray], None]:
    """Return a call that copies a contiguous array of its shape and type to `target`.

    What lies between two gaps is moved as one element: channels of a pixel are few, and numpy takes
    as long for each as for hundreds.
    """
    if target.flags.c_contiguous:

        def whole(source: np.ndarray) -> None:
            np.copyto(target, source, "no")

        return whole
    axis, row_bytes = target.ndim, target.itemsize
    while axis and target.strides[axis - 1] == row_bytes:
        axis -= 1
        row_bytes *= target.shape[axis]
    shape, kind = (*target.shape[:axis], -1), np.dtype(f"V{row_bytes}")
    rows = target.reshape(shape).view(kind)
    assert np.may_share_memory(rows, target), "trailing axes without gaps become one without a copy"

    def by_rows(source: np.ndarray) -> None:
        np.copyto(rows, source.reshape(shape).view(kind), "no")

    return by_rows
