"""The proven best plan of the whole space.

Segments touch only through the merged width, so dynamic programming over (cut, merged width) is
exact. Where MACs or parameters of the whole network are bounded, labels carry them along: a label
is dropped only if another at the same cut and width is at least as good in everything that is
bounded, or if even the best completion cannot reach the bound or beat a plan already found.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nnstretch.errors import BadInput, NoPlan, UnsupportedOp
from nnstretch.graph import Graph
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.soc import Soc
from nnstretch.stretch.constraints import Limits, constraints_of
from nnstretch.stretch.edges import Choices, Edges
from nnstretch.stretch.labels import Bounds, Label, best_labels
from nnstretch.stretch.lower import Stretcher, lower, unbranched
from nnstretch.stretch.pricing import Pricer, price, uncovered
from nnstretch.stretch.space import Space
from nnstretch.stretch.uniform import Uniform, equal_macs
from nnstretch.structure.cuts import Cut
from nnstretch.trial import Trial

SPARE = 2
"""Paths per plan asked for: the same plan may be cut up in several ways where nothing branches."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Found:
    """A plan with its predicted numbers, beside the fair comparison."""

    trial: Trial
    error_us: float
    """Root-mean-square error of the predictor on a whole network, at this latency."""
    iso_mac: Uniform


@dataclass(frozen=True)
class SearchResult:
    """What a search found and how sure it is."""

    plans: tuple[Found, ...]
    original: Trial
    original_us: dict[str, float]
    """The original on each processor alone."""
    original_error_us: dict[str, float]
    refused: dict[str, int]
    log10_size: float
    optimal: bool
    lower_bound_us: float
    search_s: float
    limits: Limits = field(default_factory=Limits)
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    """Kernels that were never measured, and the kind they were priced as."""

    @property
    def fastest(self) -> str:
        return min(self.original_us, key=lambda name: self.original_us[name])


def search(
    graph: Graph | Stretcher,
    soc: Soc,
    processors: Sequence[str] = ("cpu", "dsp"),
    limits: Limits | None = None,
    min_macs: float = 0.0,
    max_macs: float = math.inf,
    min_params: float = 0.0,
    top: int = 1,
    width_steps: int = 10,
    progress: Progress | None = None,
    fallback: str | None = None,
) -> SearchResult:
    """The `top` fastest plans of a network on a chip. `min_macs`, `max_macs`, `min_params` are absolute counts.

    Raises NoPlan where no plan satisfies the bounds, UnknownName for a processor the chip lacks,
    UnsupportedOp where a kernel was never measured and no `fallback` (`nearest`) is allowed.
    """
    began = time.perf_counter()
    check_settings(soc, processors, top, width_steps)
    if min_macs > max_macs:
        raise BadInput(f"MACs cannot be at least {min_macs:.4g} and at most {max_macs:.4g}, search bounds")
    stretcher = graph if isinstance(graph, Stretcher) else Stretcher(graph)
    pricer = Pricer(soc, fallback)
    if missing := uncovered(stretcher.graph, soc, processors, pricer):
        named = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise UnsupportedOp(f"{len(missing)} kernels were never measured ({named}), {stretcher.graph.name} on {soc.name}, allow --fallback nearest")
    space = Space(stretcher, pricer, tuple(processors), limits or Limits(), width_steps)
    originals = {p: price(lower(stretcher, unbranched(stretcher.graph, stretcher.graph.name, p)), soc, pricer) for p in processors}
    net = Net(space)
    net.explore(progress)
    wanted = 1 if top == 1 else SPARE * top
    labels, bound_us, complete = best_labels(net.cuts, net.edges, Bounds(min_macs, max_macs, min_params), wanted)
    if not labels:
        raise NoPlan(why_none(net, stretcher.graph, min_macs, max_macs, min_params))
    plans = tuple(dict.fromkeys(net.plan(label) for label in labels))[:top]
    found = [finished(plan, stretcher, soc, pricer, processors) for plan in plans]
    found.sort(key=lambda f: f.trial.latency_us)
    return SearchResult(
        plans=tuple(found),
        original=originals[processors[0]],
        original_us={p: t.latency_us for p, t in originals.items()},
        original_error_us={p: error_of(t) for p, t in originals.items()},
        refused=dict(net.prices.refused),
        log10_size=net.log10_size(),
        optimal=complete,
        lower_bound_us=min(bound_us, found[0].trial.latency_us) if not complete else found[0].trial.latency_us,
        search_s=time.perf_counter() - began,
        limits=space.limits,
        fallbacks=dict(pricer.replaced),
    )


