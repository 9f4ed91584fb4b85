"""The depths that branches between two cuts may have, and which units each depth keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import ceil

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.lowering.depth_scaling import distribute_repeats, local_stages
from nnstretch.structure.blocks import BlockStage
from nnstretch.structure.cuts import Cut


@dataclass
class BranchDepths:
    """Depths of the branches of one space, each computed once."""

    network_stages: Sequence[BlockStage]
    cuts: Sequence[Cut]
    min_depth: float
    """Share of the original's depth that a branch has at least."""

    def __post_init__(self) -> None:
        self._depths: dict[tuple[int, int], list[int]] = {}
        self._stages: dict[tuple[int, int], tuple[BlockStage, ...]] = {}
        self._repeats: dict[tuple[tuple[int, ...], int, int], Array] = {}

    def between(self, i: int, j: int) -> list[int]:
        """Return the depths of branches between two cuts, the original's last."""
        if (i, j) not in self._depths:
            self._depths[i, j] = self.feasible_depths(i, j)
        return self._depths[i, j]

    def feasible_depths(self, i: int, j: int) -> list[int]:
        """Compute the depths of branches between two cuts."""
        stages = self.stages(i, j)
        full = sum(stage.depth for stage in stages) or 1
        for repeat in chain.from_iterable(stage.repeats for stage in stages):
            if not i < self.cut_numbers.get(repeat.end.position, -1) <= j:
                return [full]  # a repeat inside a larger unit cannot be dropped alone
        least = max(1, len(stages), ceil(self.min_depth * full - 1e-9))
        return list(range(least, full + 1))

    @cached_property
    def cut_numbers(self) -> dict[int, int]:
        """Return the numbers of the cuts by their positions."""
        return {cut.position: number for number, cut in enumerate(self.cuts)}

    def stages(self, i: int, j: int) -> tuple[BlockStage, ...]:
        """Return the stages of the network between two cuts."""
        if (i, j) not in self._stages:
            self._stages[i, j] = local_stages(self.network_stages, self.cuts[i], self.cuts[j])
        return self._stages[i, j]

    def kept_units(self, i: int, j: int) -> Array:
        """Return which units behind the first a branch keeps: bool `[depth, unit]`."""
        stages, depths = self.stages(i, j), self.between(i, j)
        kept = np.full((len(depths), j - i - 1), True)
        units, columns, ranks = list[int](), list[int](), list[int]()
        for column, stage in enumerate(stages):
            for rank, repeat in enumerate(stage.repeats):
                unit = self.cut_numbers.get(repeat.end.position, -1) - i - 2
                if 0 <= unit < j - i - 1:
                    units.append(unit)
                    columns.append(column)
                    ranks.append(rank)
        if units:
            kept[:, units] = self.repeats_by_depth(stages, depths)[:, columns] > ranks
        return kept

    def droppable_units(self, j: int) -> Array:
        """Return which units before cut j but the first end a repeat, which branches may drop."""
        return np.array([cut.position in self.repeat_ends for cut in self.cuts[2 : j + 1]], bool)

    @cached_property
    def repeat_ends(self) -> frozenset[int]:
        """Return the positions of the cuts that end repeats."""
        repeats = chain.from_iterable(stage.repeats for stage in self.network_stages)
        return frozenset(repeat.end.position for repeat in repeats)

    def repeats_by_depth(self, stages: Sequence[BlockStage], depths: Sequence[int]) -> Array:
        """Return how many repeats of each stage branches keep: `[depth, stage]`."""
        key = tuple(len(stage.repeats) for stage in stages), depths[0], len(depths)
        if key not in self._repeats:
            self._repeats[key] = distribute_repeats(depths, stages)
        return self._repeats[key]
