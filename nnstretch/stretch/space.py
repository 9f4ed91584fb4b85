"""The space a search covers: meeting points, depths, widths; and what every branch in it costs.

A branch's cost splits into a front, which reads the merged tensor and so depends on its width, and a
rest, which does not; fronts are shared by all branches that start at one cut with one width, so the
space of 10^20 plans and more is priced from some thousand small graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np

from nnstretch.errors import BadPlan
from nnstretch.graph import Graph
from nnstretch.plan import Branch
from nnstretch.protocols import Kernel
from nnstretch.stretch.constraints import Limits
from nnstretch.stretch.depth import local_stages
from nnstretch.stretch.lower import Stretcher, scaled
from nnstretch.stretch.pricing import Pricer, key_of
from nnstretch.stretch.scales import GRANULE, round_to_granule
from nnstretch.structure.cuts import INPUT, Cut
from nnstretch.structure.kernels import kernels

Array = np.ndarray
LARGEST_GRID = 32
"""Meeting points considered at most; beyond, those that end a stage or a resolution come first."""


@dataclass(frozen=True)
class Options:
    """Every branch one segment offers on one processor, at one width of its input."""

    depth: Array
    width: Array
    compute_us: Array
    macs: Array
    params: Array


Row = tuple[tuple[Kernel, ...], int, int]
"""Kernels, MACs and parameters of one graph."""
COUNTS = ("cin", "cout", "groups", "macs", "read_elements", "write_elements", "weight_elements")


@dataclass(frozen=True)
class Rest:
    """A branch behind its front."""

    front_depth: int
    front_width: int
    compute_us: Mapping[str, float]
    macs: int
    params: int


@dataclass(frozen=True)
class Line:
    """Every count of every kernel grows linearly with the width that a front reads."""

    low_width: int
    high_width: int
    low: Row
    high: Row

    def between(self, a: int, b: int, width: int) -> int:
        return a + (b - a) * (width - self.low_width) // (self.high_width - self.low_width)

    def kernels(self, width: int) -> list[Kernel]:
        return [
            replace(a, **{name: self.between(getattr(a, name), getattr(b, name), width) for name in COUNTS})  # type: ignore[arg-type]
            for a, b in zip(self.low[0], self.high[0], strict=True)
        ]

    def fits(self, width: int, row: Row) -> bool:
        if not len(self.low[0]) == len(self.high[0]) == len(row[0]):
            return False
        same = all(key_of(a) == key_of(b) for a, b in zip(self.kernels(width), row[0], strict=True))
        return same and self.between(self.low[1], self.high[1], width) == row[1] and self.between(self.low[2], self.high[2], width) == row[2]

    def at(self, width: int, processor: str, pricer: Pricer) -> tuple[float, int, int]:
        cost_us = sum(pricer.kernel(kernel, processor).latency_us for kernel in self.kernels(width))
        return cost_us, self.between(self.low[1], self.high[1], width), self.between(self.low[2], self.high[2], width)


@dataclass
class Space:
    """One network's plans on one chip."""

    stretcher: Stretcher
    pricer: Pricer
    processors: tuple[str, ...]
    limits: Limits
    width_steps: int = 10
    fronts: dict[tuple[object, ...], tuple[float, int, int]] = field(default_factory=dict)
    rests: dict[tuple[object, ...], Rest | None] = field(default_factory=dict)
    front_cuts: dict[tuple[int, int], Cut | None] = field(default_factory=dict)
    lines: dict[tuple[object, ...], Line | None] = field(default_factory=dict)

    def cuts(self) -> tuple[Cut, ...]:
        """The input, every cut that ends a block with weighted work, and the output."""
        start = Cut(INPUT, self.stretcher.graph.inputs[0].name, -1)
        return (start, *meeting_points(self.stretcher))

    def depths(self, start: Cut, end: Cut) -> tuple[int, ...]:
        full = self.stretcher.depth(start, end)
        fewest = max(1, len(local_stages(self.stretcher.stages, start, end)))
        return tuple(range(max(fewest, ceil(self.limits.min_depth * full - 1e-9)), full + 1))

    def widths(self, start: Cut, end: Cut) -> tuple[int, ...]:
        """Evenly spaced shares of the original width, rounded to the hardware's granule."""
        full = self.stretcher.piece(start, end, None).width_out
        steps = (self.limits.min_width + (1 - self.limits.min_width) * i / (self.width_steps - 1) for i in range(self.width_steps))
        return tuple(sorted({min(full, round_to_granule(full * s)) if full >= 2 * GRANULE else max(1, round(full * s)) for s in steps}))

    def branches(self, start: Cut, end: Cut, processor: str, width_in: int) -> Options | None:
        """None where this stretch cannot be scaled or has no work to share."""
        rows: list[tuple[int, int, float, int, int]] = []
        for depth in self.depths(start, end):
            for width in self.widths(start, end):
                cost = self.branch(start, end, processor, depth, width, width_in)
                if cost is not None:
                    rows.append((depth, width, *cost))
        if not rows:
            return None
        depth, width, compute, macs, params = zip(*rows, strict=True)
        return Options(np.array(depth), np.array(width), np.array(compute), np.array(macs), np.array(params))

    def branch(self, start: Cut, end: Cut, processor: str, depth: int, width: int, width_in: int) -> tuple[float, int, int] | None:
        """compute_us, MACs and parameters; None where this depth and width cannot be built."""
        front_end = self.front_end(start, end)
        if front_end is None:
            return self.exact(start, end, processor, depth, width, width_in)
        rest = self.rest(start, end, front_end, depth, width)
        if rest is None:
            return None
        front = self.front(start, front_end, processor, rest, width_in)
        if front is None:
            return None
        return front[0] + rest.compute_us[processor], front[1] + rest.macs, front[2] + rest.params

    def rest(self, start: Cut, end: Cut, front_end: Cut, depth: int, width: int) -> Rest | None:
        """What follows the front, which no input width changes: the whole branch less its front, at the original input."""
        key = (start.position, end.position, depth, width)
        if key not in self.rests:
            self.rests[key] = self.split(start, end, front_end, depth, width)
        return self.rests[key]

    def split(self, start: Cut, end: Cut, front_end: Cut, depth: int, width: int) -> Rest | None:
        width_in = self.stretcher.piece(start, end, None).width_in
        whole = self.lowered(start, end, depth, width, width_in)
        if whole is None:
            return None
        specs = whole.specs()
        axis = self.stretcher.whole.axis(front_end.value)
        if front_end.value not in specs:
            return None
        front_width = specs[front_end.value].shape[axis]
        front_depth = self.stretcher.depth(start, front_end)
        front = self.lowered(start, front_end, front_depth, front_width, width_in)
        if front is None:
            return None
        costs = {p: self.pricer.graph(whole, p).latency_us - self.pricer.graph(front, p).latency_us for p in self.processors}
        return Rest(front_depth, front_width, costs, whole.macs - front.macs, whole.params - front.params)

    def front(self, start: Cut, end: Cut, processor: str, rest: Rest, width_in: int) -> tuple[float, int, int] | None:
        """The part that reads the merged tensor, at this width of it."""
        depth, width = rest.front_depth, rest.front_width
        key = (start.position, end.position, depth, width)
        if key not in self.lines:
            self.lines[key] = self.line(start, end, depth, width)
        line = self.lines[key]
        if line is None or width_in == width or width_in % GRANULE:
            return self.exact(start, end, processor, depth, width, width_in)
        return line.at(width_in, processor, self.pricer)

    def line(self, start: Cut, end: Cut, depth: int, width: int) -> Line | None:
        """Kernels as straight lines over the input's width; None where they are none (checked at a third width)."""
        found = self.stretcher.piece(start, end, None).channels
        entry = found.shapes[self.stretcher.piece(start, end, None).graph.inputs[0].name][0][self.stretcher.piece(start, end, None).axis_in]
        roots = found.roots(entry)
        if len(roots) != 1 or roots & found.pinned.keys() or found.quanta[next(iter(roots))] != sum(p.size for p in entry):
            return None
        samples = [w for w in (16 * GRANULE, 25 * GRANULE, 49 * GRANULE, 64 * GRANULE) if w != width][:3]
        graphs = [self.lowered(start, end, depth, width, w) for w in samples]
        rows = [None if g is None else (tuple(kernels(g)), g.macs, g.params) for g in graphs]
        if any(row is None for row in rows):
            return None
        low, high, check = rows
        line = Line(samples[0], samples[1], low, high)  # type: ignore[arg-type]
        return line if line.fits(samples[2], check) else None  # type: ignore[arg-type]

    def exact(self, start: Cut, end: Cut, processor: str, depth: int, width: int, width_in: int) -> tuple[float, int, int] | None:
        key = (start.position, end.position, depth, width, width_in)
        if (processor, *key) not in self.fronts:
            graph = self.lowered(start, end, depth, width, width_in)
            for p in self.processors:
                cost = (np.inf, 0, 0) if graph is None else (self.pricer.graph(graph, p).latency_us, graph.macs, graph.params)
                self.fronts[(p, *key)] = cost
        cost = self.fronts[(processor, *key)]
        return None if cost[0] == np.inf else cost

    def lowered(self, start: Cut, end: Cut, depth: int, width: int, width_in: int) -> Graph | None:
        try:
            piece = self.stretcher.piece(start, end, depth if depth != self.stretcher.depth(start, end) else None)
            graph, _ = scaled(piece, Branch(self.processors[0]), width_in, width, "")
        except BadPlan:
            return None
        return graph

    def front_end(self, start: Cut, end: Cut) -> Cut | None:
        """The nearest cut behind which nothing depends on the input's width and no depth choice is hidden; None if there is none before `end`."""
        key = (start.position, end.position)
        if key not in self.front_cuts:
            self.front_cuts[key] = next((c for c in self.stretcher.cuts if start.position < c.position < end.position and self.seals(start, end, c)), None)
        return self.front_cuts[key]

    def seals(self, start: Cut, end: Cut, cut: Cut) -> bool:
        if any(r.end == cut for stage in self.stretcher.stages for r in stage.repeats):
            return False
        piece = self.stretcher.piece(start, cut, None)
        found = piece.channels
        into = found.roots(found.shapes[piece.graph.inputs[0].name][0][piece.axis_in])
        out = found.roots(found.shapes[piece.graph.outputs[0]][0][piece.axis_out])
        return bool(out) and not (into & out) and self.stretcher.depth(start, cut) <= 1


