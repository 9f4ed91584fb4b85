"""What lies between two neighbouring block ends, at any width it reads and any width it writes.

A branch is a chain of units, so a few hundred widths of some dozen units price every branch of every segment.
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
from nnstretch.plan import Branch
from nnstretch.protocols import Kernel
from nnstretch.stretch.costs import OUTSIDE, Adapter, Costs, Ends, either, plus, rules_of
from nnstretch.stretch.forms import Array, Form, Quadratic, fitted
from nnstretch.stretch.inside import Inside
from nnstretch.stretch.pieces import Piece, scaled
from nnstretch.stretch.pricing import Pricer
from nnstretch.stretch.rewrite import rewrite


@dataclass
class Unit:
    """One unit of a network, priced on the processors of one chip."""

    piece: Piece
    pricer: Pricer
    processors: tuple[str, ...]
    forms: dict[tuple[object, ...], Form | None] = field(default_factory=dict)
    lowered: dict[tuple[int, int, Ends], tuple[dict[str, float], int, int]] = field(default_factory=dict)

    originals: dict[Ends, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rules = rules_of(self.pricer, self.processors)
        self.inside = Inside(self.piece)

    def costs(self, width_in: Array, width_out: Array, ends: Ends = OUTSIDE) -> Costs:
        """At widths that broadcast against each other; those inside follow as they do in `scaled`."""
        width_in, width_out = np.asarray(width_in, dtype=np.int64), np.asarray(width_out, dtype=np.int64)
        into = self.inside.into(width_in, width_out)
        columns = None if into is None else self.inside.columns(into, width_out)
        if into is None or columns is None:
            return self.one_by_one(width_in, width_out, ends)
        found = self.assembled(columns, into, width_out, ends)
        if into is width_in:
            return found
        if self.passes:
            return self.adapted(found, width_in, into, width_out, ends)
        if self.blocks:  # behind an adapter, maps are in blocks already
            behind = self.assembled(columns, into, width_out, replace(ends, blocked=(True,) * len(self.rules)))
            found = either(into != width_in, behind, found)
        return plus(found, self.adapter.costs(width_in, into, ends=replace(ends, leave=True)))

    @property
    def blocks(self) -> bool:
        """Whether some runtime works on blocks of channels."""
        return any(rules.blocked for rules in self.rules)

    def plain(self, width_in: Array, width_out: Array) -> Array:
        """Where these widths agree, so that what an adapter would cost elsewhere is saved."""
        into = self.inside.into(width_in, width_out)
        shape = np.broadcast_shapes(width_in.shape, width_out.shape)
        if into is not None and into is not width_in:
            return np.broadcast_to(into == width_in, shape)
        columns = None if into is None else self.inside.columns(into, width_out)
        equal = None if columns is None else self.inside.equal(columns)
        return np.zeros(shape, dtype=bool) if equal is None else np.broadcast_to(equal, shape)

    @property
    def passes(self) -> bool:
        """Whether nothing in it has a width of its own, so that a kernel of an adapter before it may go on into it."""
        return self.inside.entry_in_end and len(self.inside.roots) == 1

    def adapted(self, plain: Costs, width_in: Array, into: Array, width_out: Array, ends: Ends) -> Costs:
        """Adapter and unit as one graph where the widths differ."""
        shape = np.broadcast_shapes(plain.macs.shape, width_in.shape)
        outside, inside, out = (np.broadcast_to(w, shape).ravel() for w in (width_in, into, width_out))
        rows = np.flatnonzero(outside != inside)
        blocked = self.blocks
        result = Costs(
            {p: np.broadcast_to(us, shape).copy() for p, us in plain.latency_us.items()},
            np.broadcast_to(plain.macs, shape).copy(),
            np.broadcast_to(plain.params, shape).copy(),
        )
        classes = np.where(blocked, outside % 16 * 16 + out % 16, 0)[rows]
        for one in np.unique(classes).tolist():
            part = rows[classes == one]
            first = (int(outside[part[0]]) % 16 + 64, int(out[part[0]]) % 16 + 1024) if blocked else (64, 1024)
            key = ("adapted", first, ends)
            if key not in self.forms:
                self.forms[key] = fitted(lambda point: self.wrapped(point[0], point[1], ends), first, (16, 16))
            form = self.forms[key]
            found = self.one_by_one(outside[part], out[part], ends) if form is None else self.priced(form, [outside[part], out[part]], part.shape)
            for p in self.processors:
                result.latency_us[p].ravel()[part] = found.latency_us[p]
            result.macs.ravel()[part], result.params.ravel()[part] = found.macs, found.params
        return result

    def wrapped(self, width_in: int, width_out: int, ends: Ends) -> tuple[Graph, tuple[tuple[Kernel, ...], ...]]:
        graph, _ = scaled(self.piece, Branch(""), width_in, width_out, "")
        return graph, ends.kernels(graph, self.rules)

    @cached_property
    def adapter(self) -> Adapter:
        return Adapter(self.piece.axis_in, self.piece.graph.inputs[0].spec, self.pricer, self.processors)

    @cached_property
    def closer(self) -> Adapter:
        """Behind the unit, where a `project` merge wants other channels."""
        spec = self.piece.graph.specs()[self.piece.graph.outputs[0]]
        return Adapter(self.piece.axis_out, spec, self.pricer, self.processors)

    def original(self, ends: Ends) -> tuple[dict[str, float], int]:
        """As it is in the network: microseconds on each processor, and MACs."""
        if ends not in self.originals:
            self.originals[ends] = self.timed(self.piece.graph, ends)
        return self.originals[ends], self.piece.graph.macs

    @cached_property
    def quick(self) -> bool:
        """Whether a few lowered graphs tell all widths."""
        width_in, width_out = np.array([self.piece.width_in]), np.array([self.piece.width_out])
        into = self.inside.into(width_in, width_out)
        return into is not None and self.inside.columns(into, width_out) is not None

    def assembled(self, columns: dict[int, Array], width_in: Array, width_out: Array, ends: Ends) -> Costs:
        """One form for each way the kernels can look: identity or adapted shortcut, layouts of runtimes that work on blocks."""
        shape = np.broadcast_shapes(width_in.shape, width_out.shape)
        equal = self.inside.equal(columns)
        ways = self.ways(columns, equal, shape)
        if ways is None:
            return self.evaluated(columns, width_in, width_out, False, ends) or self.one_by_one(width_in, width_out, ends)
        result = Costs({p: np.empty(shape) for p in self.processors}, np.empty(shape), np.empty(shape))
        flat_in, flat_out = (np.broadcast_to(w, shape).ravel() for w in (width_in, width_out))
        flat = {root: np.broadcast_to(c, shape).ravel() for root, c in columns.items()}
        for rows, same in ways:
            part = {root: c[rows] for root, c in flat.items()}
            found = self.evaluated(part, flat_in[rows], flat_out[rows], same, ends)
            found = found or self.one_by_one(flat_in[rows], flat_out[rows], ends)
            for p in self.processors:
                result.latency_us[p].ravel()[rows] = found.latency_us[p]
            result.macs.ravel()[rows], result.params.ravel()[rows] = found.macs, found.params
        return result

    def ways(self, columns: Mapping[int, Array], equal: Array | None, shape: tuple[int, ...]) -> list[tuple[Array, bool]] | None:
        """Rows that share one form, and whether their shortcut is the identity; None where all share the plain one."""
        blocked = self.blocks
        if not blocked and (equal is None or not equal.any()):
            return None
        keys = [np.broadcast_to(np.zeros(1, dtype=bool) if equal is None else equal, shape).ravel().astype(np.int64)]
        if blocked:
            keys += [np.broadcast_to(np.where(c < 16, c, 16 + c % 16), shape).ravel() for c in columns.values()]
        _, at = np.unique(np.stack(keys), axis=1, return_inverse=True)
        at = at.ravel()
        rows = [np.flatnonzero(at == way) for way in range(int(at.max(initial=-1)) + 1)]
        return [(r, bool(keys[0][r[0]])) for r in rows]

    def evaluated(self, columns: Mapping[int, Array], width_in: Array, width_out: Array, same: bool, ends: Ends) -> Costs | None:
        if not width_in.size or not width_out.size:
            empty = np.empty(np.broadcast_shapes(width_in.shape, width_out.shape))
            return Costs(dict.fromkeys(self.processors, empty), empty, empty)
        form = self.form({root: c.ravel() for root, c in columns.items()}, same, ends)
        if form is None:
            return None
        shape = np.broadcast_shapes(width_in.shape, width_out.shape)
        return self.priced(form, [columns[root] for root in self.inside.roots], shape)

    def priced(self, form: Form, widths: list[Array], shape: tuple[int, ...]) -> Costs:
        steps = form.steps(widths)
        latency: dict[str, Array] = {}
        for p in self.processors:
            total: Array | float = 0.0
            for template, counts in form.kernels[self.rules.index(self.pricer.soc.rules(p))]:
                total = total + self.pricer.grid(template, {name: found.at(steps) for name, found in counts.items()}, p)
            latency[p] = np.broadcast_to(total, shape)
        macs, params = np.rint(form.macs.at(steps)), np.rint(form.params.at(steps))
        return Costs(latency, np.broadcast_to(macs, shape), np.broadcast_to(params, shape))

    def form(self, columns: Mapping[int, Array], same: bool, ends: Ends) -> Form | None:
        """The form of these rows, which all look alike; found from a few lowered graphs when first asked for."""
        blocked = self.blocks
        first = tuple(int(columns[root][0]) for root in self.inside.roots)
        key: tuple[object, ...] = (same, tuple(c if c < 16 else 16 + c % 16 for c in first) if blocked else (), ends)
        if key not in self.forms:
            narrow = blocked and min(first, default=16) < 16
            self.forms[key] = None if narrow else self.fit(first, same, blocked, ends)
        return self.forms[key]

    def fit(self, first: tuple[int, ...], same: bool, blocked: bool, ends: Ends) -> Form | None:
        quanta = self.piece.channels.quanta
        step = [self.inside.widths[r] // quanta[r] for r in self.inside.roots]
        jumps = tuple(lcm(s, 16) if blocked else s * max(1, -(-8 // s)) for s in step)
        if not same:
            far = [i * 20 * j for i, j in enumerate(jumps)]  # no two widths become equal on the way
            where = tuple(c + d for c, d in zip(first if blocked else jumps, far, strict=True))
            return fitted(lambda point: self.at(point, ends), where, jumps)
        entry, (end,) = self.inside.roots.index(self.inside.entry[0]), self.inside.ends
        tied = fitted(
            lambda point: self.at((*point[:entry], point[self.inside.roots.index(end) - (entry < self.inside.roots.index(end))], *point[entry:]), ends),
            tuple(c for i, c in enumerate(first) if i != entry),
            tuple(j for i, j in enumerate(jumps) if i != entry),
        )
        return None if tied is None else untied(tied, entry, first[entry])

    def at(self, point: tuple[int, ...], ends: Ends) -> tuple[Graph, tuple[tuple[Kernel, ...], ...]]:
        """The unit with this many channels in each group."""
        scales = dict.fromkeys(self.piece.channels.pinned, Fraction(1))
        scales |= {root: Fraction(c, self.inside.widths[root]) for root, c in zip(self.inside.roots, point, strict=True)}
        graph = rewrite(self.piece.graph, self.piece.channels, scales)
        return graph, ends.kernels(graph, self.rules)

    def one_by_one(self, width_in: Array, width_out: Array, ends: Ends = OUTSIDE) -> Costs:
        """Lowered and priced width by width."""
        shape = np.broadcast_shapes(width_in.shape, width_out.shape)
        pairs = zip(np.broadcast_to(width_in, shape).ravel().tolist(), np.broadcast_to(width_out, shape).ravel().tolist(), strict=True)
        rows = [self.pair(*pair, ends) for pair in pairs]
        latency = {p: np.array([row[0].get(p, np.inf) for row in rows]).reshape(shape) for p in self.processors}
        return Costs(latency, np.array([r[1] for r in rows]).reshape(shape), np.array([r[2] for r in rows]).reshape(shape))

    def pair(self, width_in: int, width_out: int, ends: Ends = OUTSIDE) -> tuple[dict[str, float], int, int]:
        if (width_in, width_out, ends) not in self.lowered:
            try:
                graph, _ = scaled(self.piece, Branch(""), width_in, width_out, "")
            except BadPlan:
                self.lowered[width_in, width_out, ends] = ({}, 0, 0)
            else:
                self.lowered[width_in, width_out, ends] = (self.timed(graph, ends), graph.macs, graph.params)
        return self.lowered[width_in, width_out, ends]

    def timed(self, graph: Graph, ends: Ends) -> dict[str, float]:
        found = ends.kernels(graph, self.rules)
        return {p: self.pricer.price(found[self.rules.index(self.pricer.soc.rules(p))], p).latency_us for p in self.processors}


def untied(form: Form, entry: int, origin: int) -> Form:
    """A form without the entry's own width, as one over all groups: what it read is the end's width already."""
    def renumbered(q: Quadratic) -> Quadratic:
        new = [i + (i >= entry) for i in range(len(form.origin))]
        return Quadratic(q.base, {new[i]: s for i, s in q.slopes.items()}, {(new[i], new[j]): b for (i, j), b in q.bends.items()})

    rows = tuple(tuple((k, {n: renumbered(q) for n, q in counts.items()}) for k, counts in found) for found in form.kernels)
    where = (*form.origin[:entry], origin, *form.origin[entry:])
    return replace(form, origin=where, kernels=rows, macs=renumbered(form.macs), params=renumbered(form.params))
