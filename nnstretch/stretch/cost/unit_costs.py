"""Costs of one unit, the layers between two neighbouring block ends, at any widths.

A branch is a chain of units, so a few hundred widths of some dozen units price every branch of
every segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from nnstretch.stretch.cost.adapter_costs import AdapterCosts
from nnstretch.stretch.cost.cost_arrays import Array, CostArrays, add_costs, select_costs
from nnstretch.stretch.cost.layout_costs import (
    BLOCK,
    PLAIN_BOUNDARY,
    BoundaryLayouts,
    LayoutModel,
)
from nnstretch.stretch.cost.unit_lowering import LoweredUnit
from nnstretch.stretch.cost.unit_polynomials import UnitPolynomials
from nnstretch.stretch.cost.unit_widths import UnitWidths
from nnstretch.stretch.lowering.section import Section

NARROW = -1
"""Class of widths below a block, which look like no others and are lowered one by one."""


@dataclass
class UnitCostModel:
    """Costs of one unit of a network on the processors of one chip."""

    section: Section
    layouts: LayoutModel
    originals: dict[BoundaryLayouts, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.groups = UnitWidths(self.section)
        self.lowered = LoweredUnit(self.section, self.layouts)
        self.polynomials = UnitPolynomials(self.lowered, self.groups)

    def costs(
        self, width_in: Array, width_out: Array, ends: BoundaryLayouts = PLAIN_BOUNDARY
    ) -> CostArrays:
        """Return the costs at broadcast widths, with an adapter where the unit needs one."""
        width_in = np.asarray(width_in, dtype=np.int64)
        width_out = np.asarray(width_out, dtype=np.int64)
        entry = self.groups.entry_width(width_in, width_out)
        columns = None if entry is None else self.groups.group_widths(entry, width_out)
        if entry is None or columns is None:
            return self.lowered.costs(width_in, width_out, ends)
        cost = self.evaluate(columns, entry, width_out, ends)
        if entry is width_in:
            return cost
        if self.keeps_widths:
            return self.with_adapters(cost, width_in, entry, width_out, ends)
        if self.layouts.blocked:  # behind an adapter, maps are in blocks already
            behind_adapter = self.layouts.behind_adapter(ends.leave)
            adapted = self.evaluate(columns, entry, width_out, behind_adapter)
            cost = select_costs(entry != width_in, adapted, cost)
        return add_costs(cost, self.adapter.costs(width_in, entry, replace(ends, leave=True)))

    def needs_no_adapter(self, width_in: Array, width_out: Array) -> Array:
        """Return where widths agree, so that an adapter is saved."""
        entry = self.groups.entry_width(width_in, width_out)
        shape = np.broadcast_shapes(width_in.shape, width_out.shape)
        if entry is not None and entry is not width_in:
            return np.broadcast_to(entry == width_in, shape)
        columns = None if entry is None else self.groups.group_widths(entry, width_out)
        identity = None if columns is None else self.groups.shortcut_is_identity(columns)
        return np.broadcast_to(np.zeros(1, dtype=bool) if identity is None else identity, shape)

    @property
    def keeps_widths(self) -> bool:
        """Return whether the unit has no width of its own, so that adapters fuse into it."""
        return self.groups.entry_in_end and len(self.groups.roots) == 1

    @cached_property
    def can_follow_adapter(self) -> bool:
        """Return whether an adapter and the unit are priced as one graph at every width."""
        if not self.keeps_widths or self.layouts.blocked:
            return False
        return self.polynomials.with_adapter(1, 1, PLAIN_BOUNDARY) is not None

    @cached_property
    def has_polynomials(self) -> bool:
        """Return whether group widths follow from the unit's input and output widths."""
        width_in = np.array([self.section.width_in])
        width_out = np.array([self.section.width_out])
        entry = self.groups.entry_width(width_in, width_out)
        return entry is not None and self.groups.group_widths(entry, width_out) is not None

    @cached_property
    def adapter(self) -> AdapterCosts:
        """Return the costs of adapters at the unit's entry."""
        spec = self.section.graph.inputs[0].spec
        return AdapterCosts(self.section.axis_in, spec, self.layouts)

    @cached_property
    def exit_adapter(self) -> AdapterCosts:
        """Return the costs of adapters behind the unit, before a `project` merge."""
        spec = self.section.graph.specs()[self.section.graph.outputs[0]]
        return AdapterCosts(self.section.axis_out, spec, self.layouts)

    def original(self, ends: BoundaryLayouts) -> tuple[dict[str, float], int]:
        """Return the unit as it is in the network: us by processor, and MACs."""
        if ends not in self.originals:
            self.originals[ends] = self.layouts.estimate_graph(self.section.graph, ends)
        return self.originals[ends], self.macs

    @cached_property
    def macs(self) -> int:
        """Return the MACs of the unit as it is in the network."""
        return self.section.graph.macs

    def evaluate(
        self, columns: dict[int, Array], entry: Array, width_out: Array, ends: BoundaryLayouts
    ) -> CostArrays:
        """Return costs without an adapter at group widths (`columns`, by root)."""
        shape = np.broadcast_shapes(entry.shape, width_out.shape)
        identity = self.groups.shortcut_is_identity(columns)
        classes = self.polynomials.row_classes(columns, identity, shape)
        if classes is None:
            return self.evaluate_class(columns, entry, width_out, False, ends)
        flat_in = np.broadcast_to(entry, shape).ravel()
        flat_out = np.broadcast_to(width_out, shape).ravel()
        flat = {root: np.broadcast_to(column, shape).ravel() for root, column in columns.items()}
        result = CostArrays.zeros(self.layouts.processors, shape)
        for rows, same in classes:
            part = {root: column[rows] for root, column in flat.items()}
            costs = self.evaluate_class(part, flat_in[rows], flat_out[rows], same, ends)
            result.assign(rows, costs)
        return result

    def evaluate_class(
        self,
        columns: Mapping[int, Array],
        entry: Array,
        width_out: Array,
        identity: bool,
        ends: BoundaryLayouts,
    ) -> CostArrays:
        """Return costs of rows that share polynomials; by lowering each where there are none."""
        shape = np.broadcast_shapes(entry.shape, width_out.shape)
        if not entry.size or not width_out.size:
            return CostArrays.zeros(self.layouts.processors, shape)
        form = self.polynomials.at(columns, identity, ends)
        if form is None:
            return self.lowered.costs(entry, width_out, ends)
        widths = [columns[root] for root in self.groups.roots]
        return self.layouts.estimate_polynomials(form, widths, shape)

    def costs_behind_adapter(
        self, width_in: Array, width_out: Array, ends: BoundaryLayouts = PLAIN_BOUNDARY
    ) -> CostArrays:
        """Return costs of an adapter and a unit that keeps widths as one graph, also of equal ones.

        What the unit begins with may be fused into the adapter.
        """
        shape = np.broadcast_shapes(width_in.shape, width_out.shape)
        nothing = CostArrays.zeros(self.layouts.processors, shape)
        never = np.full(shape, -1)
        return self.with_adapters(nothing, width_in, never, width_out, ends)

    def with_adapters(
        self,
        plain: CostArrays,
        width_in: Array,
        entry: Array,
        width_out: Array,
        ends: BoundaryLayouts,
    ) -> CostArrays:
        """Return costs of adapter and unit as one graph where the input is not `entry` wide."""
        shape = np.broadcast_shapes(plain.macs.shape, width_in.shape)
        outside = np.broadcast_to(width_in, shape).ravel()
        out = np.broadcast_to(width_out, shape).ravel()
        rows = np.flatnonzero(outside != np.broadcast_to(entry, shape).ravel())
        result = plain.broadcast_copy(shape)
        classes = self.layouts.pair_residues(outside, out)[rows]
        if self.layouts.blocked:
            classes[np.minimum(outside, out)[rows] < BLOCK] = NARROW
        for number in np.unique(classes).tolist():
            part = rows[classes == number]
            form = None
            if number != NARROW:
                form = self.polynomials.with_adapter(int(outside[part[0]]), int(out[part[0]]), ends)
            if form is None:
                costs = self.lowered.costs(outside[part], out[part], ends)
            else:
                widths = [outside[part], out[part]]
                costs = self.layouts.estimate_polynomials(form, widths, part.shape)
            result.assign(part, costs)
        return result
