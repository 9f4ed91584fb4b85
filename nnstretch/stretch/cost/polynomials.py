"""Kernel counts of one unit as quadratic polynomials in the widths inside it.

Every count of a kernel (channels, elements, MACs, weights) is a product of at most two widths plus
smaller terms. Coefficients come from differences of whole numbers at a few lowered graphs and are
checked on further ones; a unit that they do not describe is lowered width by width instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np

from nnstretch.errors import BadInput, BadPlan
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
    try:
        start = lower(origin)
        samples = SampledCounts(lower, origin, strides, start[1], counts_of(*start))
        coefficients = fit_quadratics(samples)
        points = [offset_point(origin, strides, far_move(axes, n)) for n in range(CHECKS)]
        counts = [samples.at(point) for point in points]
    except (BadPlan, OtherKernels):
        return None
    form = polynomials_of(origin, *start, coefficients)
    steps = [np.array(point, dtype=np.float64) - origin for point in points]
    pairs = zip(steps, counts, strict=True)
    return form if all((coefficients.at(step) == known).all() for step, known in pairs) else None


class OtherKernels(Exception):
    """A graph has kernels that differ from those at the origin in more than counts."""


@dataclass(frozen=True)
class SampledCounts:
    """Counts of a unit at points around an origin."""

    lower: Lower
    origin: Point
    strides: Point
    kernels: KernelsByRules
    base: Array
    """Every count at the origin."""

    def at(self, point: Point) -> Array:
        """Return every count at a point. Raises BadPlan and OtherKernels."""
        graph, kernels = self.lower(point)
        if not same_structure(self.kernels, kernels):
            raise OtherKernels
        counts = counts_of(graph, kernels)
        if len(counts) != len(self.base):
            raise OtherKernels
        return counts

    def moved(self, axes: Point) -> Array:
        """Return what counts gain by a stride for each axis. Raises BadPlan and OtherKernels."""
        return self.at(offset_point(self.origin, self.strides, axes)) - self.base


@dataclass(frozen=True)
class Coefficients:
    """Quadratics of many counts at once."""

    base: Array
    slopes: Array
    """[axis, count]."""
    curvatures: Mapping[tuple[int, int], Array]
    """By pair of axes, of every count."""

    def at(self, steps: Array) -> Array:
        """Evaluate every count, rounded, at one point; steps by axis."""
        values = self.base + steps @ self.slopes
        for (i, j), curvature in self.curvatures.items():
            values = values + curvature * (steps[i] * steps[j])
        return np.rint(values)

    def quadratic(self, columns: slice | int) -> Quadratic:
        """Return the polynomial of one count, or of the sum of some."""
        picked = slice(columns, columns + 1) if isinstance(columns, int) else columns
        slopes = self.slopes[:, picked].sum(axis=1)
        curved = {pair: float(row[picked].sum()) for pair, row in self.curvatures.items()}
        return Quadratic(
            float(self.base[picked].sum()),
            {i: float(slope) for i, slope in enumerate(slopes) if slope},
            {pair: curvature for pair, curvature in curved.items() if curvature},
        )


def counts_of(graph: Graph, kernels_by_rules: KernelsByRules) -> Array:
    """Return every count: those of all kernels, MACs of nodes, elements of trained weights.

    Raises BadInput for one that is beyond 64 bits, as of a layer with a billion channels.
    """
    rows: list[int] = []
    for kernel in chain.from_iterable(kernels_by_rules):
        rows += [getattr(kernel, name) for name in COUNTS]
    rows += [node.macs for node in graph.nodes]
    rows += [weight.spec.elements for weight in graph.weights if weight.trainable]
    try:
        return np.array(rows, dtype=np.int64)
    except OverflowError:
        raise BadInput(
            f"{max(rows):.3g} of something in {graph.name}, its layers at other widths, counts end"
            f" at {np.iinfo(np.int64).max:.3g}"
        ) from None


def fit_quadratics(samples: SampledCounts) -> Coefficients:
    """Fit to one stride along each axis, two along each, and one along both of two axes.

    A count depends on few widths, so a graph that is moved along many axes stands for all that
    share no count: a network of fifty widths needs a few dozen graphs and not a thousand.
    """
    strides = np.array(samples.strides, dtype=np.int64)[:, None]
    count = len(samples.strides), len(samples.base)
    once = np.zeros(count, dtype=np.int64)
    for i in range(count[0]):
        once[i] = samples.moved((i,))
    twice = np.zeros(count, dtype=np.int64)
    depends = once != 0
    sets = [frozenset(np.flatnonzero(row).tolist()) for row in np.unique(depends.T, axis=0)]
    for moves in separate([frozenset({i}) for i in range(count[0])], sets):
        gained = samples.moved(tuple(chain.from_iterable((*move, *move) for move in moves)))
        for (i,) in moves:
            twice[i] = np.where(depends[i], gained, 0)
    curvatures: dict[tuple[int, int], Array] = {}
    for i in np.flatnonzero((twice != 2 * once).any(axis=1)).tolist():
        curvatures[i, i] = (twice[i] - 2 * once[i]) / (2 * strides[i] ** 2)
    pairs = set(map(frozenset, chain.from_iterable(combinations(sorted(s), 2) for s in sets)))
    for moves in separate(sorted(pairs, key=sorted), sets):
        gained = samples.moved(tuple(frozenset().union(*moves)))
        for i, j in map(sorted, moves):
            both = depends[i] & depends[j]
            mixed = np.where(both, gained - once[i] - once[j], 0)
            if mixed.any():
                curvatures[i, j] = mixed / (strides[i] * strides[j])
    return Coefficients(samples.base, (4 * once - twice) / (2 * strides), curvatures)


def separate(
    moves: Sequence[frozenset[int]], sets: Sequence[frozenset[int]]
) -> list[list[frozenset[int]]]:
    """Group moves so that each count is changed by at most one move of a group.

    `sets` are the axes on which some count depends. A move belongs to the counts that depend on all
    of its axes; the other moves of its group must not touch an axis of those counts.
    """
    seen = {move: frozenset().union(*(s for s in sets if move <= s)) for move in moves}
    together: list[list[frozenset[int]]] = []
    for move in moves:
        for group in together:
            if all(twin & seen[move] <= move and move & seen[twin] <= twin for twin in group):
                group.append(move)
                break
        else:
            together.append([move])
    return together


def polynomials_of(
    origin: Point, graph: Graph, kernels_by_rules: KernelsByRules, coefficients: Coefficients
) -> KernelPolynomials:
    """Return the polynomials of every kernel, of all MACs and of all parameters."""
    rows = []
    number = 0
    for kernels in kernels_by_rules:
        row = []
        for kernel in kernels:
            counts = {name: coefficients.quadratic(number + n) for n, name in enumerate(COUNTS)}
            row.append((kernel, counts))
            number += len(COUNTS)
        rows.append(tuple(row))
    params = number + len(graph.nodes)
    macs_of_all = coefficients.quadratic(slice(number, params))
    params_of_all = coefficients.quadratic(slice(params, None))
    return KernelPolynomials(origin, tuple(rows), macs_of_all, params_of_all)


def far_move(axes: Sequence[int], number: int) -> Point:
    """Return strides to a point far off: several along each axis, one more along one of them.

    Without axes, as in a unit whose widths are all fixed, it is the origin.
    """
    further = axes[number % len(axes)] if axes else None
    return tuple(axes) * (3 + 2 * number) + (() if further is None else (further,))


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
