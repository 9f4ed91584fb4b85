"""Kernels -> a table of numbers that a latency can depend on.

Columns in `GROWS` never fall when a kernel gets more channels, pixels or inputs and keeps its
layout; a model that only rises in these never calls more work faster. Whether channels suit a
blocked layout is another matter: 12 may well be slower than 16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
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

_KERNEL_FIELDS = """
    cin cout hw_in hw_out kernel stride groups batch
    macs read_elements write_elements weight_elements
"""
KERNEL_FIELDS = tuple(_KERNEL_FIELDS.split())
_DERIVED = """
    one inputs read_bytes write_bytes weight_bytes moved_bytes working_bytes
    cin_per_group cout_per_group padded_macs row_macs tile_macs square_macs step_macs
    windows patches taps block_writes block_taps step_taps reduction rows
    read_sweeps write_sweeps weight_sweeps lines calls
"""
COLUMNS = KERNEL_FIELDS + tuple(_DERIVED.split())
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

counts_of = attrgetter(*KERNEL_FIELDS)
form_of = attrgetter("kind", "op", "epilogue", "kernel", "layout")

Form = tuple[str, str, tuple[str, ...], int, str]
"""Kind, operator, what is fused behind it, side of its window, layout."""


class FormNumbers(dict[Form, int]):
    """Numbers of forms, in the order in which each is first asked for."""

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

    def input(self, name: str) -> Numbers:
        """Return a column or a flag of all kernels."""
        return self.flag(name) if ":" in name else self.column(name)

    def take(self, rows: NDArray[np.intp]) -> FeatureBatch:
        """Return some of the kernels."""
        return FeatureBatch(self.columns[:, rows], *drop_unused_forms(self.forms, self.form[rows]))

    def flag(self, name: str) -> Numbers:
        """Return 1 for kernels with `op:OPERATOR`, `then:FOLLOWER` or `layout:LAYOUT`, else 0."""
        what, _, value = name.partition(":")
        flags: list[bool] = []
        for _, op, followers, _, layout in self.forms:
            flags.append(value in {"op": (op,), "then": followers, "layout": (layout,)}[what])
        return np.array(flags, dtype=np.float64)[self.form]


def feature_batch(kernels: Sequence[Kernel], element_bytes: int) -> FeatureBatch:
    """Return the features of many kernels; each is read once, the arithmetic is on columns."""
    count = len(kernels)
    columns = np.empty((len(COLUMNS), count))
    counts = np.fromiter(
        chain.from_iterable(map(counts_of, kernels)), np.float64, count * len(KERNEL_FIELDS)
    )
    columns[: len(KERNEL_FIELDS)] = counts.reshape(count, len(KERNEL_FIELDS)).T
    inputs = np.fromiter((len(kernel.shapes_in) for kernel in kernels), np.float64, count)
    widths = np.fromiter(map(output_width, kernels), np.float64, count)
    pixels = columns[POSITION["hw_out"]]
    widths = np.where(widths > 0, np.minimum(widths, pixels), np.sqrt(pixels))
    derive(columns, np.maximum(inputs, 1.0), widths, element_bytes)
    numbers = FormNumbers()
    form = np.fromiter(map(numbers.__getitem__, map(form_of, kernels)), np.intp, count)
    return with_narrow_forms(columns, numbers, form)


def feature_grid(kernel: Kernel, element_bytes: int) -> tuple[FeatureBatch, tuple[int, ...]]:
    """Return the features of a kernel whose counts are arrays, flattened, and their shape."""
    arrays = [np.asarray(value, dtype=np.float64) for value in counts_of(kernel)]
    counts = np.broadcast_arrays(*arrays)
    shape = counts[0].shape
    size = counts[0].size
    columns = np.empty((len(COLUMNS), size))
    columns[: len(KERNEL_FIELDS)] = [count.ravel() for count in counts]
    inputs = np.full(size, max(len(kernel.shapes_in), 1.0))
    width = float(output_width(kernel))
    pixels = columns[POSITION["hw_out"]]
    widths = np.minimum(width, pixels) if width > 0 else np.sqrt(pixels)
    derive(columns, inputs, widths, element_bytes)
    numbers = FormNumbers({form_of(kernel): 0})
    return with_narrow_forms(columns, numbers, np.zeros(size, dtype=np.intp)), shape


def output_width(kernel: Kernel) -> int:
    """Return the pixels in a row of the output, 0 where it is no map."""
    return kernel.shape_out[-1] if len(kernel.shape_out) == 4 else 0


def with_narrow_forms(
    columns: Numbers, numbers: FormNumbers, form: NDArray[np.intp]
) -> FeatureBatch:
    """Return kernels with a layout of its own for narrow blocked convolutions.

    Those of less than a block of input channels read plain tensors: they are another program.
    """
    narrow = columns[POSITION["cin"]] < BLOCK
    for key in [key for key in numbers if key[0] == "conv" and key[-1]]:
        rows = narrow & (form == numbers[key])
        if rows.any():
            form[rows] = numbers[*key[:-1], NARROW]
    return FeatureBatch(columns, *drop_unused_forms(tuple(numbers), form))


def drop_unused_forms(
    forms: tuple[Form, ...], form: NDArray[np.intp]
) -> tuple[tuple[Form, ...], NDArray[np.intp]]:
    """Return forms that a kernel has, and which of them each kernel has."""
    used = np.bincount(form, minlength=len(forms)) > 0
    return tuple(compress(forms, used.tolist())), (np.cumsum(used) - 1)[form]


def derive(columns: Numbers, inputs: Numbers, width: Numbers, element_bytes: int) -> None:
    """Fill the columns behind those of the kernel, in place; `width` is pixels in a row."""
    rows = dict(zip(COLUMNS, columns, strict=True))
    rows["one"][:] = 1.0
    rows["inputs"][:] = inputs
    derive_bytes(rows, element_bytes)
    derive_macs(rows, width)
    derive_outputs(rows, width)
    derive_sweeps(rows, width)


def derive_bytes(rows: Mapping[str, Numbers], element_bytes: int) -> None:
    """Fill the columns of traffic, in place."""
    rows["read_bytes"][:] = rows["read_elements"] * element_bytes
    rows["write_bytes"][:] = rows["write_elements"] * element_bytes
    rows["weight_bytes"][:] = rows["weight_elements"] * element_bytes
    rows["moved_bytes"][:] = rows["read_bytes"] + rows["write_bytes"]
    rows["working_bytes"][:] = rows["moved_bytes"] + rows["weight_bytes"]


def derive_macs(rows: Mapping[str, Numbers], width: Numbers) -> None:
    """Fill the columns of arithmetic, exact and in whole blocks, in place."""
    cin = np.maximum(rows["cin"] / rows["groups"], 1.0)
    cout = np.maximum(rows["cout"] / rows["groups"], 1.0)
    rows["cin_per_group"][:] = cin
    rows["cout_per_group"][:] = cout
    rows["windows"][:] = rows["macs"] / cin
    rows["patches"][:] = rows["macs"] / cout
    rows["row_macs"][:] = rows["patches"] * round_up_to_blocks(cout)
    rows["padded_macs"][:] = rows["row_macs"] / cin * round_up_to_blocks(cin)
    rows["tile_macs"][:] = rows["patches"] * round_up_to_blocks(cout, TILE)
    rows["square_macs"][:] = rows["tile_macs"] / cin * round_up_to_blocks(cin, TILE)
    rows["step_macs"][:] = rows["row_macs"] / width * round_up_to_blocks(width, STEP)


def derive_outputs(rows: Mapping[str, Numbers], width: Numbers) -> None:
    """Fill the columns that count outputs and what each of them takes, in place."""
    kernel = rows["kernel"]
    pixels = rows["hw_out"] * rows["batch"]
    rows["rows"][:] = pixels
    rows["taps"][:] = rows["write_elements"] * kernel * kernel
    rows["block_writes"][:] = pixels * round_up_to_blocks(rows["cout"])
    rows["block_taps"][:] = rows["block_writes"] * kernel * kernel
    rows["step_taps"][:] = rows["block_taps"] / width * round_up_to_blocks(width, STEP)
    outputs = rows["cout"] * rows["hw_out"] * rows["batch"]
    rows["reduction"][:] = rows["macs"] / np.maximum(outputs, 1.0)


def derive_sweeps(rows: Mapping[str, Numbers], width: Numbers) -> None:
    """Fill the columns that count passes over tensors and calls of inner loops, in place."""
    cin = rows["cin_per_group"]
    groups = rows["groups"]
    tiles = round_up_to_blocks(rows["cout_per_group"], TILE) / TILE * groups
    height = rows["hw_out"] / width * rows["batch"]
    rows["read_sweeps"][:] = rows["read_bytes"] * tiles / groups
    rows["write_sweeps"][:] = rows["write_bytes"] * round_up_to_blocks(cin, PANEL) / PANEL
    rows["weight_sweeps"][:] = rows["weight_bytes"] * height
    rows["lines"][:] = height * round_up_to_blocks(rows["cout"]) / BLOCK
    rows["calls"][:] = height * tiles * round_up_to_blocks(cin) / BLOCK


def round_up_to_blocks(values: Numbers, size: int = BLOCK) -> Numbers:
    """Round up to whole blocks."""
    return np.ceil(values / size) * size
