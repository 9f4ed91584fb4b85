"""Kernel counts of one unit as quadratic polynomials in the widths inside it.

Every count of a kernel (channels, elements, MACs, weights) is a product of at most two widths plus
smaller terms. Coefficients come from differences of whole numbers at a few lowered graphs and are
checked on further ones; a unit that they do not describe is lowered width by width instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from nnstretch.errors import BadPlan
from nnstretch.graph import Graph
from nnstretch.kernel import Kernel
from nnstretch.stretch.cost.cost_arrays import Array

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
"""Graphs that polynomials must describe exactly although they were not fitted to them."""

KernelsByRules = tuple[tuple[Kernel, ...], ...]
"""Kernels of one graph, for every set of fusion rules."""
LoweredPoint = tuple[Graph, KernelsByRules]
Point = tuple[int, ...]
"""Channels of every group; or, of a sample, the axes along which it lies one stride off."""
Lower = Callable[[Point], LoweredPoint]
"""Lowers a unit with these channels in its groups. Raises BadPlan where there is none."""


@dataclass(frozen=True, slots=True)
class Quadratic:
    """base + sum of slope x step + sum of curvature x step x step, in steps from an origin."""

    base: float
    slopes: Mapping[int, float]
    """By variable; only those that are not zero."""
    curvatures: Mapping[tuple[int, int], float]

    def at(self, steps: Sequence[Array]) -> Array | float:
        """Evaluate the polynomial, steps by variable."""
        value: Array | float = self.base
        for i, slope in self.slopes.items():
            value = value + slope * steps[i]
        for (i, j), curvature in self.curvatures.items():
            value = value + curvature * (steps[i] * steps[j])
        return value


@dataclass(frozen=True)
class KernelPolynomials:
    """Kernels of a unit, and how their counts follow from its widths."""

    origin: Point
    """Channels of every group at the origin."""
    kernels: tuple[tuple[tuple[Kernel, Mapping[str, Quadratic]], ...], ...]
    """For every set of fusion rules: each kernel at the origin, and its counts."""
    macs: Quadratic
    params: Quadratic

    def steps(self, widths: Sequence[Array]) -> list[Array]:
        """Return the distance of widths from the origin."""
        pairs = zip(widths, self.origin, strict=True)
        return [np.asarray(width, dtype=np.float64) - base for width, base in pairs]


def fit_polynomials(lower: Lower, origin: Point, strides: Point) -> KernelPolynomials | None:
    """Fit polynomials around an origin; None where counts are no quadratics or kernels change."""
    axes = range(len(origin))
    moves: list[Point] = [(), *((i,) for i in axes), *combinations_with_replacement(axes, 2)]
    try:
        samples = {move: lower(offset_point(origin, strides, move)) for move in moves}
        points = [offset_point(origin, strides, far_move(axes, n)) for n in range(CHECKS)]
        checks = [(point, lower(point)) for point in points]
    except BadPlan:
        return None
    base = samples[()][1]
    everything = [*samples.values(), *(sample for _, sample in checks)]
    if not all(same_structure(base, kernels) for _, kernels in everything):
        return None
    form = KernelPolynomials(
        origin,
        fit_kernels(samples, strides),
        fit_quadratic({move: graph.macs for move, (graph, _) in samples.items()}, strides),
        fit_quadratic({move: graph.params for move, (graph, _) in samples.items()}, strides),
    )
    return form if all(predicts_counts(form, *check) for check in checks) else None


def far_move(axes: Sequence[int], number: int) -> Point:
    """Return strides to a point far off: several along each axis, one more along one of them.

    Without axes, as in a unit whose widths are all fixed, it is the origin.
    """
    further = axes[number % len(axes)] if axes else None
    return tuple(axes) * (3 + 2 * number) + (() if further is None else (further,))


def fit_kernels(
    samples: Mapping[Point, LoweredPoint], strides: Point
) -> tuple[tuple[tuple[Kernel, Mapping[str, Quadratic]], ...], ...]:
    """Fit the counts of every kernel, for every set of fusion rules."""
    rows = []
    for r, kernels in enumerate(samples[()][1]):
        row = []
        for n, kernel in enumerate(kernels):
            counts: dict[str, Quadratic] = {}
            for name in COUNTS:
                values = {move: getattr(k[r][n], name) for move, (_, k) in samples.items()}
                counts[name] = fit_quadratic(values, strides)
            row.append((kernel, counts))
        rows.append(tuple(row))
    return tuple(rows)


def offset_point(origin: Point, strides: Point, axes: Point) -> Point:
    """Return the origin moved by one stride for each axis named in `axes`."""
    pairs = enumerate(zip(origin, strides, strict=True))
    return tuple(base + stride * axes.count(i) for i, (base, stride) in pairs)


def same_structure(first: KernelsByRules, second: KernelsByRules) -> bool:
    """Return whether two lists of kernels differ in nothing but counts."""
    for kernels, others in zip(first, second, strict=True):
        if len(kernels) != len(others):
            return False
        for a, b in zip(kernels, others, strict=True):
            if any(getattr(a, name) != getattr(b, name) for name in FIXED):
                return False
    return True


def fit_quadratic(values: Mapping[Point, int], strides: Point) -> Quadratic:
    """Fit to values at the origin and one stride, two strides, and one in each of two axes off."""
    base = values[()]
    slopes: dict[int, float] = {}
    curvatures: dict[tuple[int, int], float] = {}
    for i, stride in enumerate(strides):
        once = values[i,] - base
        twice = values[i, i] - base
        if curvature := twice - 2 * once:
            curvatures[i, i] = curvature / (2 * stride * stride)
        if slope := 4 * once - twice:
            slopes[i] = slope / (2 * stride)
        for j in range(i):
            if mixed := values[j, i] - values[j,] - values[i,] + base:
                curvatures[j, i] = mixed / (strides[j] * stride)
    return Quadratic(base, slopes, curvatures)


def predicts_counts(form: KernelPolynomials, point: Point, sample: LoweredPoint) -> bool:
    """Return whether the polynomials give the counts of a graph lowered at a point."""
    graph, kernels_by_rules = sample
    steps = form.steps([np.array(width) for width in point])
    if round(float(form.macs.at(steps))) != graph.macs:
        return False
    if round(float(form.params.at(steps))) != graph.params:
        return False
    for rows, kernels in zip(form.kernels, kernels_by_rules, strict=True):
        for (_, counts), kernel in zip(rows, kernels, strict=True):
            for name in COUNTS:
                if round(float(counts[name].at(steps))) != getattr(kernel, name):
                    return False
    return True
