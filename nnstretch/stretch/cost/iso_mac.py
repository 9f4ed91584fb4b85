"""Iso-MAC baseline: a single-branch network of the same MACs, every width scaled alike.

A branched network is faster because it runs concurrently and because it is smaller; the baseline
tells how much is which.
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
from nnstretch.stretch.lowering.lower import (
    LoweredBranch,
    LoweredNetwork,
    LoweredSegment,
    lower_segment,
)
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.lowering.two_branch_plan import stage_boundaries
from nnstretch.stretch.lowering.width_scaling import round_channels
from nnstretch.structure.cuts import INPUT
from nnstretch.structure.macs import WEIGHTED

NARROWEST = 0.2
WIDEST = 4.0
"""Width ratios that are tried."""
STEP = 0.004
"""Share by which the next ratio overshoots the one that should meet the MACs."""


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
    """Latency at exactly the MACs asked for, between the two nearest widths that exist.

    Where no width has them, that of the nearest network.
    """

    latency_us: float
    processor: str
    ratio: float
    """Width over the original's, of the nearer network."""
    macs: int
    """MACs of the nearer network."""


def equal_macs(
    analysis: NetworkAnalysis,
    soc: Soc,
    cost_model: CostModel,
    processors: tuple[str, ...],
    macs: int,
) -> IsoMacBaseline:
    """Return the baseline of `macs` MACs on its fastest processor."""

    def build(ratio: float) -> LoweredNetwork:
        return uniform_plan(analysis, processors[0], ratio)

    low, high = bracket_ratio(build, analysis.graph.macs, macs)
    baselines = [interpolate(soc, cost_model, p, low, high, macs) for p in processors]
    return min(baselines, key=lambda baseline: baseline.latency_us)


def uniform_plan(analysis: NetworkAnalysis, processor: str, ratio: float) -> LoweredNetwork:
    """Return the network with every stage at the same share of its width, on one processor.

    A stage keeps its width where it cannot have the share; where its input does not allow that
    either, it is joined with the next stage.
    """
    lowered: list[LoweredSegment] = []
    start = INPUT
    entry = analysis.graph.inputs[0].spec
    for end in stage_boundaries(analysis)[:-1]:
        if not weighted_between(analysis, INPUT, end.name):
            continue
        full = analysis.graph.specs()[end.value].shape[analysis.whole_network.axis(end.value)]
        for width in (scaled_width(full, ratio), None):
            scaled = Segment(start, end.name, (Branch(processor, width=width),))
            try:
                lowered.append(lower_segment(analysis, scaled, entry))
            except BadPlan:
                continue
            start, entry = end.name, lowered[-1].output
            break
    tail = Segment(start, analysis.cuts[-1].name, (Branch(processor),))
    lowered.append(lower_segment(analysis, tail, entry))
    graph = analysis.graph
    segments = tuple(segment.segment for segment in lowered)
    plan = Plan(graph.name, graph.inputs[0].spec.shape, segments)
    return LoweredNetwork(plan, graph, tuple(lowered))


def scaled_width(full: int, ratio: float) -> int:
    """Return a share of a width, on the channel multiple where the width is large enough."""
    if full >= 2 * CHANNEL_MULTIPLE:
        return round_channels(full * ratio)
    return max(1, round(full * ratio))


def weighted_between(analysis: NetworkAnalysis, start: str, end: str) -> bool:
    """Return whether a node with weights lies between two cuts."""
    low = analysis.cut(start).position
    high = analysis.cut(end).position
    return any(node.kind in WEIGHTED for node in analysis.graph.nodes[low + 1 : high + 1])


def bracket_ratio(
    build: Callable[[float], LoweredNetwork], original: int, macs: int
) -> tuple[ScaledNetwork, ScaledNetwork]:
    """Return two ratios close to each other with the MACs between them, as far as ratios go.

    MACs grow about as the square of the width.
    """
    ratio = clip_ratio(sqrt(macs / max(1, original)))
    guess = ScaledNetwork(ratio, build(ratio))
    is_below = guess.macs < macs
    step = STEP
    while True:
        overshoot = 1 + step if is_below else 1 - step
        ratio = clip_ratio(guess.ratio * sqrt(macs / max(1, guess.macs)) * overshoot)
        neighbor = ScaledNetwork(ratio, build(ratio))
        low, high = (guess, neighbor) if is_below else (neighbor, guess)
        if low.macs <= macs <= high.macs or neighbor.ratio in (WIDEST, NARROWEST):
            return low, high
        guess = neighbor
        step *= 1.5


def clip_ratio(ratio: float) -> float:
    """Return the nearest ratio that is tried."""
    return min(WIDEST, max(NARROWEST, ratio))


def interpolate(
    soc: Soc,
    cost_model: CostModel,
    processor: str,
    low: ScaledNetwork,
    high: ScaledNetwork,
    macs: int,
) -> IsoMacBaseline:
    """Return the baseline between the two networks whose MACs enclose the wanted ones.

    That of the nearer where they do not: no width has so many, or so few.
    """
    low_us = estimate_plan(on_processor(low.network, processor), soc, cost_model).latency_us
    high_us = estimate_plan(on_processor(high.network, processor), soc, cost_model).latency_us
    share = (macs - low.macs) / (high.macs - low.macs) if high.macs != low.macs else 0.0
    share = min(1.0, max(0.0, share))
    nearer = low if share < 0.5 else high
    latency_us = low_us + (high_us - low_us) * share
    return IsoMacBaseline(latency_us, processor, nearer.ratio, nearer.macs)


def on_processor(network: LoweredNetwork, processor: str) -> LoweredNetwork:
    """Return the same layers on another processor."""

    def place(segment: Segment) -> Segment:
        branches = [replace(branch, processor=processor) for branch in segment.branches]
        return replace(segment, branches=tuple(branches))

    def place_branch(lowered: LoweredBranch) -> LoweredBranch:
        return replace(lowered, branch=replace(lowered.branch, processor=processor))

    def place_segment(lowered: LoweredSegment) -> LoweredSegment:
        branches = tuple(map(place_branch, lowered.branches))
        return replace(lowered, segment=place(lowered.segment), branches=branches)

    plan = replace(network.plan, segments=tuple(map(place, network.plan.segments)))
    return LoweredNetwork(plan, network.graph, tuple(map(place_segment, network.segments)))
