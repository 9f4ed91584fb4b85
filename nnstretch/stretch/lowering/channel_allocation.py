"""How many channels each group of a branch's end gets, when together they must make a width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm

from nnstretch.structure.channel_groups import ChannelGroups

CHANNEL_MULTIPLE = 8
"""Channels come in eights on every processor of interest (NN-Stretch rounds so, too)."""

Sizes = Mapping[int, int]
"""Root of a group -> channels."""


def allocate_channels(
    free: Sizes, channels: ChannelGroups, total: Fraction, ratio: Fraction
) -> dict[int, Fraction]:
    """Return scales of the groups so that their channels sum to `total`, each near `ratio`.

    One ratio where all stay whole, else in multiples of eight, else in single steps, else to the
    nearest sum that the groups can have.
    """
    if ratio > 0 and all((ratio * channels.granularity[root]).denominator == 1 for root in free):
        return dict.fromkeys(free, ratio)
    steps = {root: size // channels.granularity[root] for root, size in free.items()}
    for step in (coarse_steps(free, steps, total), steps):
        count = largest_remainder(free, step, total, ratio)
        if sum(count[root] * step[root] for root in free) == total:
            break
    else:
        step = steps
        count = counts_with_sum(free, steps, nearest_sum(list(steps.values()), total), ratio)
    return {root: Fraction(count[root] * step[root], size) for root, size in free.items()}


def coarse_steps(free: Sizes, steps: Sizes, total: Fraction) -> Sizes:
    """Return steps on the channel multiple where several groups and their sum are multiples."""
    aligned = all(size % CHANNEL_MULTIPLE == 0 for size in free.values())
    if len(free) == 1 or not aligned or total % CHANNEL_MULTIPLE:
        return steps
    return {root: lcm(step, CHANNEL_MULTIPLE) for root, step in steps.items()}


def largest_remainder(free: Sizes, step: Sizes, total: Fraction, ratio: Fraction) -> dict[int, int]:
    """Return steps of each group, the neediest first; their sum may fall short of `total`."""
    count = {root: max(1, int(free[root] * ratio / step[root])) for root in free}
    spare = total - sum(count[root] * step[root] for root in free)
    while fitting := [root for root in free if step[root] <= spare]:
        neediest = max(fitting, key=lambda root: free[root] * ratio - count[root] * step[root])
        count[neediest] += 1
        spare -= step[neediest]
    return count


def reachable_sums(steps: Sequence[int], limit: int) -> int:
    """Return a bit mask of the sums up to `limit` that at least one of every step can make."""
    mask = (1 << (limit + 1)) - 1
    reached = (1 << sum(steps)) & mask
    for step in set(steps):
        jump = step
        while jump <= limit:
            reached |= (reached << jump) & mask
            jump *= 2
    return reached


def nearest_sum(steps: Sequence[int], wanted: Fraction) -> int:
    """Return the reachable sum nearest to `wanted`; the smaller of two."""
    limit = max(int(wanted) + max(steps), sum(steps)) + 1
    reached = reachable_sums(steps, limit)
    sums = [n for n in range(limit + 1) if reached >> n & 1]
    return min(sums, key=lambda n: (abs(n - wanted), n))


def counts_with_sum(free: Sizes, step: Sizes, total: int, ratio: Fraction) -> dict[int, int]:
    """Return steps of each group that sum to a reachable total, coarsest group first."""
    roots = sorted(free, key=lambda root: -step[root])
    remaining = total
    count: dict[int, int] = {}
    for i, root in enumerate(roots):
        following = [step[r] for r in roots[i + 1 :]]
        reachable = reachable_sums(following, remaining) if following else 1
        numbers = range(1, remaining // step[root] + 1)
        possible = [n for n in numbers if reachable >> (remaining - n * step[root]) & 1]
        count[root] = min(possible, key=lambda n: abs(n * step[root] - free[root] * ratio))
        remaining -= count[root] * step[root]
    return count
