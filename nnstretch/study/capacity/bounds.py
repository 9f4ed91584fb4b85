"""Which variants tell how shallow and how narrow a branch may be, and which bounds their accuracies
give.

The published experiment (NN-Stretch, MobiSys 2023, slides) trained three pairs of branches, as
(share of depth, share of width): (.5, 1) + (.75, .4) was best, (.5, 1) + (.3, 1) lost 1.3 points,
(1, .5) + (1, .3) 2.4. Here are those three families, and a grid. No torch: these are rules about
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, stdev

from nnstretch.errors import BadInput

DEFAULT_DEPTHS, DEFAULT_WIDTHS = (1.0, 0.75, 0.5, 0.3), (0.75, 0.5, 0.3)
"""Shares tried where the user names none: the published ones, and what lies between."""
MAIN_BRANCH_WIDTH = 0.75
"""Of the grid's main branch.

Over half of a stage's MACs, so that the pair is one that search would offer.
"""
PUBLISHED_HALF_SHARE = 0.5
"""Depth or width of the main branch in the published pairs."""


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
        """Return what `search --min-depth` may at most be to admit it.

        The bound is on every branch.
        """
        return min(self.main.depth, self.second.depth)

    @property
    def width(self) -> float:
        """Return the narrower of the two branches."""
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
    """The smallest shares of depth and width inside which every variant holds.

    1.0 each where none does.
    """

    depth: float
    width: float
    supporting_variants: int
    """Variants with at least these shares. All hold."""


def branch_shapes(
    depths: Iterable[float] = DEFAULT_DEPTHS, widths: Iterable[float] = DEFAULT_WIDTHS
) -> tuple[BranchShape, ...]:
    """Return the grid of second branches, two shallow, two narrow, and the published mixture.

    Largest shares first.

    Raises BadInput for a share that is not above 0 and at most 1.
    """
    depths, widths = check_shares(depths, "depths"), check_shares(widths, "widths")
    full_half, half_full = (
        BranchShare(1.0, PUBLISHED_HALF_SHARE),
        BranchShare(PUBLISHED_HALF_SHARE, 1.0),
    )
    shapes = [
        BranchShape("grid", BranchShare(1.0, max(MAIN_BRANCH_WIDTH, w)), BranchShare(d, w))
        for d in depths
        for w in widths
    ]
    shapes.append(BranchShape("shallow + narrow", half_full, BranchShare(0.75, 0.4)))
    shapes += [
        BranchShape("two shallow", half_full, BranchShare(d, 1.0))
        for d in depths
        if d <= PUBLISHED_HALF_SHARE
    ]
    shapes += [
        BranchShape("two narrow", full_half, BranchShare(1.0, w))
        for w in widths
        if w <= PUBLISHED_HALF_SHARE
    ]
    return tuple(shapes)


def check_shares(shares: Iterable[float], name: str) -> tuple[float, ...]:
    """Return shares largest first, each once. Raises BadInput when a share is out of range, or none
    is named.
    """
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
    """Return standard deviation over seeds (of the sample); 0 where one seed cannot show any."""
    return stdev(accuracies) if len(accuracies) > 1 else 0.0


def accuracy_margin(tolerance: float, spreads: Sequence[float], seeds: int) -> float:
    """Return how far below the original's mean a variant's mean may lie, as a share of images.

    `tolerance` plus one standard error of a difference of two means over `seeds` seeds. The
    deviation in it is the median one of all networks, so that one network that trains badly does
    not excuse itself.
    """
    return tolerance + (median(spreads) if spreads else 0.0) * math.sqrt(2 / seeds)


def is_within_margin(accuracy: float, original: float, allowed: float) -> bool:
    """Return whether a mean accuracy is at most `allowed` below the original's.

    One ten-billionth is rounding.
    """
    return accuracy >= original - allowed - 1e-10


def lower_bounds(points: Sequence[CapacityPoint]) -> CapacityBounds:
    """Return the widest region `depth >= D and width >= W` in which no variant fails.

    Search applies both bounds to every branch, so they are chosen together. Among regions without a
    failure the one with the most variants is taken, then the largest, then the one of wider
    branches, because two narrow branches were the worst published. D and W are shares that were
    trained.
    """
    corners = [(p.depth, q.width) for p in points for q in points]
    regions = [
        region
        for d, w in corners
        if (region := [p for p in points if p.depth >= d and p.width >= w])
        and all(p.holds for p in region)
    ]
    found = [
        CapacityBounds(min(p.depth for p in region), min(p.width for p in region), len(region))
        for region in regions
    ]
    return max(
        found,
        key=lambda b: (b.supporting_variants, (1 - b.depth) * (1 - b.width), b.width),
        default=CapacityBounds(1.0, 1.0, 0),
    )
