"""Polynomials of one unit: one set for each way in which its kernels can look.

Kernels look different where a shortcut needs no adapter, and, on runtimes with blocked maps, for
widths that differ modulo the block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, lcm

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.cost.layout_costs import BLOCK, BoundaryLayouts, LayoutModel
from nnstretch.stretch.cost.polynomials import (
    KernelPolynomials,
    LoweredPoint,
    Point,
    Quadratic,
    fit_polynomials,
)
from nnstretch.stretch.cost.unit_lowering import LoweredUnit
from nnstretch.stretch.cost.unit_widths import UnitWidths
from nnstretch.stretch.lowering.channel_allocation import CHANNEL_MULTIPLE
from nnstretch.stretch.lowering.resize_graph import resize_graph

ADAPTED_ORIGIN = 64, 1024
"""Widths in and out around which a unit is fitted together with the adapter before it."""
SPREAD = 20
"""Strides between the origins of groups, so that no two widths become equal on the way.

All begin above the fixed channels that a shortcut may meet."""


@dataclass
class UnitPolynomials:
    """Kernel polynomials of one unit over the widths of its channel groups."""

    unit: LoweredUnit
    groups: UnitWidths
    forms: dict[tuple[object, ...], KernelPolynomials | None] = field(default_factory=dict)

    @property
    def layouts(self) -> LayoutModel:
        """Return the layouts of the processors' runtimes."""
        return self.unit.layouts

    def row_classes(
        self, columns: Mapping[int, Array], identity: Array | None, shape: tuple[int, ...]
    ) -> list[tuple[Array, bool]] | None:
        """Return rows that share polynomials, and whether their shortcut is the identity.

        `columns` are group widths by root. None where all rows share those with an adapter.
        """
        if not self.layouts.blocked and (identity is None or not identity.any()):
            return None
        same = np.zeros(1, dtype=bool) if identity is None else identity
        keys = [np.broadcast_to(same, shape).ravel().astype(np.int64)]
        if self.layouts.blocked:
            for column in columns.values():
                residues = self.layouts.residue_or_width(column)
                keys.append(np.broadcast_to(residues, shape).ravel())
        _, number = np.unique(np.stack(keys), axis=1, return_inverse=True)
        number = number.ravel()
        classes = []
        for n in range(int(number.max(initial=-1)) + 1):
            rows = np.flatnonzero(number == n)
            classes.append((rows, bool(keys[0][rows[0]])))
        return classes

    def at(
        self, columns: Mapping[int, Array], identity: bool, ends: BoundaryLayouts
    ) -> KernelPolynomials | None:
        """Return the polynomials of rows of one class; None where none describe the unit."""
        first = tuple(int(columns[root].flat[0]) for root in self.groups.roots)
        blocked = self.layouts.blocked
        residues = tuple(c if c < BLOCK else BLOCK + c % BLOCK for c in first) if blocked else ()
        key = identity, residues, ends
        if key not in self.forms:
            is_narrow = blocked and min(first, default=BLOCK) < BLOCK
            self.forms[key] = None if is_narrow else self.fit(first, identity, ends)
        return self.forms[key]

    def fit(self, first: Point, identity: bool, ends: BoundaryLayouts) -> KernelPolynomials | None:
        """Fit around the first widths of a class."""
        strides = self.strides()
        if identity:
            return self.fit_identity(first, strides, ends)
        base = first if self.layouts.blocked else strides
        fixed = max((self.groups.fixed_width(main) for _, main in self.groups.junctions), default=0)
        pairs = enumerate(zip(base, strides, strict=True))
        origin = tuple(
            width + (i * SPREAD + ceil(fixed / stride)) * stride for i, (width, stride) in pairs
        )
        return fit_polynomials(lambda point: self.lower(point, ends), origin, strides)

    def strides(self) -> Point:
        """Return steps of group widths at which every channel group stays whole."""
        granularity = self.groups.section.channels.granularity
        strides = []
        for root in self.groups.roots:
            step = self.groups.widths[root] // granularity[root]
            plain = step * max(1, -(-CHANNEL_MULTIPLE // step))
            strides.append(lcm(step, BLOCK) if self.layouts.blocked else plain)
        return tuple(strides)

    def fit_identity(
        self, first: Point, strides: Point, ends: BoundaryLayouts
    ) -> KernelPolynomials | None:
        """Fit where the entry is as wide as the main path, so that no adapter is in the shortcut.

        None where that is so at single widths.
        """
        joined = self.groups.joined_roots
        if joined is None:
            return None
        entry, main = map(self.groups.roots.index, joined)
        source = main - (entry < main)

        def lower(point: Point) -> LoweredPoint:
            return self.lower((*point[:entry], point[source], *point[entry:]), ends)

        form = fit_polynomials(lower, without(first, entry), without(strides, entry))
        return None if form is None else insert_variable(form, entry, first[entry])

    def with_adapter(
        self, width_in: int, width_out: int, ends: BoundaryLayouts
    ) -> KernelPolynomials | None:
        """Return polynomials of adapter and unit as one graph, over (width in, width out).

        None where there are none, or no adapter can be built.
        """
        if not self.groups.section.graph.inputs[0].spec.is_floating:
            return None
        origin = ADAPTED_ORIGIN
        if self.layouts.blocked:
            origin = origin[0] + width_in % BLOCK, origin[1] + width_out % BLOCK
        key = "adapted", origin, ends
        if key not in self.forms:

            def lower(point: Point) -> LoweredPoint:
                graph = self.unit.graph(*point)
                return graph, self.layouts.kernels(graph, ends)

            self.forms[key] = fit_polynomials(lower, origin, (BLOCK, BLOCK))
        return self.forms[key]

    def lower(self, point: Point, ends: BoundaryLayouts) -> LoweredPoint:
        """Return the unit with this many channels in each group, and its kernels."""
        section = self.groups.section
        scales = dict.fromkeys(section.channels.pinned, Fraction(1))
        for root, channels in zip(self.groups.roots, point, strict=True):
            scales[root] = Fraction(channels, self.groups.widths[root])
        graph = resize_graph(section.graph, section.channels, scales)
        return graph, self.layouts.kernels(graph, ends)


def without(point: Point, axis: int) -> Point:
    """Return a point without one axis."""
    return point[:axis] + point[axis + 1 :]


def insert_variable(form: KernelPolynomials, axis: int, origin: int) -> KernelPolynomials:
    """Return polynomials with one more variable, on which they do not depend."""

    def renumbered(quadratic: Quadratic) -> Quadratic:
        new = [i + (i >= axis) for i in range(len(form.origin))]
        slopes = {new[i]: slope for i, slope in quadratic.slopes.items()}
        curvatures = {(new[i], new[j]): c for (i, j), c in quadratic.curvatures.items()}
        return Quadratic(quadratic.base, slopes, curvatures)

    kernels = []
    for rows in form.kernels:
        renamed = [(k, {n: renumbered(q) for n, q in counts.items()}) for k, counts in rows]
        kernels.append(tuple(renamed))
    return replace(
        form,
        origin=(*form.origin[:axis], origin, *form.origin[axis:]),
        kernels=tuple(kernels),
        macs=renumbered(form.macs),
        params=renumbered(form.params),
    )
