"""The space a search covers: meeting points, depths, widths; and what every branch in it costs.

A branch is a front, which reads the merged tensor and so depends on its width, and a rest, which does
not. Fronts are shared by all branches that start at one cut with one width, and their kernels grow
linearly with the width they read. A repeat that is dropped takes its kernels with it, so one priced
graph a width gives every depth. That is how 10^20 plans and more are priced from some hundred graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from nnstretch.errors import BadPlan
from nnstretch.graph import Graph
from nnstretch.plan import Branch
from nnstretch.protocols import Kernel
from nnstretch.stretch.constraints import Limits
from nnstretch.stretch.depth import local_stages, share_out
from nnstretch.stretch.line import Line
from nnstretch.stretch.lower import Stretcher, scaled
from nnstretch.stretch.meetings import meeting_points
from nnstretch.stretch.pricing import Pricer
from nnstretch.stretch.scales import GRANULE, round_to_granule
from nnstretch.structure.cuts import INPUT, Cut
from nnstretch.structure.kernels import kernels

Array = np.ndarray
Cost = Mapping[str, float]
"""Microseconds by processor."""
SAMPLES = (16 * GRANULE, 25 * GRANULE, 49 * GRANULE, 64 * GRANULE)
"""Input widths at which a front is priced to find its straight line, and to check it."""


@dataclass(frozen=True)
class Options:
    """Every branch one segment offers on one processor, at one width of its input."""

    depth: Array
    width: Array
    compute_us: Array
    macs: Array
    params: Array


@dataclass(frozen=True)
class Priced:
    """A graph's work and its time on every processor."""

    compute_us: Cost
    macs: int
    params: int

    def minus(self, other: Priced) -> Priced:
        rest = {p: us - other.compute_us[p] for p, us in self.compute_us.items()}
        return Priced(rest, self.macs - other.macs, self.params - other.params)


@dataclass(frozen=True)
class Rests:
    """All depths and widths of one segment, without their fronts."""

    front_end: Cut | None
    depth: Array
    width: Array
    front_width: Array
    compute_us: Mapping[str, Array]
    macs: Array
    params: Array


