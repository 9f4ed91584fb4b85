"""Kernels whose counts grow linearly with the width they read: two widths tell all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nnstretch.protocols import Kernel

COUNTS = ("cin", "cout", "groups", "macs", "read_elements", "write_elements", "weight_elements")


@dataclass(frozen=True)
class Line:
    """A front whose kernels' counts all grow linearly with the width it reads."""

    low_width: int
    high_width: int
    low: Mapping[str, tuple[Kernel, ...]]
    """As each processor's backend fuses them."""
    high: Mapping[str, tuple[Kernel, ...]]
    params: tuple[int, int]

    def between(self, a: int, b: int, width: int) -> int:
        return a + (b - a) * (width - self.low_width) // (self.high_width - self.low_width)

    def shape(self, a: tuple[int, ...], b: tuple[int, ...], width: int) -> tuple[int, ...]:
        return tuple(self.between(x, y, width) for x, y in zip(a, b, strict=True))

    def kernels(self, width: int) -> dict[str, list[Kernel]]:
        return {p: [self.kernel(a, b, width) for a, b in zip(low, self.high[p], strict=True)] for p, low in self.low.items()}

    def kernel(self, a: Kernel, b: Kernel, width: int) -> Kernel:
        counts = {name: self.between(getattr(a, name), getattr(b, name), width) for name in COUNTS}
        shapes_in = tuple(self.shape(x, y, width) for x, y in zip(a.shapes_in, b.shapes_in, strict=True))
        return replace(a, shapes_in=shapes_in, shape_out=self.shape(a.shape_out, b.shape_out, width), **counts)  # type: ignore[arg-type]

    def fits(self, width: int, found: Mapping[str, tuple[Kernel, ...]], params: int) -> bool:
        if any(not len(self.low[p]) == len(self.high[p]) == len(found[p]) for p in found):
            return False
        line = self.kernels(width)
        same = all(a.key == b.key for p in found for a, b in zip(line[p], found[p], strict=True))
        return same and self.between(*self.params, width) == params
