"""Kernels of one unit as polynomials in the widths inside it.

A few lowered graphs tell the cost of all others.

Every count of a kernel (channels, elements, MACs, weights) is a product of at most two widths plus
smaller terms, so it is a quadratic polynomial in the channel counts of the unit's groups. The
coefficients are found from differences of whole numbers and checked on further graphs; a unit that
does not fit has no form, and is lowered and priced width by width instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from nnstretch.errors import BadPlan
from nnstretch.graph import Graph
from nnstretch.kernel import Kernel

Array = np.ndarray
COUNTS = (
    "cin",
    "cout",
    "hw_in",
    "hw_out",
    "groups",
    "macs",
    "read_elements",
    "write_elements",
    "weight_elements",
)
FIXED = ("kind", "op", "epilogue", "kernel", "stride", "batch", "layout")
CHECKS = 2
"""Graphs that a form must describe exactly although it was not made from them."""


@dataclass(frozen=True, slots=True)
class Quadratic:
    """base + sum of slope x step + sum of bend x step x step, where steps are counted from an
    origin.
    """

    base: float
    slopes: Mapping[int, float]
    """Variable -> difference per unit; only those that matter."""
    curvatures: Mapping[tuple[int, int], float]

    def at(self, steps: Sequence[Array]) -> Array | float:
        """Evaluate the polynomial at steps from its origin."""
        value: Array | float = self.base
        for i, slope in self.slopes.items():
            value = value + slope * steps[i]
        for (i, j), bend in self.curvatures.items():
            value = value + bend * (steps[i] * steps[j])
        return value


@dataclass(frozen=True)
class KernelPolynomials:
    """One way in which a unit's kernels look, and how their counts follow from its widths."""

    origin: tuple[int, ...]
    """Channels of every group at which it was read off."""
    kernels: tuple[tuple[tuple[Kernel, Mapping[str, Quadratic]], ...], ...]
    """For every set of fusion rules: each kernel as it was at the origin, and its counts."""
    macs: Quadratic
    params: Quadratic

    def steps(self, widths: Sequence[Array]) -> list[Array]:
        """Return the distance of widths from the origin."""
        return [
            np.asarray(width, dtype=np.float64) - base
            for width, base in zip(widths, self.origin, strict=True)
        ]


Lowered = Callable[[tuple[int, ...]], tuple[Graph, tuple[tuple[Kernel, ...], ...]]]
"""Channels of every group -> the graph, and its kernels under every set of rules.

Raises BadPlan where there is none.
"""


def fit_polynomials(
    lowered: Lowered, origin: tuple[int, ...], strides: tuple[int, ...]
) -> KernelPolynomials | None:
    """Return the form around an origin.

    None where the counts are no quadratic polynomials or kernels come and go.
    """
    try:
        points = {(): origin} | {
            pair: offset_point(origin, strides, pair)
            for size in (1, 2)
            for pair in combinations_with_replacement(range(len(origin)), size)
        }
        graphs = {pair: lowered(point) for pair, point in points.items()}
        far = [
            offset_point(
                origin,
                strides,
                tuple(range(len(origin))) * (3 + 2 * check) + (check % len(origin),),
            )
            for check in range(CHECKS)
        ]
        checks = [(point, lowered(point)) for point in far]
    except BadPlan:
        return None
    base = graphs[()][1]
    every = [sample for _, sample in graphs.values()] + [sample for _, (_, sample) in checks]
    if any(not same_structure(base, second) for second in every):
        return None
    form = KernelPolynomials(
        origin,
        tuple(
            tuple(
                (
                    kernel,
                    {
                        name: interpolate_quadratic(
                            {pair: getattr(k[r][n], name) for pair, (_, k) in graphs.items()},
                            strides,
                        )
                        for name in COUNTS
                    },
                )
                for n, kernel in enumerate(sample)
            )
            for r, sample in enumerate(base)
        ),
        interpolate_quadratic({pair: graph.macs for pair, (graph, _) in graphs.items()}, strides),
        interpolate_quadratic({pair: graph.params for pair, (graph, _) in graphs.items()}, strides),
    )
    return (
        form
        if all(predicts_counts(form, point, graph, sample) for point, (graph, sample) in checks)
        else None
    )


def offset_point(
    origin: tuple[int, ...], strides: tuple[int, ...], pair: Sequence[int]
) -> tuple[int, ...]:
    """Return the origin moved by one stride for each axis named in `pair`."""
    return tuple(
        base + jump * pair.count(i)
        for i, (base, jump) in enumerate(zip(origin, strides, strict=True))
    )


def same_structure(first: Sequence[Sequence[Kernel]], two: Sequence[Sequence[Kernel]]) -> bool:
    """Return whether two lists of kernels differ in nothing but counts."""
    return all(
        len(a) == len(b)
        and all(getattr(x, f) == getattr(y, f) for x, y in zip(a, b, strict=True) for f in FIXED)
        for a, b in zip(first, two, strict=True)
    )


def interpolate_quadratic(
    values: Mapping[tuple[int, ...], int], strides: tuple[int, ...]
) -> Quadratic:
    """Interpolate from the origin, one jump, two jumps, and one jump in each of two directions."""
    base = values[()]
    slopes: dict[int, float] = {}
    bends: dict[tuple[int, int], float] = {}
    for i, h in enumerate(strides):
        once, twice = values[i,] - base, values[i, i] - base
        if bend := twice - 2 * once:
            bends[i, i] = bend / (2 * h * h)
        if slope := 4 * once - twice:
            slopes[i] = slope / (2 * h)
        for j in range(i):
            if both := values[j, i] - values[j,] - values[i,] + base:
                bends[j, i] = both / (strides[j] * h)
    return Quadratic(base, slopes, bends)


def predicts_counts(
    form: KernelPolynomials, point: tuple[int, ...], graph: Graph, found: Sequence[Sequence[Kernel]]
) -> bool:
    """Return whether the polynomials give the counts of a graph lowered at a point."""
    steps = form.steps([np.array(width) for width in point])
    if (
        round(float(form.macs.at(steps))) != graph.macs
        or round(float(form.params.at(steps))) != graph.params
    ):
        return False
    return all(
        round(float(counts[name].at(steps))) == getattr(kernel, name)
        for rows, kernels in zip(form.kernels, found, strict=True)
        for (_, counts), kernel in zip(rows, kernels, strict=True)
        for name in COUNTS
    )
