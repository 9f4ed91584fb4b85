"""How many channels each group of a branch's end gets, when together they must make a width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm

from nnstretch.structure.channel_groups import ChannelGroups

CHANNEL_MULTIPLE = 8
"""Channels come in eights on every processor of interest (NN-Stretch rounds so, too)."""


def allocate_channels(
    free: Mapping[int, int], channels: ChannelGroups, channels_left: Fraction, ratio: Fraction
) -> dict[int, Fraction]:
    """Return scales of the groups whose channels sum to `left`.

    One ratio where all stay whole, else as near to it as steps allow, else to the nearest sum.
    """
    exact = {root: size // channels.granularity[root] for root, size in free.items()}
    if all((ratio * channels.granularity[root]).denominator == 1 for root in free) and ratio > 0:
        return dict.fromkeys(free, ratio)
    coarse = exact
    if (
        len(free) > 1
        and all(size % CHANNEL_MULTIPLE == 0 for size in free.values())
        and channels_left % CHANNEL_MULTIPLE == 0
    ):
        coarse = {root: lcm(step, CHANNEL_MULTIPLE) for root, step in exact.items()}
    for step in (coarse, exact):
        count = largest_remainder(free, step, channels_left, ratio)
        if sum(count[root] * step[root] for root in free) == channels_left:
            return {root: Fraction(count[root] * step[root], free[root]) for root in free}
    count = counts_with_sum(free, exact, nearest_sum(list(exact.values()), channels_left), ratio)
    return {root: Fraction(count[root] * exact[root], free[root]) for root in free}


def largest_remainder(
    free: Mapping[int, int], step: Mapping[int, int], channels_left: Fraction, ratio: Fraction
) -> dict[int, int]:
    """Return whole steps of each group, the neediest first while something remains.

    Their sum may fall short.
    """
    count = {root: max(1, int(free[root] * ratio / step[root])) for root in free}
    spare = channels_left - sum(count[root] * step[root] for root in free)
    while fitting := [root for root in free if step[root] <= spare]:
        neediest = max(fitting, key=lambda root: free[root] * ratio - count[root] * step[root])
        count[neediest] += 1
        spare -= step[neediest]
    return count


def reachable_sums(steps: Sequence[int], limit: int) -> int:
    """Return a bit mask: bit n is set where n is a sum of at least one of every step, up to
    `limit`.
    """
    mask = (1 << (limit + 1)) - 1
    reached = (1 << sum(steps)) & mask
    for step in set(steps):
        jump = step
        while jump <= limit:
            reached |= (reached << jump) & mask
            jump *= 2
    return reached


def nearest_sum(steps: Sequence[int], wanted: Fraction) -> int:
    """Return the reachable number of channels nearest to what is wanted; the smaller of two."""
    limit = max(int(wanted) + max(steps), sum(steps)) + 1
    reached = reachable_sums(steps, limit)
    return min(
        (n for n in range(limit + 1) if reached >> n & 1), key=lambda n: (abs(n - wanted), n)
    )


def counts_with_sum(
    free: Mapping[int, int], step: Mapping[int, int], total: int, ratio: Fraction
) -> dict[int, int]:
    """Return counts that sum to a reachable total, each as near to its share as those after it
    allow.
    """
    roots = sorted(free, key=lambda root: -step[root])
    remaining = total
    count: dict[int, int] = {}
    for i, root in enumerate(roots):
        behind = (
            reachable_sums([step[r] for r in roots[i + 1 :]], remaining)
            if i + 1 < len(roots)
            else 1
        )
        possible = [
            n
            for n in range(1, remaining // step[root] + 1)
            if behind >> (remaining - n * step[root]) & 1
        ]
        count[root] = min(possible, key=lambda n: abs(n * step[root] - free[root] * ratio))
        remaining -= count[root] * step[root]
    return count
