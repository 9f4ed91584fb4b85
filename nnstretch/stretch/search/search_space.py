"""The space a search covers: meeting points, depths, widths; and what every branch in it costs.

A branch is a chain of units. The first reads the merged tensor, so what it costs depends on the
width of that; the others depend on the branch's own width alone, and a repeat that is dropped takes
its cost with it. One table a unit therefore prices every branch of every segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from math import ceil

import numpy as np

from nnstretch.graph import TensorSpec
from nnstretch.stretch.cost.cost_arrays import CostArrays, HeadCosts, TailCosts, add_costs
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.cost.layout_costs import CutLayouts, LayoutModel
from nnstretch.stretch.cost.unit_costs import UnitCostModel
from nnstretch.stretch.lowering.channel_allocation import CHANNEL_MULTIPLE
from nnstretch.stretch.lowering.depth_scaling import distribute_repeats, local_stages
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.lowering.section import FeasibleWidths
from nnstretch.stretch.lowering.width_scaling import round_channels
from nnstretch.stretch.search.constraints import SegmentLimits
from nnstretch.structure.blocks import Unit as Block
from nnstretch.structure.blocks import structural_hash
from nnstretch.structure.cuts import INPUT, OUTPUT, Cut

Array = np.ndarray
PLAIN_WIDTHS = 10
"""Widths tried where a unit must be priced one width at a time."""


@dataclass
class SearchSpace:
    """One network's plans on one chip."""

    analysis: NetworkAnalysis
    cost_model: CostModel
    processors: tuple[str, ...]
    limits: SegmentLimits
    width_steps: int | None = None
    """Widths a branch may have at most; None tries every multiple of the granule."""
    merges: tuple[str, ...] = ("concat", "project")
    units: dict[int, UnitCostModel] = field(default_factory=dict)
    rests: dict[tuple[int, int], TailCosts] = field(default_factory=dict)
    fronts: dict[int, HeadCosts] = field(default_factory=dict)

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """Return the input, every cut that ends a block, and the output."""
        return (Cut(INPUT, self.analysis.graph.inputs[0].name, -1), *self.analysis.block_ends)

    @cached_property
    def limited(self) -> tuple[str, ...]:
        """Return processors with a memory limit."""
        return tuple(
            p for p in self.processors if self.cost_model.soc.processor(p).memory_bytes is not None
        )

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Return shapes and dtypes of all values."""
        return self.analysis.graph.specs()

    @cached_property
    def layout_model(self) -> LayoutModel:
        """Return kernel costs under the layouts of the processors' runtimes."""
        return LayoutModel(self.cost_model, self.processors)

    @cached_property
    def layouts(self) -> CutLayouts:
        """Return the layouts of tensors at cuts."""
        return CutLayouts(self.analysis.graph, self.cuts, self.layout_model)

    def exit_costs(self, j: int) -> Mapping[str, Array]:
        """Return what it takes to hand a branch's output over as a plain tensor, on each processor.

        Over its widths.
        """
        return self.layouts.conversion_us(j, self.widths_at(j))

    @cached_property
    def channel_multiple(self) -> int:
        """Return what branch widths are multiples of; blocked runtimes want whole blocks."""
        return max(CHANNEL_MULTIPLE, self.layout_model.largest_block)

    @property
    def exact(self) -> bool:
        """Return whether tables tell the cost of whole branches.

        Where runtimes work on blocks of channels, what units copy depends on their neighbours.
        """
        return not self.layout_model.blocked

    def feasible_widths(self, k: int) -> FeasibleWidths:
        """Return the feasible widths at a cut."""
        return self.analysis.feasible_widths(self.cuts[k])

    def original_width(self, k: int) -> int:
        """Return channels at a cut in the original network."""
        if k == 0:
            section = self.analysis.section(self.cuts[0], self.cuts[1], None)
            return section.width_in
        return self.feasible_widths(k).full

    def unit(self, k: int) -> UnitCostModel:
        """Return the unit between cut k and the next; units of equal structure share their
        tables.
        """
        if k not in self.units:
            start, end, graph = self.cuts[k], self.cuts[k + 1], self.analysis.graph
            nodes = graph.nodes[start.position + 1 : end.position + 1]
            key = structural_hash(graph, Block(start, end, nodes, 0, 0))
            if key not in self._alike:
                self._alike[key] = UnitCostModel(
                    self.analysis.section(start, end, None), self.layout_model
                )
            self.units[k] = self._alike[key]
        return self.units[k]

    def __post_init__(self) -> None:
        self._alike: dict[object, UnitCostModel] = {}
        self._ranged: dict[tuple[int, str, int, bool], tuple[Array, Array, Array]] = {}
        self._plain: dict[int, Array] = {}
        self._projected: dict[tuple[int, int], CostArrays] = {}
        self._closed: dict[tuple[int, int], CostArrays] = {}
        self._entries: dict[int, Array] = {}
        self._originals: dict[tuple[int, int], tuple[dict[str, float], int]] = {}

    @cached_property
    def inner_widths(self) -> dict[int, list[Array]]:
        """End -> for every cut from 1 to it, the width there of each branch that ends there."""
        widths: dict[int, list[Array]] = {}
        for j in range(1, len(self.cuts)):
            widths[j] = [self.inner_width(k, j) for k in range(1, j)] + [self.widths(j)]
        return widths

    def inner_width(self, k: int, j: int) -> Array:
        """Return width at cut k of every branch that ends at cut j.

        Its share on the granule, or the end's own where both are the same channels.
        """
        ratios = [Fraction(w, self.original_width(j)) for w in self.widths(j).tolist()]
        shares = np.array([self.feasible_widths(k).scaled_width(r) for r in ratios], dtype=np.int64)
        if self.original_width(k) != self.original_width(j) or np.array_equal(
            shares, self.widths(j)
        ):
            return shares
        section = self.analysis.section(self.cuts[k], self.cuts[j], None)
        return (
            self.widths(j)
            if section.channels.roots(section.input_dimension)
            == section.channels.roots(section.output_dimension)
            else shares
        )

    def widths(self, k: int) -> Array:
        """Return the widths a branch may hand over at a cut.

        The original's own width is the last.
        """
        reach, full = self.feasible_widths(k), self.original_width(k)
        if k == len(self.cuts) - 1:
            return np.array([full])
        step, least = self.channel_multiple, self.limits.min_width * full
        if full < 2 * step:
            wanted: Sequence[int] = (
                range(max(1, ceil(least)), full)
                if full < 2 * CHANNEL_MULTIPLE
                else range(CHANNEL_MULTIPLE, full, CHANNEL_MULTIPLE)
            )
        else:
            wanted = range(max(step, ceil(least / step) * step), full, step)
        most = self.width_steps or (PLAIN_WIDTHS if self.needs_lowering else None)
        if most is not None and len(wanted) >= most:
            shares = [
                self.limits.min_width + (1 - self.limits.min_width) * i / (most - 1)
                for i in range(most - 1)
            ]
            wanted = sorted({round_channels(full * s, step) for s in shares})
        return np.array(
            [
                *sorted({w for w in map(reach.nearest, wanted) if w < full and w >= least - 1e-9}),
                full,
            ],
            dtype=np.int64,
        )

    @cached_property
    def needs_lowering(self) -> bool:
        """Return whether some unit must be lowered width by width."""
        return not all(self.unit(k).has_polynomials for k in range(len(self.cuts) - 1))

    @cached_property
    def blocks(self) -> list[CostArrays]:
        """Return for every unit its cost inside the branches that pass it, in the order of their
        ends and widths.
        """
        costs: list[CostArrays] = []
        for k in range(len(self.cuts) - 1):
            ends = list(range(k + 2, len(self.cuts)))
            if k == 0 or (not ends and k + 1 == len(self.cuts)):
                costs.append(
                    CostArrays({p: np.zeros(0) for p in self.processors}, np.zeros(0), np.zeros(0))
                )
                continue
            ends = list(range(k + 1, len(self.cuts)))
            width_in = np.concatenate([self.inner_widths[j][k - 1] for j in ends])
            width_out = np.concatenate([self.inner_widths[j][k] for j in ends])
            costs.append(self.unit(k).costs(width_in, width_out, self.layouts.inside(k)))
        return costs

    def block(self, k: int, j: int) -> tuple[list[Array], Array, Array]:
        """Return unit k inside branches that end at cut j.

        Microseconds on each processor, MACs, parameters; over their widths.
        """
        low = sum(len(self.widths_at(e)) for e in range(k + 1, j))
        rows = slice(low, low + len(self.widths_at(j)))
        costs = self.blocks[k]
        return (
            [costs.latency_us[p][rows] for p in self.processors],
            costs.macs[rows],
            costs.params[rows],
        )

    def widths_at(self, k: int) -> Array:
        """Return the widths at a cut that the search considers."""
        return self.inner_widths[k][-1]

    def depths(self, i: int, j: int) -> list[int]:
        """Return the depths between two cuts that the search considers."""
        start, end = self.cuts[i], self.cuts[j]
        full = self.analysis.depth(start, end)
        inside = {self.cuts[k].position for k in range(i + 1, j + 1)}
        stages = local_stages(self.analysis.stages, start, end)
        if any(repeat.end.position not in inside for stage in stages for repeat in stage.repeats):
            return [full]  # a repeat inside a larger unit cannot be dropped alone
        fewest = max(1, len(local_stages(self.analysis.stages, start, end)))
        return list(range(max(fewest, ceil(self.limits.min_depth * full - 1e-9)), full + 1))

    def tail_costs(self, i: int, j: int) -> TailCosts:
        """Return the costs of the units after the first between two cuts."""
        if (i, j) not in self.rests:
            depths = self.depths(i, j)
            widths = self.widths_at(j)
            inner = list(range(i + 1, j))
            kept = np.array(
                [self.kept_units(i, j, depth, inner) for depth in depths], dtype=np.float64
            ).reshape(len(depths), len(inner))
            rows = [self.block(k, j) for k in inner]
            empty = np.zeros((len(depths), len(widths)))
            us = {
                p: kept @ np.array([r[0][n] for r in rows]) if inner else empty
                for n, p in enumerate(self.processors)
            }
            macs = kept @ np.array([r[1] for r in rows]) if inner else empty
            params = kept @ np.array([r[2] for r in rows]) if inner else empty
            for number, k in enumerate(inner):
                stuck = (
                    self.inner_widths[j][k - 1] != self.inner_widths[j][k]
                )  # dropping it would leave widths that do not meet
                for p in us:
                    us[p][np.ix_(kept[:, number] == 0, stuck)] = np.inf
            first = np.searchsorted(self.head_costs(i).widths_out, self.inner_widths[j][i])
            self.rests[i, j] = TailCosts(np.array(depths), widths, first, us, macs, params)
        return self.rests[i, j]

    def kept_units(self, i: int, j: int, depth: int, inner: list[int]) -> list[bool]:
        """Return which units behind the first a branch of this depth keeps."""
        stages = local_stages(self.analysis.stages, self.cuts[i], self.cuts[j])
        gone: set[int] = set()
        if stages and any(stage.repeats for stage in stages):
            for stage, keep in zip(stages, distribute_repeats(depth, stages), strict=True):
                gone |= {repeat.end.position for repeat in stage.repeats[keep:]}
        return [self.cuts[k + 1].position not in gone for k in inner]

    def head_costs(self, i: int) -> HeadCosts:
        """Return the costs of the first unit after a cut."""
        if i not in self.fronts:
            ends = range(i + 1, len(self.cuts))
            widths_out = np.unique(np.concatenate([self.inner_widths[j][i] for j in ends]))
            widths_in = self.merged_widths(i)
            self.fronts[i] = HeadCosts(
                widths_in,
                widths_out,
                self.unit(i).costs(
                    widths_in[:, None], widths_out[None, :], self.layouts.behind_plain()
                ),
            )
        return self.fronts[i]

    def binned_head_costs(
        self, i: int, processor: str, starts: Array, plain: bool
    ) -> tuple[Array, Array, Array]:
        """Return a front over ranges of input widths.

        The least microseconds, the most MACs and parameters.

        Where widths agree, no adapter is needed; these are told apart (`plain`), since no unit has
        the time of one and the work of the other.
        """
        key = (i, processor, len(starts), plain)
        if key not in self._ranged:
            front = self.head_costs(i)
            if i not in self._plain:
                self._plain[i] = self.unit(i).needs_no_adapter(
                    front.widths_in[:, None], front.widths_out[None, :]
                )
            mask = self._plain[i] if plain else ~self._plain[i]
            us = np.minimum.reduceat(
                np.where(mask, front.costs.latency_us[processor], np.inf), starts, axis=0
            )
            work = [
                np.maximum.reduceat(np.where(mask, w, 0.0), starts, axis=0)
                for w in (front.costs.macs, front.costs.params)
            ]
            self._ranged[key] = us, work[0], work[1]
        return self._ranged[key]

    def merged_widths(self, i: int) -> Array:
        """Return every width in which branches can meet at a cut."""
        if i == 0:
            return np.array([self.original_width(0)])
        if i not in self._entries:
            widths = self.widths_at(i)
            sums, total = {self.original_width(i)}, set(widths.tolist())
            for _ in range(len(self.processors) - 1):
                total = {a + b for a in total for b in widths.tolist()}
                sums |= total
            self._entries[i] = np.array(sorted(sums), dtype=np.int64)
        return self._entries[i]

    def projected_head_costs(self, i: int, j: int) -> CostArrays:
        """Return what opens and first works in the branches of a `project` merge that start from
        the original width: over their widths.
        """
        if (i, j) not in self._projected:
            self._projected[i, j] = self.entry_adapter(i, j)
        return self._projected[i, j]

    def entry_adapter(self, i: int, j: int) -> CostArrays:
        """Return the costs of the adapter at a branch's entry."""
        full, end = self.original_width(i), self.original_width(j)
        widths = self.widths_at(j)
        inside = np.array([round_channels(w / end * full) for w in widths.tolist()], dtype=np.int64)
        unit, behind = self.unit(i), self.inner_widths[j][i]
        into = unit.groups.entry_width(inside, behind)
        inside = inside if into is None else np.broadcast_to(into, inside.shape)
        work = unit.costs(inside, behind, self.layout_model.behind_adapter(leave=True))
        return add_costs(
            unit.adapter.costs(np.array(full), inside, self.layouts.behind_plain(), always=True),
            work,
        )

    def exit_adapter(self, j: int, share: int) -> CostArrays:
        """Return what hands a branch's output over at a `project` merge: over its widths."""
        if (j, share) in self._closed:
            return self._closed[j, share]
        widths = self.widths_at(j)
        adapter_costs = self.unit(j - 1).exit_adapter.costs(
            widths, np.array(share), self.layouts.at_exit(j)
        )
        us = {
            p: adapter_costs.latency_us[p] + np.where(widths == share, self.exit_costs(j)[p], 0.0)
            for p in self.processors
        }
        self._closed[j, share] = CostArrays(us, adapter_costs.macs, adapter_costs.params)
        return self._closed[j, share]

    def original(self, i: int, j: int) -> tuple[dict[str, float], int]:
        """Return the original layers between two cuts: microseconds on each processor, and MACs."""
        if (i, j) in self._originals:
            return self._originals[i, j]
        us, macs = dict.fromkeys(self.processors, 0.0), 0
        for k in range(i, j):
            cost, work = self.unit(k).original(
                self.layouts.behind_plain() if k == i else self.layouts.inside(k)
            )
            macs += work
            for p in self.processors:
                us[p] += cost[p]
        for p in self.processors:
            us[p] += float(self.exit_costs(j)[p][-1])
        self._originals[i, j] = us, macs
        return us, macs

    def channel_bytes(self, k: int) -> float:
        """Return what one channel of the tensor at a cut takes, in the chip's element type."""
        spec = self.specs[self.cuts[k].value] if k else self.analysis.graph.inputs[0].spec
        return spec.elements / self.original_width(k) * self.cost_model.soc.element_bytes

    def processor_sets(self) -> list[tuple[str, ...]]:
        """Return every set of processors that branches can run on."""
        return [
            processors
            for size in range(2, len(self.processors) + 1)
            for processors in combinations(self.processors, size)
        ]


__all__ = ["OUTPUT", "HeadCosts", "SearchSpace", "TailCosts"]
