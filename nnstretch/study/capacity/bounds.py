"""Variants of branches to train, and the bounds on depth and width that their accuracies give.

The published experiment (NN-Stretch, MobiSys 2023, slides) trained three pairs of branches, as
(share of depth, share of width): (.5, 1) + (.75, .4) was best, (.5, 1) + (.3, 1) lost 1.3 points,
(1, .5) + (1, .3) 2.4. Here are those three families, and a grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median, stdev

from nnstretch.errors import BadInput

DEFAULT_DEPTHS = (1.0, 0.75, 0.5, 0.3)
DEFAULT_WIDTHS = (0.75, 0.5, 0.3)
"""Shares by default: the published ones, and what lies between."""
MAIN_BRANCH_WIDTH = 0.75
"""Width of the grid's main branch, which has over half of a stage's MACs, as search demands."""
PUBLISHED_HALF_SHARE = 0.5
"""Depth or width of the main branch in the published pairs."""
ROUNDING = 1e-7
"""Of two accuracies in float32, as older journals hold them; far below one image's share."""


@dataclass(frozen=True, slots=True)
class BranchShare:
    """A branch, relative to the original stage."""

    depth: float
    width: float

    def __str__(self) -> str:
        return f"({self.depth:g}, {self.width:g})"


@dataclass(frozen=True, slots=True)
class BranchShape:
    """Two branches, the same in every stage."""

    family: str
    main: BranchShare
    second: BranchShare

    @property
    def depth(self) -> float:
        """Return the smaller depth: the largest `search --min-depth` that admits the pair."""
        return min(self.main.depth, self.second.depth)

    @property
    def width(self) -> float:
        """Return the smaller width."""
        return min(self.main.width, self.second.width)

    def __str__(self) -> str:
        return f"{self.main} + {self.second}"


@dataclass(frozen=True, slots=True)
class CapacityPoint:
    """A variant as the bounds see it."""

    depth: float
    width: float
    holds: bool


@dataclass(frozen=True, slots=True)
class CapacityBounds:
    """Smallest shares of depth and width above which every variant holds; 1.0 where none does."""

    depth: float
    width: float
    supporting_variants: int
    """Number of variants with at least these shares."""


def branch_shapes(
    depths: Iterable[float] = DEFAULT_DEPTHS, widths: Iterable[float] = DEFAULT_WIDTHS
) -> tuple[BranchShape, ...]:
    """Return the grid of second branches and the published families, largest shares first.

    Raises BadInput for a share that is not above 0 and at most 1.
    """
    depths = check_shares(depths, "depths")
    widths = check_shares(widths, "widths")
    half_wide = BranchShare(1.0, PUBLISHED_HALF_SHARE)
    half_deep = BranchShare(PUBLISHED_HALF_SHARE, 1.0)
    shapes: list[BranchShape] = []
    for depth, width in product(depths, widths):
        main = BranchShare(1.0, max(MAIN_BRANCH_WIDTH, width))
        shapes.append(BranchShape("grid", main, BranchShare(depth, width)))
    shapes.append(BranchShape("shallow + narrow", half_deep, BranchShare(0.75, 0.4)))
    for depth in depths:
        if depth <= PUBLISHED_HALF_SHARE:
            shapes.append(BranchShape("two shallow", half_deep, BranchShare(depth, 1.0)))
    for width in widths:
        if width <= PUBLISHED_HALF_SHARE:
            shapes.append(BranchShape("two narrow", half_wide, BranchShare(1.0, width)))
    return tuple(shapes)


def check_shares(shares: Iterable[float], name: str) -> tuple[float, ...]:
    """Return shares largest first, each once. Raises BadInput for none, or one out of range."""
    ordered = tuple(sorted(set(shares), reverse=True))
    for share in ordered:
        if not 0 < share <= 1:
            raise BadInput(
                f"{name} holds {share:g}, capacity study, a share lies above 0 and is at most 1"
            )
    if not ordered:
        raise BadInput(f"{name} is empty, capacity study, name at least one share")
    return ordered


def seed_deviation(accuracies: Sequence[float]) -> float:
    """Return the sample's standard deviation over seeds; 0 for a single seed."""
    return stdev(accuracies) if len(accuracies) > 1 else 0.0


def accuracy_margin(tolerance: float, spreads: Sequence[float], seeds: int) -> float:
    """Return how far below the original's mean a variant's mean may lie, as a share of images.

    `tolerance` plus one standard error of a difference of two means over `seeds` seeds, by the
    median deviation of all networks, so that a network that trains badly does not excuse itself.
    """
    return tolerance + (median(spreads) if spreads else 0.0) * math.sqrt(2 / seeds)


def is_within_margin(accuracy: float, original: float, allowed: float) -> bool:
    """Return whether a mean accuracy is at most `allowed` below the original's."""
    return accuracy >= original - allowed - ROUNDING


def lower_bounds(points: Sequence[CapacityPoint]) -> CapacityBounds:
    """Return the bounds of the region `depth >= D and width >= W` in which no variant fails.

    D and W are shares that were trained. Of such regions, the one with the most variants is taken,
    then the largest, then the one of wider branches, as two narrow ones were the worst published.
    """
    candidates: list[CapacityBounds] = []
    for depth, width in product([p.depth for p in points], [p.width for p in points]):
        region = [p for p in points if p.depth >= depth and p.width >= width]
        if region and all(p.holds for p in region):
            least_depth = min(p.depth for p in region)
            least_width = min(p.width for p in region)
            candidates.append(CapacityBounds(least_depth, least_width, len(region)))
    if not candidates:
        return CapacityBounds(1.0, 1.0, 0)
    return max(candidates, key=region_preference)


def region_preference(bounds: CapacityBounds) -> tuple[float, float, float]:
    """Return the sort key of regions without a failure; the largest is preferred."""
    area = (1 - bounds.depth) * (1 - bounds.width)
    return bounds.supporting_variants, area, bounds.width
