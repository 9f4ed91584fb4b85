"""One search with all its settings, to be repeated with other limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nnstretch.errors import NoPlan

if TYPE_CHECKING:
    from nnstretch.soc import Soc
    from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
    from nnstretch.stretch.search.constraints import SegmentLimits
    from nnstretch.stretch.search.search_result import SearchResult


@dataclass(frozen=True)
class SearchRequest:
    """Network, chip, limits and bounds of a search."""

    analysis: NetworkAnalysis
    soc: Soc
    processors: tuple[str, ...]
    limits: SegmentLimits
    bounds: Mapping[str, float]
    width_steps: int | None
    merges: tuple[str, ...]
    fallback: str | None

    def __call__(self, settings: Mapping[str, float], progress: Any, top: int = 1) -> SearchResult:
        """Search with settings that replace limits and tighten bounds.

        Raises NoPlan when the tightened bounds contradict each other.
        """
        from nnstretch.stretch.search.search import search

        changes = {name: value for name, value in settings.items() if name not in self.bounds}
        limits = replace(self.limits, **changes)
        bounds = {name: max(low, settings.get(name, low)) for name, low in self.bounds.items()}
        if settings and bounds["min_macs"] > bounds["max_macs"]:
            raise NoPlan(
                f"MACs cannot be at least {bounds['min_macs']:.4g} and at most"
                f" {bounds['max_macs']:.4g}, search bounds"
            )
        return search(
            self.analysis,
            self.soc,
            self.processors,
            limits,
            top=top,
            width_steps=self.width_steps,
            progress=progress,
            fallback=self.fallback,
            merges=self.merges,
            **bounds,
        )
