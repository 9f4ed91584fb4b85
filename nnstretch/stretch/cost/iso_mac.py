"""The fair comparison: a single-branch network of the same MACs, every width scaled alike.

A branched network is faster because it runs concurrently and because it is smaller; beside this one
a reader sees how much is which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

from nnstretch.errors import BadPlan
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.soc import Soc
from nnstretch.stretch.cost.cost_model import CostModel, estimate_plan
from nnstretch.stretch.lowering.channel_allocation import CHANNEL_MULTIPLE
from nnstretch.stretch.lowering.lower import LoweredNetwork, NetworkAnalysis, lower
from nnstretch.stretch.lowering.two_branch_plan import stage_boundaries
from nnstretch.stretch.lowering.width_scaling import round_channels
from nnstretch.structure.cuts import INPUT
from nnstretch.structure.macs import WEIGHTED

NARROWEST, WIDEST = 0.2, 4.0
"""Ratios of width that are tried."""
STEP = 0.004
"""How far beyond the ratio that should meet the MACs the next one lies."""


@dataclass(frozen=True)
class ScaledNetwork:
    """A uniformly scaled network."""

    ratio: float
    network: LoweredNetwork

    @cached_property
    def macs(self) -> int:
        """Return the MACs of the scaled network."""
        return self.network.macs


@dataclass(frozen=True, slots=True)
class IsoMacBaseline:
    """Latency at exactly the MACs asked for, between the two nearest widths that exist."""

    latency_us: float
    processor: str
    ratio: float
    """Width over the original's, of the nearer network."""
    macs: int
    """MACs of the nearer network."""


def uniform_plan(analysis: NetworkAnalysis, processor: str, ratio: float) -> LoweredNetwork:
    """Return every stage at the same share of its width, on one processor."""
    segments: list[Segment] = []
    start = INPUT
    ends = [c for c in stage_boundaries(analysis)[:-1] if weighted_between(analysis, start, c.name)]
    entry = analysis.graph.inputs[0].spec
    for end in (*ends, analysis.cuts[-1]):
        if end == analysis.cuts[-1]:
            segments.append(Segment(start, end.name, (Branch(processor),)))
            break
        full = analysis.graph.specs()[end.value].shape[analysis.whole_network.axis(end.value)]
        width = (
            round_channels(full * ratio)
            if full >= 2 * CHANNEL_MULTIPLE
            else max(1, round(full * ratio))
        )
        chosen = Segment(start, end.name, (Branch(processor, width=width),))
        try:
            entry = analysis.lower_segment(chosen, entry).output
        except BadPlan:
            chosen = Segment(start, end.name, (Branch(processor),))
            entry = analysis.lower_segment(chosen, entry).output
        segments.append(chosen)
        start = end.name
    return lower(
        analysis, Plan(analysis.graph.name, analysis.graph.inputs[0].spec.shape, tuple(segments))
    )


def weighted_between(analysis: NetworkAnalysis, start: str, end: str) -> bool:
    """Return whether a node with weights lies between two cuts."""
    low, high = analysis.cut(start).position, analysis.cut(end).position
    return any(node.kind in WEIGHTED for node in analysis.graph.nodes[low + 1 : high + 1])


def equal_macs(
    analysis: NetworkAnalysis,
    soc: Soc,
    cost_model: CostModel,
    processors: tuple[str, ...],
    macs: int,
) -> IsoMacBaseline:
    """Return the uniformly scaled network of `macs` MACs on its fastest processor."""
    low, high = bracket_ratio(
        lambda ratio: uniform_plan(analysis, processors[0], ratio), analysis.graph.macs, macs
    )
    return min(
        (interpolate(soc, cost_model, p, low, high, macs) for p in processors),
        key=lambda u: u.latency_us,
    )


def bracket_ratio(
    built: Callable[[float], LoweredNetwork], original: int, macs: int
) -> tuple[ScaledNetwork, ScaledNetwork]:
    """Return two ratios close to each other with the MACs between them, as far as ratios go.

    MACs grow about as the square of the width.
    """
    ratio, step = min(WIDEST, max(NARROWEST, sqrt(macs / max(1, original)))), STEP
    guess = ScaledNetwork(ratio, built(ratio))
    up = guess.macs < macs
    while True:
        ratio = min(
            WIDEST,
            max(
                NARROWEST,
                guess.ratio * sqrt(macs / max(1, guess.macs)) * (1 + step if up else 1 - step),
            ),
        )
        neighbor = ScaledNetwork(ratio, built(ratio))
        low, high = (guess, neighbor) if up else (neighbor, guess)
        if low.macs <= macs <= high.macs or neighbor.ratio in (WIDEST, NARROWEST):
            return low, high
        guess, step = neighbor, 1.5 * step


def interpolate(
    soc: Soc,
    cost_model: CostModel,
    processor: str,
    low: ScaledNetwork,
    high: ScaledNetwork,
    macs: int,
) -> IsoMacBaseline:
    """Return the baseline between the two networks whose MACs enclose the wanted ones."""
    times = [
        estimate_plan(on_processor(network.network, processor), soc, cost_model).latency_us
        for network in (low, high)
    ]
    share = (macs - low.macs) / (high.macs - low.macs) if high.macs != low.macs else 0.0
    nearer = low if share < 0.5 else high
    return IsoMacBaseline(
        times[0] + (times[1] - times[0]) * share, processor, nearer.ratio, nearer.macs
    )


def on_processor(network: LoweredNetwork, processor: str) -> LoweredNetwork:
    """Return the same layers on another processor."""

    def there(segment: Segment) -> Segment:
        return replace(
            segment, branches=tuple(replace(b, processor=processor) for b in segment.branches)
        )

    segments = tuple(
        replace(
            s,
            segment=there(s.segment),
            branches=tuple(
                replace(b, branch=replace(b.branch, processor=processor)) for b in s.branches
            ),
        )
        for s in network.segments
    )
    return LoweredNetwork(
        replace(network.plan, segments=tuple(map(there, network.plan.segments))),
        network.graph,
        segments,
    )
