"""What lies between two neighbouring block ends, at any width it reads and any width it writes.

A branch is a chain of units, so a few hundred widths of some dozen units price every branch of
every segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import lcm

import numpy as np

from nnstretch.errors import BadPlan
from nnstretch.graph import Graph
from nnstretch.kernel import Kernel
from nnstretch.plan import Branch
from nnstretch.stretch.cost.cost_arrays import (
    OUTSIDE,
    AdapterCosts,
    BoundaryLayouts,
    CostArrays,
    add_costs,
    layout_rules,
    select_costs,
)
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.cost.polynomials import Array, KernelPolynomials, Quadratic, fit_polynomials
from nnstretch.stretch.cost.unit_widths import UnitWidths
from nnstretch.stretch.lowering.resize_graph import resize_graph
from nnstretch.stretch.lowering.section import Section, resize_section


@dataclass
class UnitCostModel:
    """One unit of a network, priced on the processors of one chip."""

    section: Section
    cost_model: CostModel
    processors: tuple[str, ...]
    forms: dict[tuple[object, ...], KernelPolynomials | None] = field(default_factory=dict)
    lowered: dict[tuple[int, int, BoundaryLayouts], tuple[dict[str, float], int, int]] = field(
        default_factory=dict
    )

    originals: dict[BoundaryLayouts, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rules = layout_rules(self.cost_model, self.processors)
        self.inside = UnitWidths(self.section)

    def costs(
        self, width_in: Array, width_out: Array, ends: BoundaryLayouts = OUTSIDE
    ) -> CostArrays:
        """Return the costs at widths that broadcast against each other.

        Those inside follow as they do in `scaled`.
        """
        width_in, width_out = (
            np.asarray(width_in, dtype=np.int64),
            np.asarray(width_out, dtype=np.int64),
        )
        into = self.inside.entry_width(width_in, width_out)
        columns = None if into is None else self.inside.group_widths(into, width_out)
        if into is None or columns is None:
            return self.lower_each(width_in, width_out, ends)
        cost = self.evaluate_all(columns, into, width_out, ends)
        if into is width_in:
            return cost
        if self.keeps_widths:
            return self.adapt_and_lower(cost, width_in, into, width_out, ends)
        if self.blocks:  # behind an adapter, maps are in blocks already
            behind = self.evaluate_all(
                columns, into, width_out, replace(ends, blocked=(True,) * len(self.rules))
            )
            cost = select_costs(into != width_in, behind, cost)
        return add_costs(cost, self.adapter.costs(width_in, into, ends=replace(ends, leave=True)))

    @property
    def blocks(self) -> bool:
        """Return whether some runtime works on blocks of channels."""
        return any(rules.blocked for rules in self.rules)

    def is_identity_shortcut(self, width_in: Array, width_out: Array) -> Array:
        """Return where these widths agree, so that an adapter is saved."""
        into = self.inside.entry_width(width_in, width_out)
        shape = np.broadcast_shapes(width_in.shape, width_out.shape)
        if into is not None and into is not width_in:
            return np.broadcast_to(into == width_in, shape)
        columns = None if into is None else self.inside.group_widths(into, width_out)
        equal = None if columns is None else self.inside.shortcut_is_identity(columns)
        return np.zeros(shape, dtype=bool) if equal is None else np.broadcast_to(equal, shape)

    @property
    def keeps_widths(self) -> bool:
        """Return whether nothing in it has a width of its own, so that a kernel of an adapter
        before it may go on into it.
        """
        return self.inside.entry_in_end and len(self.inside.roots) == 1

    def adapt_and_lower(
        self,
        plain: CostArrays,
        width_in: Array,
        into: Array,
        width_out: Array,
        ends: BoundaryLayouts,
    ) -> CostArrays:
        """Return adapter and unit as one graph where the widths differ."""
        shape = np.broadcast_shapes(plain.macs.shape, width_in.shape)
        outside, inside, out = (
            np.broadcast_to(w, shape).ravel() for w in (width_in, into, width_out)
        )
        rows = np.flatnonzero(outside != inside)
        blocked = self.blocks
        result = CostArrays(
            {p: np.broadcast_to(us, shape).copy() for p, us in plain.latency_us.items()},
            np.broadcast_to(plain.macs, shape).copy(),
            np.broadcast_to(plain.params, shape).copy(),
        )
        classes = np.where(blocked, outside % 16 * 16 + out % 16, 0)[rows]
        for index in np.unique(classes).tolist():
            part = rows[classes == index]
            first = (
                (int(outside[part[0]]) % 16 + 64, int(out[part[0]]) % 16 + 1024)
                if blocked
                else (64, 1024)
            )
            key = ("adapted", first, ends)
            if key not in self.forms:
                self.forms[key] = fit_polynomials(
                    lambda point: self.lower_with_adapters(point[0], point[1], ends),
                    first,
                    (16, 16),
                )
            form = self.forms[key]
            part_cost = (
                self.lower_each(outside[part], out[part], ends)
                if form is None
                else self.estimate_rows(form, [outside[part], out[part]], part.shape)
            )
            for p in self.processors:
                result.latency_us[p].ravel()[part] = part_cost.latency_us[p]
            result.macs.ravel()[part], result.params.ravel()[part] = (
                part_cost.macs,
                part_cost.params,
            )
        return result

    def lower_with_adapters(
        self, width_in: int, width_out: int, ends: BoundaryLayouts
    ) -> tuple[Graph, tuple[tuple[Kernel, ...], ...]]:
        """Lower the unit at a pair of widths.

        Return its graph and its kernels for each rule set.
        """
        graph, _ = resize_section(self.section, Branch(""), width_in, width_out, "")
        return graph, ends.kernels(graph, self.rules)

    @cached_property
    def adapter(self) -> AdapterCosts:
        """Return the costs of a 1x1 convolution at the unit's entry."""
        return AdapterCosts(
            self.section.axis_in,
            self.section.graph.inputs[0].spec,
            self.cost_model,
            self.processors,
        )

    @cached_property
    def exit_adapter(self) -> AdapterCosts:
        """Return the adapter behind the unit, where a `project` merge wants other channels."""
        spec = self.section.graph.specs()[self.section.graph.outputs[0]]
        return AdapterCosts(self.section.axis_out, spec, self.cost_model, self.processors)

    def original(self, ends: BoundaryLayouts) -> tuple[dict[str, float], int]:
        """Return the unit as it is in the network: microseconds on each processor, and MACs."""
        if ends not in self.originals:
            self.originals[ends] = self.estimate_pair(self.section.graph, ends)
        return self.originals[ends], self.section.graph.macs

    @cached_property
    def has_polynomials(self) -> bool:
        """Return whether a few lowered graphs tell all widths."""
        width_in, width_out = np.array([self.section.width_in]), np.array([self.section.width_out])
        into = self.inside.entry_width(width_in, width_out)
        return into is not None and self.inside.group_widths(into, width_out) is not None

    def evaluate_all(
        self, columns: dict[int, Array], width_in: Array, width_out: Array, ends: BoundaryLayouts
    ) -> CostArrays:
        """Evaluate one form for each way the kernels can look.

        Identity or adapted shortcut, layouts of runtimes that work on blocks.
        """
        shape = np.broadcast_shapes(width_in.shape, width_out.shape)
        equal = self.inside.shortcut_is_identity(columns)
        ways = self.row_classes(columns, equal, shape)
        if ways is None:
            return self.evaluate_rows(columns, width_in, width_out, False, ends) or self.lower_each(
                width_in, width_out, ends
            )
        result = CostArrays(
            {p: np.empty(shape) for p in self.processors}, np.empty(shape), np.empty(shape)
        )
        flat_in, flat_out = (np.broadcast_to(w, shape).ravel() for w in (width_in, width_out))
        flat = {root: np.broadcast_to(c, shape).ravel() for root, c in columns.items()}
        for rows, same in ways:
            part = {root: c[rows] for root, c in flat.items()}
            part_cost = self.evaluate_rows(part, flat_in[rows], flat_out[rows], same, ends)
            part_cost = part_cost or self.lower_each(flat_in[rows], flat_out[rows], ends)
            for p in self.processors:
                result.latency_us[p].ravel()[rows] = part_cost.latency_us[p]
            result.macs.ravel()[rows], result.params.ravel()[rows] = (
                part_cost.macs,
                part_cost.params,
            )
        return result

    def row_classes(
        self, columns: Mapping[int, Array], equal: Array | None, shape: tuple[int, ...]
    ) -> list[tuple[Array, bool]] | None:
        """Return rows that share one form, and whether their shortcut is the identity.

        None where all share the plain one.
        """
        blocked = self.blocks
        if not blocked and (equal is None or not equal.any()):
            return None
        keys = [
            np.broadcast_to(np.zeros(1, dtype=bool) if equal is None else equal, shape)
            .ravel()
            .astype(np.int64)
        ]
        if blocked:
            keys += [
                np.broadcast_to(np.where(c < 16, c, 16 + c % 16), shape).ravel()
                for c in columns.values()
            ]
        _, at = np.unique(np.stack(keys), axis=1, return_inverse=True)
        at = at.ravel()
        rows = [np.flatnonzero(at == way) for way in range(int(at.max(initial=-1)) + 1)]
        return [(r, bool(keys[0][r[0]])) for r in rows]

    def evaluate_rows(
        self,
        columns: Mapping[int, Array],
        width_in: Array,
        width_out: Array,
        same: bool,
        ends: BoundaryLayouts,
    ) -> CostArrays | None:
        """Return cost pairs of widths by polynomials, None where no polynomial describes the
        unit.
        """
        if not width_in.size or not width_out.size:
            empty = np.empty(np.broadcast_shapes(width_in.shape, width_out.shape))
            return CostArrays(dict.fromkeys(self.processors, empty), empty, empty)
        form = self.polynomials_of({root: c.ravel() for root, c in columns.items()}, same, ends)
        if form is None:
            return None
        shape = np.broadcast_shapes(width_in.shape, width_out.shape)
        return self.estimate_rows(form, [columns[root] for root in self.inside.roots], shape)

    def estimate_rows(
        self, form: KernelPolynomials, widths: list[Array], shape: tuple[int, ...]
    ) -> CostArrays:
        """Estimate the kernels that polynomials give at arrays of group widths."""
        steps = form.steps(widths)
        latency: dict[str, Array] = {}
        for p in self.processors:
            total: Array | float = 0.0
            for template, counts in form.kernels[self.rules.index(self.cost_model.soc.rules(p))]:
                total = total + self.cost_model.estimate_grid(
                    template, {name: column.at(steps) for name, column in counts.items()}, p
                )
            latency[p] = np.broadcast_to(total, shape)
        macs, params = np.rint(form.macs.at(steps)), np.rint(form.params.at(steps))
        return CostArrays(latency, np.broadcast_to(macs, shape), np.broadcast_to(params, shape))

    def polynomials_of(
        self, columns: Mapping[int, Array], same: bool, ends: BoundaryLayouts
    ) -> KernelPolynomials | None:
        """Return the form of these rows, which all look alike.

        Found from a few lowered graphs when first asked for.
        """
        blocked = self.blocks
        first = tuple(int(columns[root][0]) for root in self.inside.roots)
        key: tuple[object, ...] = (
            same,
            tuple(c if c < 16 else 16 + c % 16 for c in first) if blocked else (),
            ends,
        )
        if key not in self.forms:
            narrow = blocked and min(first, default=16) < 16
            self.forms[key] = (
                None if narrow else self.fit_polynomials_at(first, same, blocked, ends)
            )
        return self.forms[key]

    def fit_polynomials_at(
        self, first: tuple[int, ...], same: bool, blocked: bool, ends: BoundaryLayouts
    ) -> KernelPolynomials | None:
        """Fit kernel polynomials around the first widths, None when the counts are no
        quadratics.
        """
        quanta = self.section.channels.granularity
        step = [self.inside.widths[r] // quanta[r] for r in self.inside.roots]
        jumps = tuple(lcm(s, 16) if blocked else s * max(1, -(-8 // s)) for s in step)
        if not same:
            far = [i * 20 * j for i, j in enumerate(jumps)]  # no two widths become equal on the way
            where = tuple(c + d for c, d in zip(first if blocked else jumps, far, strict=True))
            return fit_polynomials(lambda point: self.graph_at(point, ends), where, jumps)
        entry, (end,) = self.inside.roots.index(self.inside.entry[0]), self.inside.ends
        tied = fit_polynomials(
            lambda point: self.graph_at(
                (
                    *point[:entry],
                    point[self.inside.roots.index(end) - (entry < self.inside.roots.index(end))],
                    *point[entry:],
                ),
                ends,
            ),
            tuple(c for i, c in enumerate(first) if i != entry),
            tuple(j for i, j in enumerate(jumps) if i != entry),
        )
        return None if tied is None else untie_entry_width(tied, entry, first[entry])

    def graph_at(
        self, point: tuple[int, ...], ends: BoundaryLayouts
    ) -> tuple[Graph, tuple[tuple[Kernel, ...], ...]]:
        """Return the unit with this many channels in each group."""
        scales = dict.fromkeys(self.section.channels.pinned, Fraction(1))
        scales |= {
            root: Fraction(c, self.inside.widths[root])
            for root, c in zip(self.inside.roots, point, strict=True)
        }
        graph = resize_graph(self.section.graph, self.section.channels, scales)
        return graph, ends.kernels(graph, self.rules)

    def lower_each(
        self, width_in: Array, width_out: Array, ends: BoundaryLayouts = OUTSIDE
    ) -> CostArrays:
        """Lower and estimate width by width."""
        shape = np.broadcast_shapes(width_in.shape, width_out.shape)
        pairs = zip(
            np.broadcast_to(width_in, shape).ravel().tolist(),
            np.broadcast_to(width_out, shape).ravel().tolist(),
            strict=True,
        )
        rows = [self.pair(*pair, ends) for pair in pairs]
        latency = {
            p: np.array([row[0].get(p, np.inf) for row in rows]).reshape(shape)
            for p in self.processors
        }
        return CostArrays(
            latency,
            np.array([r[1] for r in rows]).reshape(shape),
            np.array([r[2] for r in rows]).reshape(shape),
        )

    def pair(
        self, width_in: int, width_out: int, ends: BoundaryLayouts = OUTSIDE
    ) -> tuple[dict[str, float], int, int]:
        """Return the cost of one pair of widths by lowering it.

        Us by processor, MACs, parameters.
        """
        if (width_in, width_out, ends) not in self.lowered:
            try:
                graph, _ = resize_section(self.section, Branch(""), width_in, width_out, "")
            except BadPlan:
                self.lowered[width_in, width_out, ends] = ({}, 0, 0)
            else:
                self.lowered[width_in, width_out, ends] = (
                    self.estimate_pair(graph, ends),
                    graph.macs,
                    graph.params,
                )
        return self.lowered[width_in, width_out, ends]

    def estimate_pair(self, graph: Graph, ends: BoundaryLayouts) -> dict[str, float]:
        """Estimate one lowered unit on every processor, us."""
        kernels_by_rules = ends.kernels(graph, self.rules)
        return {
            p: (
                self.cost_model.estimate_total(
                    kernels_by_rules[self.rules.index(self.cost_model.soc.rules(p))], p
                ).latency_us
            )
            for p in self.processors
        }


def untie_entry_width(form: KernelPolynomials, entry: int, origin: int) -> KernelPolynomials:
    """Return a form without the entry's own width, as one over all groups.

    What it read is the end's width already.
    """

    def renumbered(q: Quadratic) -> Quadratic:
        new = [i + (i >= entry) for i in range(len(form.origin))]
        return Quadratic(
            q.base,
            {new[i]: s for i, s in q.slopes.items()},
            {(new[i], new[j]): b for (i, j), b in q.curvatures.items()},
        )

    rows = tuple(
        tuple((k, {n: renumbered(q) for n, q in counts.items()}) for k, counts in kernel)
        for kernel in form.kernels
    )
    where = (*form.origin[:entry], origin, *form.origin[entry:])
    return replace(
        form, origin=where, kernels=rows, macs=renumbered(form.macs), params=renumbered(form.params)
    )
