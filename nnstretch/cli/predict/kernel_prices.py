"""What every kernel of a prediction is priced at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nnstretch.errors import UnsupportedOp
from nnstretch.soc import processor_of

if TYPE_CHECKING:
    from nnstretch.graph import Graph
    from nnstretch.kernel import Kernel
    from nnstretch.soc import Soc
    from nnstretch.stretch.cost.cost_model import CostModel
    from nnstretch.stretch.lowering.lower import LoweredNetwork


@dataclass(frozen=True, slots=True)
class PricedGraph:
    """A graph on one processor, with what slows its kernels there."""

    graph: Graph
    price_key: str
    slowdown: float = 1.0
    """Factor on its compute while the other branches of its segment run."""
    segment: Mapping[str, str] = field(default_factory=dict)
    """Start and end of a plan's segment; empty for a whole network."""


@dataclass
class KernelPrices:
    """Kernels of graphs on their processors, as JSON data."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """Every kernel that has a price."""
    outside: list[dict[str, Any]] = field(default_factory=list)
    """Kernels of `rows` outside the measured range, with the feature that is."""
    uncovered: dict[str, None] = field(default_factory=dict)
    """Names of kernels of a kind that was never measured, with a price or without."""
    unpriced: dict[str, dict[str, None]] = field(default_factory=dict)
    """By processor, names of those without a price there."""

    def add(self, kernel: Kernel, priced: PricedGraph, cost_model: CostModel) -> None:
        """Add a kernel of a graph."""
        processor = processor_of(priced.price_key)
        where = {"name": kernel.name, "kind": kernel.kind, "processor": processor, **priced.segment}
        try:
            estimate = cost_model.estimate_kernel(kernel, priced.price_key)
        except UnsupportedOp:
            self.uncovered[kernel.name] = None
            self.unpriced.setdefault(processor, {})[kernel.name] = None
            return
        row: dict[str, Any] = where | {
            "latency_ms": priced.slowdown * estimate.latency_us / 1000,
            "error_ms": priced.slowdown * estimate.error_us / 1000,
        }
        if estimate.interval_us is not None:
            row["interval_ms"] = [priced.slowdown * us / 1000 for us in estimate.interval_us]
        self.rows.append(row)
        if reason := cost_model.outside(kernel, priced.price_key):
            self.outside.append(where | {"reason": reason})


def price_kernels(graphs: Iterable[PricedGraph], cost_model: CostModel) -> KernelPrices:
    """Price the kernels of graphs, as their processors' backends fuse them."""
    from nnstretch.stretch.cost.cost_model import unmeasured_kinds

    prices = KernelPrices()
    for priced in graphs:
        kernels = cost_model.fuse_kernels(priced.graph, priced.price_key)
        for kernel in kernels:
            prices.add(kernel, priced, cost_model)
        unmeasured = unmeasured_kinds(kernels, cost_model.soc, priced.price_key)
        prices.uncovered.update(dict.fromkeys(unmeasured))
    return prices


def branches_beside_others(lowered: LoweredNetwork, soc: Soc) -> list[PricedGraph]:
    """Return the branches of a plan, each priced beside the others of its segment."""
    graphs: list[PricedGraph] = []
    for segment in lowered.segments:
        team = segment.processors
        slowdown = soc.contention_factor(frozenset(team)) if len(team) > 1 else 1.0
        ends = {"start": segment.segment.start, "end": segment.segment.end}
        for name, branch in zip(team, segment.branches, strict=True):
            graphs.append(PricedGraph(branch.graph, soc.price_key(name, team), slowdown, ends))
    return graphs


def prices_json(
    prices: KernelPrices, cost_model: CostModel, processors: Sequence[str]
) -> dict[str, Any]:
    """Return prices, with the provenance of the predictors, as JSON data."""
    from nnstretch.predict.described import described_machines

    soc = cost_model.soc
    described = described_machines(soc, processors)
    unpriced = {processor: list(names) for processor, names in prices.unpriced.items()}
    return {
        "kernels": prices.rows,
        "uncovered": list(prices.uncovered),
        "outside": prices.outside,
        "fallbacks": cost_model.fallbacks,
        "provenance": soc.provenance,
        "calibrated": soc.calibrated,
        "noisy": soc.noisy,
        **({"unpriced": unpriced} if unpriced else {}),
        **({"accelerators": described} if described else {}),
    }
