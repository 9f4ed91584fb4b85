"""Groups of operators, their instances, and where each tensor lies on the chip.

A group is a connected set of operators that is computed in equal parts, its instances, one after
another. A chip schedule is instances in order, residencies, and instructions by engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from nnstretch.chip.boxes import Box, box_text

LOCAL, SHARED, DDR = "local", "global", "ddr"
"""Scopes: the cores' local buffers, the cluster's global buffer, memory outside the chip."""
ALL_BUFFERS = "all"
"""Stands for every instruction where limits are told by the buffer that instructions touch."""


@dataclass(frozen=True, slots=True)
class Split:
    """How a group is cut into instances."""

    factor: int
    """Instances; 1 computes the group whole."""
    axis: int = 0
    """Dimension of the group's last output that is cut."""
    operators: int = 0
    """Operators whose output is cut along."""
    axes: Mapping[str, int] = field(default_factory=dict)
    """Cut dimension of each tensor that leaves the group."""
    fits: bool = True
    """False where no factor brings the group into the local buffers."""

    def __str__(self) -> str:
        if not self.fits:
            return "no split fits"
        return "whole" if self.factor == 1 else f"{self.factor} parts of dimension {self.axis}"


@dataclass(frozen=True, slots=True)
class Group:
    """Operators that are computed together, part by part."""

    name: str
    operators: tuple[str, ...]
    """In execution order."""
    split: Split
    peak_bytes: int
    """Live bytes of the whole group, inputs included, weights left out."""

    def __str__(self) -> str:
        return (
            f"{self.name}: {len(self.operators)} operators {self.operators[0]}.."
            f"{self.operators[-1]}, {self.split}, peak {self.peak_bytes} B"
        )


@dataclass(frozen=True, slots=True)
class Instance:
    """One part of a group."""

    name: str
    """`g0.3`: the fourth part of the first group."""
    group: int
    index: int
    boxes: Mapping[str, Box]
    """What it computes of each operator's output."""
    reads: Mapping[str, Box]
    """What it reads of tensors of other groups and of the network's inputs."""
    writes: Mapping[str, Box]
    """What it leaves for others."""

    def __str__(self) -> str:
        outputs = " ".join(f"{name}[{box_text(box)}]" for name, box in self.writes.items())
        inputs = " ".join(f"{name}[{box_text(box)}]" for name, box in self.reads.items())
        return f"{self.name}: {inputs} -> {outputs}"


@dataclass(frozen=True, slots=True)
class Binding:
    """How many cores share each dimension of a tensor, outermost first: `[2, 4]`."""

    factors: tuple[int, ...]
    axes: tuple[int, ...]
    """The tensor's dimension behind each factor."""

    @property
    def cores(self) -> int:
        """Return the cores that hold a share."""
        return prod(self.factors)

    def __str__(self) -> str:
        shown = list(self.factors)
        while shown and shown[-1] == 1:
            shown.pop()
        return str(shown or [1])


@dataclass(frozen=True, slots=True)
class TensorResidency:
    """Where a part of a tensor lies, and from which step to which."""

    tensor: str
    """`g0.3/conv1`: the instance that writes it and the operator, or `in/x`."""
    buffer: str
    address: int
    """In its buffer; of the local buffers, the same one in each core."""
    size_bytes: int
    """Of the local buffers, in each core that holds a share."""
    first_step: int
    last_step: int

    def __str__(self) -> str:
        end = self.address + self.size_bytes
        return (
            f"{self.tensor} {self.buffer} [{self.address}, {end})"
            f" steps {self.first_step}..{self.last_step}"
        )


@dataclass(frozen=True, slots=True)
class Region:
    """Addresses of a buffer that an instruction reads or writes."""

    buffer: str
    start: int
    stop: int

    def share(self, index: int, count: int) -> Region:
        """Return one of several equal shares, to a byte."""
        size = self.stop - self.start
        start = self.start + size * index // count
        return Region(self.buffer, start, self.start + size * (index + 1) // count)


@dataclass(frozen=True, slots=True)
class Instruction:
    """What one engine does for one tile of one step."""

    name: str
    engine: str
    duration_us: float
    reads: tuple[Region, ...] = ()
    writes: tuple[Region, ...] = ()
    kernel: int = 0
    """Number of the kernel that it belongs to."""
    step: int = 0
    """Number of the layer or copy that it belongs to."""
    size_bytes: int = 0
    """Bytes that it moves."""

    def __str__(self) -> str:
        return f"k{self.kernel} {self.engine} {self.name} {self.duration_us:.3f} us"