def meeting_points(stretcher: Stretcher) -> tuple[Cut, ...]:
    """Cuts that end a block: a stage's first block, a repeat, or work outside stages; the output last."""
    ends = {stage.first_end.position for stage in stretcher.stages}
    ends |= {repeat.end.position for stage in stretcher.stages for repeat in stage.repeats}
    inside = first_blocks(stretcher)
    found = [c for c in stretcher.cuts[:-1] if c.position in ends or not any(low < c.position < high for low, high in inside)]
    found = [c for c in found if spatial(stretcher, c)]
    if len(found) > LARGEST_GRID:
        major = {stage.repeats[-1].end.position if stage.repeats else stage.first_end.position for stage in stretcher.stages}
        found = sorted(sorted(found, key=lambda c: (c.position not in major, c.position))[:LARGEST_GRID], key=lambda c: c.position)
    return (*found, stretcher.cuts[-1])


def first_blocks(stretcher: Stretcher) -> list[tuple[int, int]]:
    """Node ranges of first blocks that hold cuts of their own (expand, depthwise, project of an inverted bottleneck)."""
    ranges: list[tuple[int, int]] = []
    floor = -1
    for stage in stretcher.stages:
        prefix = module_of(stretcher, stage.first_end)
        low = next((i for i, n in enumerate(stretcher.graph.nodes) if i > floor and prefix and n.module.startswith(prefix)), stage.first_end.position)
        ranges.append((low - 1, stage.first_end.position))
        floor = stage.repeats[-1].end.position if stage.repeats else stage.first_end.position
    return ranges


def module_of(stretcher: Stretcher, cut: Cut) -> str:
    return cut.name if any(n.module.startswith(cut.name) for n in stretcher.graph.nodes) else ""


def spatial(stretcher: Stretcher, cut: Cut) -> bool:
    """Meeting behind the global pool would share out a classifier of almost no work."""
    shape = stretcher.graph.specs()[cut.value].shape
    return len(shape) == 3 or (len(shape) == 4 and max(shape[1:3] if stretcher.whole.axis(cut.value) == 3 else shape[2:]) > 1)
