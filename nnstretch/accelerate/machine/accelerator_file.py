"""What a description of an accelerator holds: every number with unit, source and kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated

from nnstretch.chip.instances import DDR
from nnstretch.files.limits import Length, OneOf, Only, Range

UNITS = {
    "count": 1.0,
    "tile": 1.0,
    "cycle": 1.0,
    "lane": 1.0,
    "x": 1.0,
    "position/cycle": 1.0,
    "MAC/cycle": 1.0,
    "B": 1.0,
    "KiB": 1024.0,
    "MiB": 1024.0**2,
    "GiB": 1024.0**3,
    "B/s": 1.0,
    "GB/s": 1e9,
    "TB/s": 1e12,
    "Hz": 1.0,
    "MHz": 1e6,
    "GHz": 1e9,
    "us": 1.0,
    "list": 1.0,
    "bool": 1.0,
}
COUNT, SIZE = ("count", "tile"), ("B", "KiB", "MiB", "GiB")
RATE, CLOCK = ("B/s", "GB/s", "TB/s"), ("Hz", "MHz", "GHz")
UNIT_KINDS = (COUNT, SIZE, RATE, CLOCK)
"""Units of which one may stand for another."""
UNKNOWN = "unknown"
"""Value of a number that nobody published."""
KINDS = ("published", "derived", "assumed")
Text = Annotated[str, Length(1, 400)]
Kind = Annotated[str, OneOf(KINDS)]
AtMost = Annotated[float, Range(0, 1e18)]
MOST_COUNTED = 65536
"""Cores, rows and the like beyond which a description is taken for a mistake."""


@dataclass(frozen=True, slots=True, repr=False)
class Number:
    """A number with its unit, source and kind; `unknown` where nobody published it."""

    value: AtMost | Annotated[str, OneOf((UNKNOWN,))]
    unit: Annotated[str, OneOf(tuple(UNITS))]
    source: Text
    kind: Kind
    note: str = ""

    def __post_init__(self) -> None:
        require_assumed(self.value, self.kind)

    def __repr__(self) -> str:
        """Return value and unit, as refusals name a number."""
        shown = self.value if isinstance(self.value, str) else f"{self.value:g}"
        return f"{shown} {self.unit}"

    @property
    def amount(self) -> float:
        """Return the value in bytes, bytes a second, hertz, microseconds, cycles or pieces."""
        return 0.0 if isinstance(self.value, str) else self.value * UNITS[self.unit]


def require_assumed(value: object, kind: str) -> None:
    """Check the kind of a value that nobody published. Raises ValueError."""
    if value == UNKNOWN and kind != "assumed":
        raise ValueError(f"value is unknown and kind {kind}, an unknown one is assumed")


def of_unit(
    units: tuple[str, ...],
    least: float = 0.0,
    above: float = -1.0,
    most: float | None = None,
    smallest: str = "",
) -> Only:
    """Return the rule that a number has one of some units and a size; whole where it has a most.

    `smallest` is the least amount, in the first unit: what is less makes times without end.
    """

    def holds(number: Number) -> bool:
        if number.unit not in units:
            return False
        if isinstance(number.value, str):
            return True
        if most is not None and (number.value != int(number.value) or number.value > most):
            return False
        if smallest and number.amount < float(smallest):
            return False
        return number.value >= least and number.value > above

    low = f"more than {above:g}" if above >= 0 else f"at least {least:g}"
    high = "" if most is None else f" and at most {most:,.0f}"
    what = "number" if most is None else "whole number"
    end = f", at least {smallest} {units[0]}" if smallest else ""
    return Only(holds, f"a {what} of {low}{high} in {' or '.join(units)}{end}")


Count = Annotated[Number, of_unit(COUNT, 1, most=MOST_COUNTED)]
AtOnce = Annotated[Number, of_unit(("count",), 1, most=MOST_COUNTED)]
Size = Annotated[Number, of_unit(SIZE, above=0, smallest="1")]
Bandwidth = Annotated[Number, of_unit(RATE, above=0, smallest="1")]
Clock = Annotated[Number, of_unit(CLOCK, above=0, smallest="1")]
Cycles = Annotated[Number, of_unit(("cycle",))]
Lanes = Annotated[Number, of_unit(("lane",), above=0, smallest="0.001")]
Positions = Annotated[Number, of_unit(("position/cycle",), above=0, smallest="0.001")]
Macs = Annotated[Number, of_unit(("MAC/cycle",), above=0, smallest="0.001")]
Times = Annotated[Number, of_unit(("x",), 1)]


@dataclass(frozen=True, slots=True)
class Names:
    """Element types with their source."""

    value: Annotated[tuple[Annotated[str, OneOf(("fp32", "fp16", "bf16", "int8"))], ...], Length(1)]
    unit: Annotated[str, OneOf(("list",))]
    source: Text
    kind: Kind
    note: str = ""


@dataclass(frozen=True, slots=True)
class Truth:
    """A property with its source; `unknown` where nobody published it."""

    value: bool | Annotated[str, OneOf((UNKNOWN,))]
    unit: Annotated[str, OneOf(("bool",))]
    source: Text
    kind: Kind
    note: str = ""

    def __post_init__(self) -> None:
        require_assumed(self.value, self.kind)

    @property
    def holds(self) -> bool:
        """Return whether the machine has the property."""
        return self.value is True


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """The matrix unit."""

    rows: Count
    columns: Count
    fill: Cycles
    positions: Positions | None = None
    depthwise: Macs | None = None
    int8_rate: Times | None = None
    whole_tiles: Truth | None = None
    weight_tiles: Count | None = None


@dataclass(frozen=True, slots=True)
class VectorRow:
    """The vector unit."""

    lanes: Lanes
    simple: Cycles
    special: Cycles


@dataclass(frozen=True, slots=True)
class BufferRow:
    """A buffer."""

    size: Size
    bandwidth: Bandwidth
    ports: AtOnce | None = None


@dataclass(frozen=True, slots=True)
class DramRow:
    """Memory outside the chip."""

    bandwidth: Bandwidth
    both_directions: Truth
    size: Size | None = None


@dataclass(frozen=True, slots=True)
class MeshRow:
    """What joins the cores of a cluster."""

    bandwidth: Bandwidth


@dataclass(frozen=True, slots=True)
class AcceleratorFile:
    """A described machine."""

    format: int
    name: Text
    full_name: Text
    clusters: Count
    cores: Count
    clock: Clock
    types: Names
    matrix: MatrixRow
    vector: VectorRow
    local_buffer: BufferRow
    ddr: DramRow
    kernel_launch: Annotated[Number, of_unit(("us",))]
    global_buffer: BufferRow | None = None
    mesh: MeshRow | None = None
    instructions_in_flight: AtOnce | None = None
    fallback: Annotated[str, OneOf((DDR,))] | None = None
    """`ddr`: a layer that does not fit even alone is computed from DDR instead of being refused."""
    about: Annotated[tuple[Text, ...], Length(0, 40)] = field(default=())
    """Published facts that the model does not use, one sentence each."""


def entries(row: object, prefix: str = "") -> Iterator[tuple[str, Number | Names | Truth]]:
    """Yield every number of a description with its dotted name."""
    for entry in fields(row):  # type: ignore[arg-type]
        value = getattr(row, entry.name)
        name = f"{prefix}{entry.name}"
        if isinstance(value, Number | Names | Truth):
            yield name, value
        elif is_dataclass(value):
            yield from entries(value, f"{name}.")
