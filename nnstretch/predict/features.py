"""Kernels -> a table of numbers.

What a latency can depend on, one row a kernel, one column a quantity.

Columns in `GROWS` never fall when a kernel gets more channels, pixels or inputs and keeps its
layout; a model that only rises in these never calls more work faster. Whether channels suit a
blocked layout is another matter: 12 may well be slower than 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from nnstretch.files.limits import OneOf, Only
from nnstretch.kernel import Kernel

Numbers = NDArray[np.float64]

BLOCK = 16
"""Channels that vector units take at once; narrower operators pay for whole blocks."""
TILE = 4 * BLOCK
"""Output channels that stay in registers while the input is read once."""
PANEL = 8 * BLOCK
"""Input channels whose partial sums are added up before outputs are written back."""
STEP = 6
"""Pixels of a row that are computed together."""
NARROW = "narrow"
"""Layout of blocked convolutions that read less than a block."""

GIVEN = (
    "cin",
    "cout",
    "hw_in",
    "hw_out",
    "kernel",
    "stride",
    "groups",
    "batch",
    "macs",
    "read_elements",
    "write_elements",
    "weight_elements",
)
DERIVED = (
    "one",
    "inputs",
    "read_bytes",
    "write_bytes",
    "weight_bytes",
    "moved_bytes",
    "working_bytes",
    "cin_per_group",
    "cout_per_group",
    "padded_macs",
    "row_macs",
    "tile_macs",
    "square_macs",
    "step_macs",
    "windows",
    "patches",
    "taps",
    "block_writes",
    "block_taps",
    "step_taps",
    "reduction",
    "rows",
    "read_sweeps",
    "write_sweeps",
    "weight_sweeps",
    "lines",
    "calls",
)
COLUMNS = GIVEN + DERIVED
FLAGS = ("op", "then", "layout")


def is_flag(name: str) -> bool:
    """Return whether a name is a flag such as `op:NAME`."""
    what, colon, value = name.partition(":")
    return what in FLAGS and bool(colon and value)


Column = Annotated[str, OneOf(COLUMNS)]
FlagOrNothing = Annotated[
    str, Only(lambda name: not name or is_flag(name), "nothing or op:, then: or layout: and a name")
]
ColumnOrFlag = Annotated[
    str, Only(lambda name: name in COLUMNS or is_flag(name), "a column or a flag")
]
POSITION = {name: i for i, name in enumerate(COLUMNS)}

GROWS = frozenset(COLUMNS) - {"stride", "one"}
"""All but the form of a kernel; a wider stride is less work."""

given_of = attrgetter(*GIVEN)
read_of, wrote_of = attrgetter("shapes_in"), attrgetter("shape_out")
form_of = attrgetter("kind", "op", "epilogue", "kernel", "layout")

Form = tuple[str, str, tuple[str, ...], int, str]
"""Kind, operator, what is fused behind it, side of its window, layout."""


class Numbering(dict[Form, int]):
    """Numbers what it is asked for, in the order in which it first is."""

    def __missing__(self, key: Form) -> int:
        return self.setdefault(key, len(self))


@dataclass(frozen=True, slots=True)
class FeatureBatch:
    """Many kernels at once."""

    columns: Numbers
    """One row a column of `COLUMNS`, so that each is contiguous."""
    forms: tuple[Form, ...]
    """The different ones."""
    form: NDArray[np.intp]
    """Which of `forms` each kernel has."""

    def column(self, name: str) -> Numbers:
        """Return one feature of all kernels."""
        return np.asarray(self.columns[POSITION[name]])

    def take(self, rows: NDArray[np.intp]) -> FeatureBatch:
        """Return some of the kernels."""
        return FeatureBatch(self.columns[:, rows], *drop_unused_forms(self.forms, self.form[rows]))

    def flag(self, name: str) -> Numbers:
        """Return 1 where `op:NAME` is the operator, `then:NAME` is fused behind it, `layout:NAME`
        is how it keeps its tensors; else 0.
        """
        what, _, value = name.partition(":")
        flags = [
            value in {"op": (op,), "then": then, "layout": (layout,)}[what]
            for _, op, then, _, layout in self.forms
        ]
        return np.array(flags, dtype=np.float64)[self.form]


def feature_table(kernels: Sequence[Kernel], element_bytes: int) -> Numbers:
    """Return one row a kernel, columns as in `COLUMNS`."""
    return feature_batch(kernels, element_bytes).columns.T


def feature_batch(kernels: Sequence[Kernel], element_bytes: int) -> FeatureBatch:
    """Read every kernel once; the rest is arithmetic on whole columns."""
    count = len(kernels)
    counts = np.fromiter(
        chain.from_iterable(map(given_of, kernels)), np.float64, count * len(GIVEN)
    ).reshape(count, len(GIVEN))
    inputs = np.fromiter(map(len, map(read_of, kernels)), np.float64, count)
    width = np.fromiter(
        [shape[-1] if len(shape) == 4 else 0 for shape in map(wrote_of, kernels)], np.float64, count
    )
    columns = np.empty((len(COLUMNS), count))
    columns[: len(GIVEN)] = counts.T
    pixels = columns[POSITION["hw_out"]]
    derive(
        columns,
        np.maximum(inputs, 1.0),
        np.where(width > 0, np.minimum(width, pixels), np.sqrt(pixels)),
        element_bytes,
    )
    index = Numbering()
    form = np.fromiter(map(index.__getitem__, map(form_of, kernels)), np.intp, count)
    separate_narrow_convolutions(index, form, columns[POSITION["cin"]] < BLOCK)
    return FeatureBatch(columns, *drop_unused_forms(tuple(index), form))


def feature_grid(kernel: Kernel, element_bytes: int) -> tuple[FeatureBatch, tuple[int, ...]]:
    """Return a kernel whose counts are arrays, one by one, and the shape they broadcast to."""
    counts = np.broadcast_arrays(
        *(np.asarray(value, dtype=np.float64) for value in given_of(kernel))
    )
    shape, size = counts[0].shape, counts[0].size
    columns = np.empty((len(COLUMNS), size))
    columns[: len(GIVEN)] = [count.ravel() for count in counts]
    pixels = columns[POSITION["hw_out"]]
    width = float(kernel.shape_out[-1]) if len(kernel.shape_out) == 4 else 0.0
    inputs = np.full(size, max(len(kernel.shapes_in), 1.0))
    derive(
        columns, inputs, np.minimum(width, pixels) if width > 0 else np.sqrt(pixels), element_bytes
    )
    index, form = Numbering(), np.zeros(size, dtype=np.intp)
    index[form_of(kernel)]
    separate_narrow_convolutions(index, form, columns[POSITION["cin"]] < BLOCK)
    return FeatureBatch(columns, *drop_unused_forms(tuple(index), form)), shape


def drop_unused_forms(
    forms: tuple[Form, ...], form: NDArray[np.intp]
) -> tuple[tuple[Form, ...], NDArray[np.intp]]:
    """Return the features without the forms that no kernel has."""
    kept = np.bincount(form, minlength=len(forms)) > 0
    return (
        tuple(one for one, keep in zip(forms, kept.tolist(), strict=True) if keep),
        (np.cumsum(kept) - 1)[form],
    )


def separate_narrow_convolutions(
    index: Numbering, form: NDArray[np.intp], narrow: NDArray[np.bool_]
) -> None:
    """Mark blocked convolutions of less than one block of input channels, which read plain tensors.

    Another program.
    """
    for key in [key for key in index if key[0] == "conv" and key[-1]]:
        rows = narrow & (form == index[key])
        if rows.any():
            form[rows] = index[*key[:-1], NARROW]


def derive(columns: Numbers, inputs: Numbers, width: Numbers, element_bytes: int) -> None:
    """Fill the columns behind the given ones, in place."""
    cin, cout, _, hw_out, kernel, _, groups, count, macs, read, write, weights = columns[
        : len(GIVEN)
    ]
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
    slots["row_macs"][:] = slots["patches"] * round_up_to_blocks(cout_per_group)
    slots["padded_macs"][:] = slots["row_macs"] / cin_per_group * round_up_to_blocks(cin_per_group)
    slots["tile_macs"][:] = slots["patches"] * round_up_to_blocks(cout_per_group, TILE)
    slots["square_macs"][:] = (
        slots["tile_macs"] / cin_per_group * round_up_to_blocks(cin_per_group, TILE)
    )
    slots["step_macs"][:] = slots["row_macs"] / width * round_up_to_blocks(width, STEP)
    slots["taps"][:] = write * kernel * kernel
    slots["block_writes"][:] = hw_out * count * round_up_to_blocks(cout)
    slots["block_taps"][:] = slots["block_writes"] * kernel * kernel
    slots["step_taps"][:] = slots["block_taps"] / width * round_up_to_blocks(width, STEP)
    slots["reduction"][:] = macs / np.maximum(cout * hw_out * count, 1.0)
    slots["rows"][:] = hw_out * count
    tiles, height = round_up_to_blocks(cout_per_group, TILE) / TILE * groups, hw_out / width * count
    slots["read_sweeps"][:] = slots["read_bytes"] * tiles / groups
    slots["write_sweeps"][:] = (
        slots["write_bytes"] * round_up_to_blocks(cin_per_group, PANEL) / PANEL
    )
    slots["weight_sweeps"][:] = slots["weight_bytes"] * height
    slots["lines"][:] = height * round_up_to_blocks(cout) / BLOCK
    slots["calls"][:] = height * tiles * round_up_to_blocks(cin_per_group) / BLOCK


def round_up_to_blocks(values: Numbers, size: int = BLOCK) -> Numbers:
    """Round up to whole blocks."""
    return np.ceil(values / size) * size
