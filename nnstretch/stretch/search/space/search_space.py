"""The space of plans: cuts where branches may meet, and the depths and widths they may have.

A branch is a chain of units. The first reads the merged tensor, so its cost depends on the merged
width; the others depend on the branch's own width alone, and a repeat that is dropped takes its
cost with it. Tables of units (cost_tables.py) therefore price every branch of every segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations, product, starmap
from math import ceil
from operator import add

import numpy as np

from nnstretch.graph import TensorSpec
from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.cost.layout_costs import LayoutModel
from nnstretch.stretch.cost.unit_costs import UnitCostModel
from nnstretch.stretch.lowering.channel_allocation import CHANNEL_MULTIPLE
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.lowering.section import FeasibleWidths
from nnstretch.stretch.lowering.width_scaling import round_channels
from nnstretch.stretch.search.constraints import SegmentLimits
from nnstretch.stretch.search.space.branch_depths import BranchDepths
from nnstretch.structure.blocks import Unit as Block
from nnstretch.structure.blocks import structural_hash
from nnstretch.structure.cuts import INPUT, Cut

WHOLE_NETWORK = ""
"""The holder of all parameters; no processor bears this name."""
LOWERED_WIDTHS = 10
"""Widths of a branch where units must be lowered one width at a time."""


@dataclass
class SearchSpace:
    """One network's plans on one chip; cuts are numbered from the input, 0, to the output."""

    analysis: NetworkAnalysis
    cost_model: CostModel
    processors: tuple[str, ...]
    limits: SegmentLimits
    width_steps: int | None = None
    """Widths a branch may have at most; None allows every channel multiple."""
    merges: tuple[str, ...] = ("concat", "project")
    whole_limited: bool = False
    """Whether parameters of the whole network have a limit, too."""

    def __post_init__(self) -> None:
        self._units: dict[int, UnitCostModel] = {}
        self._units_by_structure: dict[object, UnitCostModel] = {}
        self._widths: dict[int, Array] = {}
        self._shared_widths: dict[tuple[FeasibleWidths, int, bytes], Array] = {}
        self._merged_widths: dict[int, Array] = {}
        self._free_channels: dict[int, frozenset[int]] = {}

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """Return the input, every cut that ends a block, and the output."""
        return (Cut(INPUT, self.analysis.graph.inputs[0].name, -1), *self.analysis.block_ends)

    @cached_property
    def last(self) -> int:
        """Return the number of the output."""
        return len(self.cuts) - 1

    @cached_property
    def limited(self) -> tuple[str, ...]:
        """Return processors with a memory limit."""
        soc = self.cost_model.soc
        return tuple(p for p in self.processors if soc.processor(p).memory_bytes is not None)

    @property
    def holders(self) -> tuple[str, ...]:
        """Return what has a limit on parameters: processors with a memory limit, and the whole."""
        return (*self.limited, WHOLE_NETWORK) if self.whole_limited else self.limited

    @cached_property
    def macs(self) -> int:
        """Return the MACs of the original network."""
        return self.analysis.graph.macs

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Return shapes and dtypes of all values."""
        return self.analysis.graph.specs()

    @cached_property
    def layout_model(self) -> LayoutModel:
        """Return kernel costs under the layouts of the processors' runtimes."""
        return LayoutModel(self.cost_model, self.cost_model.soc.price_keys(self.processors))

    def processor_sets(self) -> list[tuple[str, ...]]:
        """Return every set of processors that branches can run on."""
        sets: list[tuple[str, ...]] = []
        for size in range(2, len(self.processors) + 1):
            sets.extend(combinations(self.processors, size))
        return sets

    @cached_property
    def channel_bytes(self) -> list[float]:
        """Return the size of one channel of the tensor at each cut, in the chip's element type."""
        specs = [self.analysis.graph.inputs[0].spec]
        specs += [self.specs[cut.value] for cut in self.cuts[1:]]
        elements = [spec.elements / self.original_width(k) for k, spec in enumerate(specs)]
        return [count * self.cost_model.soc.element_bytes for count in elements]

    # Units

    def share_units(self, space: SearchSpace) -> None:
        """Take the unit costs of another space of the same network and chip."""
        self._units = space._units
        self._units_by_structure = space._units_by_structure

    def unit(self, k: int) -> UnitCostModel:
        """Return the unit behind cut k; units of equal structure and dtype share one cost model."""
        if k not in self._units:
            start, end, graph = self.cuts[k], self.cuts[k + 1], self.analysis.graph
            nodes = graph.nodes[start.position + 1 : end.position + 1]
            structure = structural_hash(graph, Block(start, end, nodes, 0, 0))
            key = self.entry_dtype(k), structure
            if key not in self._units_by_structure:
                section = self.analysis.section(start, end, None)
                self._units_by_structure[key] = UnitCostModel(section, self.layout_model)
            self._units[k] = self._units_by_structure[key]
        return self._units[k]

    def entry_dtype(self, k: int) -> str:
        """Return the dtype of the tensor at cut k."""
        return self.specs[self.cuts[k].value].dtype

    @cached_property
    def needs_lowering(self) -> bool:
        """Return whether some unit must be lowered width by width."""
        return not all(self.unit(k).has_polynomials for k in range(self.last))

    # Widths

    def feasible_widths(self, k: int) -> FeasibleWidths:
        """Return the feasible widths at a cut."""
        return self.analysis.feasible_widths(self.cuts[k])

    def original_width(self, k: int) -> int:
        """Return the channels at a cut in the original network."""
        if k == 0:
            return self.analysis.section(self.cuts[0], self.cuts[1], None).width_in
        return self.feasible_widths(k).full

    def widths_at(self, k: int) -> Array:
        """Return the output widths of branches that end at a cut, the original's last."""
        return self.inner_widths[k][-1]

    @cached_property
    def inner_widths(self) -> dict[int, list[Array]]:
        """Return, by end j, the widths at cuts 1..j of each branch that ends there."""
        widths: dict[int, list[Array]] = {}
        for j in range(1, len(self.cuts)):
            widths[j] = [self.inner_width(k, j) for k in range(1, j)] + [self.widths(j)]
        return widths

    def inner_width(self, k: int, j: int) -> Array:
        """Return the width at cut k of each branch that ends at cut j.

        Its share on the channel multiple, or what follows from the end, or from the last cut before
        it, where both are the same channels.
        """
        ends, full, width = self.widths(j), self.original_width(j), self.original_width(k)
        last = self.last_multiplied(k, j)
        shares = self.shared_widths(self.feasible_widths(last), j)
        shares = shares * width // self.original_width(last)
        exact = ends * width // full
        if np.array_equal(shares, exact) or not self.same_channels(k, j):
            return shares
        return exact

    def shared_widths(self, feasible: FeasibleWidths, j: int) -> Array:
        """Return the feasible widths that are the shares of branches which end at cut j."""
        ends, full = self.widths(j), self.original_width(j)
        key = feasible, full, ends.tobytes()
        if key not in self._shared_widths:
            widths = [feasible.scaled_width(Fraction(width, full)) for width in ends.tolist()]
            self._shared_widths[key] = np.array(widths, dtype=np.int64)
        return self._shared_widths[key]

    def last_multiplied(self, k: int, j: int) -> int:
        """Return the last cut before j with the channels of cut k times a factor; k without any."""
        width = self.original_width(k)
        for m in range(j - 1, k, -1):
            if self.original_width(m) != width and self.same_channels(k, m):
                return m
        return k

    def same_channels(self, k: int, m: int) -> bool:
        """Return whether the channels at cut k are those at the later cut m, which scale alike."""
        first, last = self.free_channels(k), self.free_channels(m)
        if not first or first != last:
            return False
        section = self.analysis.section(self.cuts[k], self.cuts[m], None)
        channels = section.channels
        return channels.roots(section.input_dimension) == channels.roots(section.output_dimension)

    def free_channels(self, k: int) -> frozenset[int]:
        """Return the groups of the channels at a cut that scale."""
        if k not in self._free_channels:
            channels = self.analysis.whole_network
            value = self.cuts[k].value
            roots = channels.roots(channels.shapes[value][0][channels.axis(value)])
            self._free_channels[k] = frozenset(roots - channels.pinned.keys())
        return self._free_channels[k]

    def widths(self, k: int) -> Array:
        """Return the output widths of branches that end at a cut, the original's last."""
        if k not in self._widths:
            self._widths[k] = self.branch_widths(k)
        return self._widths[k]

    def branch_widths(self, k: int) -> Array:
        """Compute the output widths of branches that end at a cut, the original's last."""
        full = self.original_width(k)
        if k == self.last:
            return np.array([full])
        nearest = map(self.feasible_widths(k).nearest, self.wanted_widths(full))
        least = self.limits.min_width * full - 1e-9
        narrower = {width for width in nearest if least <= width < full}
        return np.array([*sorted(narrower), full], dtype=np.int64)

    def wanted_widths(self, full: int) -> Sequence[int]:
        """Return channel multiples below the original width, at most `width_steps` of them."""
        step = max(CHANNEL_MULTIPLE, self.layout_model.largest_block)
        lowest = self.limits.min_width
        if full >= 2 * step:
            wanted = range(max(step, ceil(lowest * full / step) * step), full, step)
        elif full >= 2 * CHANNEL_MULTIPLE:
            wanted = range(CHANNEL_MULTIPLE, full, CHANNEL_MULTIPLE)
        else:
            wanted = range(max(1, ceil(lowest * full)), full)
        most = self.width_steps or (LOWERED_WIDTHS if self.needs_lowering else None)
        if most is None or len(wanted) < most:
            return wanted
        shares = [lowest + (1 - lowest) * i / (most - 1) for i in range(most - 1)]
        return sorted({round_channels(full * share, step) for share in shares})

    def merged_widths(self, k: int) -> Array:
        """Return every width in which branches can meet at a cut, rising."""
        if k == 0:
            return np.array([self.original_width(0)])
        if k not in self._merged_widths:
            widths = self.widths_at(k).tolist()
            sums, merged = set(widths), {self.original_width(k)}
            for _ in range(len(self.processors) - 1):
                sums = set(starmap(add, product(sums, widths)))
                merged |= sums
            self._merged_widths[k] = np.array(sorted(merged), dtype=np.int64)
        return self._merged_widths[k]

    def merged_row(self, k: int, width: int) -> int:
        """Return the number of a width among `merged_widths`."""
        return int(np.searchsorted(self.merged_widths(k), width))

    # Depths

    @cached_property
    def branch_depths(self) -> BranchDepths:
        """Return the depths that branches may have."""
        return BranchDepths(self.analysis.stages, self.cuts, self.limits.min_depth)

    def depths(self, i: int, j: int) -> list[int]:
        """Return the depths of branches between two cuts, the original's last."""
        return self.branch_depths.between(i, j)
