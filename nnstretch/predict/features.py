"""Kernels -> a table of numbers: what a latency can depend on, one row a kernel, one column a quantity.

Every column named in `GROWS` never falls when a kernel gets more channels, pixels or inputs; a model that only
rises in these never calls more work faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from nnstretch.protocols import Kernel

Numbers = NDArray[np.float64]

BLOCK = 16
"""Channels that vector units take at once; narrower operators pay for whole blocks."""

GIVEN = (
    "cin", "cout", "hw_in", "hw_out", "kernel", "stride", "groups", "batch", "macs", "read_elements", "write_elements", "weight_elements",
)  # fmt: skip
DERIVED = (
    "one", "inputs", "read_bytes", "write_bytes", "weight_bytes", "moved_bytes", "working_bytes", "cin_per_group", "cout_per_group",
    "padded_macs", "row_macs", "windows", "patches", "taps", "reduction", "rows", "partial",
)  # fmt: skip
COLUMNS = GIVEN + DERIVED
POSITION = {name: i for i, name in enumerate(COLUMNS)}

FIXED = frozenset({"kernel", "stride", "groups", "partial", "one"})
"""What describes a kernel's form, not its size."""
GROWS = frozenset(COLUMNS) - FIXED

given_of = attrgetter(*GIVEN)
shapes_of = attrgetter("shapes_in")
form_of = attrgetter("kind", "op", "epilogue", "kernel")

Form = tuple[str, str, tuple[str, ...], int]
"""Kind, operator, what is fused behind it, side of its window."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Many kernels at once."""

    columns: Numbers
    """One row a column of `COLUMNS`, so that each is contiguous."""
    forms: tuple[Form, ...]
    """The different ones."""
    form: NDArray[np.intp]
    """Which of `forms` each kernel has."""

    def column(self, name: str) -> Numbers:
        return self.columns[POSITION[name]]

    def take(self, rows: NDArray[np.intp]) -> Batch:
        return Batch(self.columns[:, rows], self.forms, self.form[rows])

    def flag(self, name: str) -> Numbers:
        """1 where `op:NAME` is the operator, where `then:NAME` is fused behind it; else 0."""
        what, _, value = name.partition(":")
        held = [(value == op) if what == "op" else (value in epilogue) for _, op, epilogue, _ in self.forms]
        return np.array(held, dtype=np.float64)[self.form]


def table(kernels: Sequence[Kernel], element_bytes: int) -> Numbers:
    """One row a kernel, columns as in `COLUMNS`."""
    return batch(kernels, element_bytes).columns.T


def batch(kernels: Sequence[Kernel], element_bytes: int) -> Batch:
    """Read every kernel once; the rest is arithmetic on whole columns."""
    count = len(kernels)
    given = np.fromiter(chain.from_iterable(map(given_of, kernels)), np.float64, count * len(GIVEN)).reshape(count, len(GIVEN))
    inputs = np.fromiter(map(len, map(shapes_of, kernels)), np.float64, count)
    columns = np.empty((len(COLUMNS), count))
    columns[: len(GIVEN)] = given.T
    derive(columns, np.maximum(inputs, 1.0), element_bytes)
    index: dict[Form, int] = {}
    form = np.fromiter((index.setdefault(key, len(index)) for key in map(form_of, kernels)), np.intp, count)
    return Batch(columns, tuple(index), form)


def derive(columns: Numbers, inputs: Numbers, element_bytes: int) -> None:
    """Fill the columns behind the given ones, in place."""
    cin, cout, _, hw_out, kernel, _, groups, count, macs, read, write, weights = columns[: len(GIVEN)]
    slots = dict(zip(DERIVED, columns[len(GIVEN) :], strict=True))
    cin_per_group, cout_per_group = np.maximum(cin / groups, 1.0), np.maximum(cout / groups, 1.0)
    slots["one"][:] = 1.0
    slots["inputs"][:] = inputs
    slots["read_bytes"][:], slots["write_bytes"][:] = read * element_bytes, write * element_bytes
    slots["weight_bytes"][:] = weights * element_bytes
    slots["moved_bytes"][:] = slots["read_bytes"] + slots["write_bytes"]
    slots["working_bytes"][:] = slots["moved_bytes"] + slots["weight_bytes"]
    slots["cin_per_group"][:], slots["cout_per_group"][:] = cin_per_group, cout_per_group
    slots["windows"][:] = macs / cin_per_group
    slots["patches"][:] = macs / cout_per_group
    slots["row_macs"][:] = slots["patches"] * blocks(cout_per_group)
    slots["padded_macs"][:] = slots["row_macs"] / cin_per_group * blocks(cin_per_group)
    slots["taps"][:] = write * kernel * kernel
    slots["reduction"][:] = macs / np.maximum(cout * hw_out * count, 1.0)
    slots["rows"][:] = hw_out * count
    slots["partial"][:] = (cin % BLOCK > 0) | (cout % BLOCK > 0)


def blocks(channels: Numbers) -> Numbers:
    """Channels, rounded up to whole blocks."""
    return np.ceil(channels / BLOCK) * BLOCK
