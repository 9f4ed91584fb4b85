"""The fair comparison: a single-branch network of the same MACs, every width scaled alike.

A branched network is faster because it runs concurrently and because it is smaller; beside this one
a reader sees how much is which.
"""

from __future__ import annotations

from dataclasses import dataclass

from nnstretch.errors import BadPlan
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.soc import Soc
from nnstretch.stretch.lower import Stretched, Stretcher, lower
from nnstretch.stretch.pricing import Pricer, price
from nnstretch.stretch.scales import GRANULE, round_to_granule
from nnstretch.stretch.survey import boundaries
from nnstretch.structure.cuts import INPUT
from nnstretch.work import WEIGHTED


@dataclass(frozen=True, slots=True)
class Uniform:
    """Latency at exactly the MACs asked for, between the two nearest widths that exist."""

    latency_us: float
    processor: str
    ratio: float
    """Width over the original's, of the nearer network."""
    macs: int
    """MACs of the nearer network."""


def uniform_plan(stretcher: Stretcher, processor: str, ratio: float) -> Stretched:
    """Every stage at the same share of its width, on one processor."""
    segments: list[Segment] = []
    start = INPUT
    ends = [c for c in boundaries(stretcher)[:-1] if weighted_between(stretcher, start, c.name)]
    entry = stretcher.graph.inputs[0].spec
    for end in (*ends, stretcher.cuts[-1]):
        if end == stretcher.cuts[-1]:
            segments.append(Segment(start, end.name, (Branch(processor),)))
            break
        full = stretcher.graph.specs()[end.value].shape[stretcher.whole.axis(end.value)]
        width = round_to_granule(full * ratio) if full >= 2 * GRANULE else max(1, round(full * ratio))
        chosen = Segment(start, end.name, (Branch(processor, width=width),))
        try:
            entry = stretcher.segment(chosen, entry).output
        except BadPlan:
            chosen = Segment(start, end.name, (Branch(processor),))
            entry = stretcher.segment(chosen, entry).output
        segments.append(chosen)
        start = end.name
    return lower(stretcher, Plan(stretcher.graph.name, stretcher.graph.inputs[0].spec.shape, tuple(segments)))


def weighted_between(stretcher: Stretcher, start: str, end: str) -> bool:
    low, high = stretcher.cut(start).position, stretcher.cut(end).position
    return any(node.kind in WEIGHTED for node in stretcher.graph.nodes[low + 1 : high + 1])


def equal_macs(stretcher: Stretcher, soc: Soc, pricer: Pricer, processors: tuple[str, ...], macs: int) -> Uniform:
    """The uniformly scaled network of `macs` MACs on its fastest processor."""
    low, high = 0.2, 1.0
    while uniform_plan(stretcher, processors[0], high).macs < macs and high < 4:
        low, high = high, high * 1.25
    for _ in range(8):
        middle = (low + high) / 2
        low, high = (middle, high) if uniform_plan(stretcher, processors[0], middle).macs < macs else (low, middle)
    return min((between(stretcher, soc, pricer, p, low, high, macs) for p in processors), key=lambda u: u.latency_us)


def between(stretcher: Stretcher, soc: Soc, pricer: Pricer, processor: str, low: float, high: float, macs: int) -> Uniform:
    below, above = (uniform_plan(stretcher, processor, ratio) for ratio in (low, high))
    times = [price(s, soc, pricer).latency_us for s in (below, above)]
    share = (macs - below.macs) / (above.macs - below.macs) if above.macs != below.macs else 0.0
    nearer, ratio = (below, low) if share < 0.5 else (above, high)
    return Uniform(times[0] + (times[1] - times[0]) * share, processor, ratio, nearer.macs)