def check_settings(soc: Soc, processors: Sequence[str], top: int, width_steps: int) -> None:
    for name in processors:
        soc.processor(name)
    if len(set(processors)) != len(processors) or not processors:
        raise BadInput(f"processors are {', '.join(processors) or 'none'}, search on {soc.name}, name each once")
    if top < 1 or width_steps < 2:
        raise BadInput(f"top is {top} and width_steps {width_steps}, search settings, they must be at least 1 and 2")


@dataclass
class Net:
    """Cuts and merged widths as nodes, admissible segments as edges."""

    space: Space
    edges: dict[tuple[int, int], list[tuple[int, Choices]]] = field(default_factory=dict)
    """(cut, width) -> choices up to each later cut."""
    cuts: tuple[Cut, ...] = ()
    prices: Edges = field(init=False)
    options: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prices = Edges(self.space, Counter())
        self.cuts = self.space.cuts()

    def explore(self, progress: Progress | None) -> None:
        """Price every segment at every width that can reach it, in execution order."""
        entry = self.space.stretcher.graph.inputs[0].spec.shape
        first = entry[self.space.stretcher.piece(self.cuts[0], self.cuts[1], None).axis_in]
        reachable: list[set[int]] = [{first}] + [set() for _ in self.cuts[1:]]
        for i in range(len(self.cuts) - 1):
            for width in sorted(reachable[i]):
                rows = self.edges.setdefault((i, width), [])
                for j in range(i + 1, len(self.cuts)):
                    counting = (i, j) not in self.options
                    choices = self.prices.choices(self.cuts[i], self.cuts[j], width, counting)
                    if counting:
                        self.options[i, j] = self.count(i, j)
                    rows.append((j, choices))
                    reachable[j] |= set(choices.width.tolist())
            if progress:
                progress(i + 1, len(self.cuts) - 1)

    def count(self, i: int, j: int) -> int:
        """Settings of one segment before any constraint."""
        n = len(self.space.processors)
        if j == len(self.cuts) - 1:
            return n
        each = len(self.space.depths(self.cuts[i], self.cuts[j])) * len(self.space.widths(self.cuts[i], self.cuts[j]))
        return n + n * (n - 1) // 2 * each * each

    def log10_size(self) -> float:
        """Plans in the space, constraints apart: products over all ways to place meeting points."""
        ways = [1] + [0] * (len(self.cuts) - 1)
        for j in range(1, len(self.cuts)):
            ways[j] = sum(ways[i] * self.options.get((i, j), 0) for i in range(j))
        return math.log10(ways[-1]) if ways[-1] else 0.0

    def plan(self, label: Label) -> Plan:
        """The plan behind a label; neighbouring segments alone on one processor are one segment."""
        graph = self.space.stretcher.graph
        segments: list[Segment] = []
        for i, j, choices, k in label.steps():
            branches = choices.describe(k)
            before = segments[-1] if segments else None
            if before and not before.branched and len(branches) == 1 and before.branches == branches:
                segments[-1] = Segment(before.start, self.cuts[j].name, branches)
            else:
                segments.append(Segment(self.cuts[i].name, self.cuts[j].name, branches))
        return Plan(graph.name, graph.inputs[0].spec.shape, tuple(segments), self.space.pricer.soc.name)


def finished(plan: Plan, stretcher: Stretcher, soc: Soc, pricer: Pricer, processors: Sequence[str]) -> Found:
    trial = price(lower(stretcher, plan), soc, pricer)
    return Found(trial, error_of(trial), equal_macs(stretcher, soc, pricer, tuple(processors), trial.macs))


def error_of(trial: Trial) -> float:
    """Errors of one predictor lean one way, so those of segments add up; of branches, the slowest counts."""
    return sum(max(segment.branches, key=lambda b: b.latency_us).error_us for segment in trial.segments)


def why_none(net: Net, graph: Graph, min_macs: float, max_macs: float, min_params: float) -> str:
    counts = ", ".join(f"{name} {count}" for name, count in net.prices.refused.items()) or "none"
    bounds = f"MACs {min_macs:.4g} to {max_macs:.4g}, parameters from {min_params:.4g}"
    return f"no plan for {graph.name}, bounds {bounds} (original {graph.macs} MACs, {graph.params} parameters), refused by constraint: {counts}"


__all__ = ["Branch", "Found", "SearchResult", "constraints_of", "search"]