@dataclass
class Space:
    """One network's plans on one chip."""

    stretcher: Stretcher
    pricer: Pricer
    processors: tuple[str, ...]
    limits: Limits
    width_steps: int = 10
    priced: dict[tuple[int, ...], Priced | None] = field(default_factory=dict)
    lines: dict[tuple[int, ...], Line | None] = field(default_factory=dict)
    rests: dict[tuple[int, int], Rests] = field(default_factory=dict)

    def cuts(self) -> tuple[Cut, ...]:
        """The input, every cut that ends a block, and the output."""
        return (Cut(INPUT, self.stretcher.graph.inputs[0].name, -1), *meeting_points(self.stretcher))

    def depths(self, start: Cut, end: Cut) -> tuple[int, ...]:
        full = self.stretcher.depth(start, end)
        fewest = max(1, len(local_stages(self.stretcher.stages, start, end)))
        return tuple(range(max(fewest, ceil(self.limits.min_depth * full - 1e-9)), full + 1))

    def widths(self, start: Cut, end: Cut) -> tuple[int, ...]:
        """Evenly spaced shares of the original width, rounded to the hardware's granule; the original's own is the last."""
        full = self.stretcher.piece(start, end, None).width_out
        steps = [self.limits.min_width + (1 - self.limits.min_width) * i / (self.width_steps - 1) for i in range(self.width_steps)]
        rounded = {round_to_granule(full * s) if full >= 2 * GRANULE else max(1, round(full * s)) for s in steps}
        return (*sorted(w for w in rounded if w < full), full)

    def branches(self, start: Cut, end: Cut, processor: str, width_in: int) -> Options | None:
        """None where this stretch cannot be scaled."""
        rests = self.segment(start, end)
        if not len(rests.depth):
            return None
        if rests.front_end is None:
            return self.unsplit(start, end, processor, width_in, rests)
        fronts = {int(w): self.front(start, rests.front_end, int(w), width_in) for w in np.unique(rests.front_width)}
        keep = np.array([fronts[int(w)] is not None for w in rests.front_width])
        if not keep.any():
            return None
        chosen = [found for w, k in zip(rests.front_width, keep, strict=True) if k and (found := fronts[int(w)]) is not None]
        return Options(
            rests.depth[keep],
            rests.width[keep],
            rests.compute_us[processor][keep] + np.array([f.compute_us[processor] for f in chosen]),
            rests.macs[keep] + np.array([f.macs for f in chosen]),
            rests.params[keep] + np.array([f.params for f in chosen]),
        )

    def unsplit(self, start: Cut, end: Cut, processor: str, width_in: int, rests: Rests) -> Options | None:
        """Where everything depends on the input's width, every branch is priced as a whole."""
        pairs = zip(rests.depth.tolist(), rests.width.tolist(), strict=True)
        rows = [(d, w, found) for d, w in pairs if (found := self.whole(start, end, d, w, width_in)) is not None]
        if not rows:
            return None
        return Options(
            np.array([d for d, _, _ in rows]),
            np.array([w for _, w, _ in rows]),
            np.array([f.compute_us[processor] for _, _, f in rows]),
            np.array([f.macs for _, _, f in rows]),
            np.array([f.params for _, _, f in rows]),
        )

    def segment(self, start: Cut, end: Cut) -> Rests:
        key = (start.position, end.position)
        if key not in self.rests:
            front_end = self.front_end(start, end)
            self.rests[key] = self.listed(start, end) if front_end is None else self.split(start, end, front_end)
        return self.rests[key]

    def listed(self, start: Cut, end: Cut) -> Rests:
        pairs = [(d, w) for d in self.depths(start, end) for w in self.widths(start, end)]
        depth, width = np.array([d for d, _ in pairs], dtype=int), np.array([w for _, w in pairs], dtype=int)
        none = np.zeros(len(pairs))
        return Rests(None, depth, width, width, dict.fromkeys(self.processors, none), none, none)

    def split(self, start: Cut, end: Cut, front_end: Cut) -> Rests:
        """Whole branches at the original input, less their fronts; one graph a width gives every depth."""
        width_in = self.stretcher.piece(start, end, None).width_in
        axis = self.stretcher.whole.axis(front_end.value)
        rows: list[tuple[int, int, int, Priced]] = []
        for width in self.widths(start, end):
            graph = self.lowered(start, end, self.stretcher.depth(start, end), width, width_in)
            if graph is None:
                continue
            front_width = graph.specs()[front_end.value].shape[axis]
            front = self.whole(start, front_end, self.stretcher.depth(start, front_end), front_width, width_in)
            if front is not None:
                rows += [(d, width, front_width, rest.minus(front)) for d, rest in self.by_depth(graph, start, end)]
        return Rests(
            front_end,
            np.array([r[0] for r in rows], dtype=int),
            np.array([r[1] for r in rows], dtype=int),
            np.array([r[2] for r in rows], dtype=int),
            {p: np.array([r[3].compute_us[p] for r in rows]) for p in self.processors},
            np.array([r[3].macs for r in rows], dtype=int),
            np.array([r[3].params for r in rows], dtype=int),
        )

    def by_depth(self, graph: Graph, start: Cut, end: Cut) -> list[tuple[int, Priced]]:
        """What a branch costs at every depth: repeats that are dropped take their kernels, MACs and weights with them."""
        stages = local_stages(self.stretcher.stages, start, end)
        owner = {
            n.name: (s, r) for s, stage in enumerate(stages) for r, rep in enumerate(stage.repeats) for u in rep.units for n in u.nodes
        }
        kernel_us: dict[tuple[int, int] | None, dict[str, float]] = {}
        for p, found in self.fused(graph).items():
            self.pricer.learn(found, p)
            for kernel in found:
                copied = kernel.name.rpartition(".to_")[0] if kernel.kind == "reorder" else ""
                key = None if copied in graph.outputs else owner.get(copied or kernel.name)
                row = kernel_us.setdefault(key, dict.fromkeys(self.processors, 0.0))
                row[p] += self.pricer.kernel(kernel, p).latency_us
        sizes = {w.name: w.spec.elements for w in graph.weights if w.trainable}
        counts: dict[tuple[int, int] | None, tuple[int, int]] = {}
        for node in graph.nodes:
            macs, params = counts.get(owner.get(node.name), (0, 0))
            counts[owner.get(node.name)] = (macs + node.macs, params + sum(sizes.pop(name, 0) for name in node.inputs))
        rows: list[tuple[int, Priced]] = []
        for depth in self.depths(start, end):
            kept = {(s, r) for s, n in enumerate(share_out(depth, stages)) for r in range(n)} if stages else set()
            keys = [None, *kept]
            us = {p: sum(kernel_us[k][p] for k in keys if k in kernel_us) for p in self.processors}
            rows.append((depth, Priced(us, sum(counts.get(k, (0, 0))[0] for k in keys), sum(counts.get(k, (0, 0))[1] for k in keys))))
        return rows

    def fused(self, graph: Graph) -> dict[str, tuple[Kernel, ...]]:
        """Its kernels on every processor; processors whose backends fuse alike share them."""
        by_rules = {rules: kernels(graph, rules) for rules in {self.pricer.soc.rules(p) for p in self.processors}}
        return {p: by_rules[self.pricer.soc.rules(p)] for p in self.processors}

    def front(self, start: Cut, end: Cut, width: int, width_in: int) -> Priced | None:
        """The part that reads the merged tensor, at this width of it."""
        key = (start.position, end.position, width)
        if key not in self.lines:
            self.lines[key] = self.line(start, end, width)
        line, depth = self.lines[key], self.stretcher.depth(start, end)
        if line is None or width_in == width or width_in % GRANULE:
            return self.whole(start, end, depth, width, width_in)
        cached = (*key, depth, width_in)
        if cached not in self.priced:
            found = line.kernels(width_in)
            macs = sum(k.macs for k in found[self.processors[0]])
            self.priced[cached] = self.price(found, macs, line.between(*line.params, width_in))
        return self.priced[cached]

    def line(self, start: Cut, end: Cut, width: int) -> Line | None:
        """None where a front is no straight line: checked at a third width. Copies between layouts come and go with the width."""
        if any(self.pricer.soc.rules(p).blocked for p in self.processors):
            return None
        piece = self.stretcher.piece(start, end, None)
        found = piece.channels
        entry = found.shapes[piece.graph.inputs[0].name][0][piece.axis_in]
        roots = found.roots(entry)
        if len(roots) != 1 or roots & found.pinned.keys() or found.quanta[next(iter(roots))] != piece.width_in:
            return None
        samples = [w for w in SAMPLES if w != width][:3]
        graphs = [self.lowered(start, end, self.stretcher.depth(start, end), width, w) for w in samples]
        if any(g is None or g.macs != sum(k.macs for k in kernels(g)) for g in graphs):
            return None
        low, high, check = (g for g in graphs if g is not None)
        line = Line(samples[0], samples[1], self.fused(low), self.fused(high), (low.params, high.params))
        return line if line.fits(samples[2], self.fused(check), check.params) else None

    def whole(self, start: Cut, end: Cut, depth: int, width: int, width_in: int) -> Priced | None:
        """One branch, built and priced; None where it cannot be built."""
        key = (start.position, end.position, width, depth, width_in)
        if key not in self.priced:
            graph = self.lowered(start, end, depth, width, width_in)
            self.priced[key] = None if graph is None else self.price(self.fused(graph), graph.macs, graph.params)
        return self.priced[key]

    def price(self, found: Mapping[str, Sequence[Kernel]], macs: int, params: int) -> Priced:
        return Priced({p: self.pricer.price(found[p], p).latency_us for p in self.processors}, macs, params)

    def lowered(self, start: Cut, end: Cut, depth: int, width: int, width_in: int) -> Graph | None:
        try:
            piece = self.stretcher.piece(start, end, depth if depth != self.stretcher.depth(start, end) else None)
            graph, _ = scaled(piece, Branch(self.processors[0]), width_in, width, "")
        except BadPlan:
            return None
        return graph

    def front_end(self, start: Cut, end: Cut) -> Cut | None:
        """The nearest cut behind which nothing depends on the input's width; None if there is none before `end`."""
        between = (c for c in self.stretcher.cuts if start.position < c.position < end.position)
        return next((c for c in between if self.seals(start, end, c)), None)

    def seals(self, start: Cut, end: Cut, cut: Cut) -> bool:
        stages = local_stages(self.stretcher.stages, start, end)
        if any(r.units[0].start.position < cut.position <= r.end.position for stage in stages for r in stage.repeats):
            return False
        piece = self.stretcher.piece(start, cut, None)
        found = piece.channels
        into = found.roots(found.shapes[piece.graph.inputs[0].name][0][piece.axis_in])
        out = found.roots(found.shapes[piece.graph.outputs[0]][0][piece.axis_out])
        return bool(out) and not (into & out) and self.stretcher.depth(start, cut) <= 1

    def single(self, start: Cut, end: Cut, width_in: int) -> Priced | None:
        """The original layers, reading a tensor of `width_in` channels."""
        full, depth = self.stretcher.piece(start, end, None).width_out, self.stretcher.depth(start, end)
        rests = self.segment(start, end)
        if rests.front_end is None:
            return self.whole(start, end, depth, full, width_in)
        row = np.nonzero((rests.depth == depth) & (rests.width == full))[0]
        if not len(row):
            return self.whole(start, end, depth, full, width_in)
        k = int(row[0])
        front = self.front(start, rests.front_end, int(rests.front_width[k]), width_in)
        if front is None:
            return None
        us = {p: front.compute_us[p] + float(rests.compute_us[p][k]) for p in self.processors}
        return Priced(us, front.macs + int(rests.macs[k]), front.params + int(rests.params[k]))
