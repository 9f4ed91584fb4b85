"""What a team of processors pays in any segment, whatever the segment."""

from __future__ import annotations

from dataclasses import dataclass

from nnstretch.soc import Link, Soc


@dataclass(frozen=True)
class Team:
    """Processors that work on one segment, one or several."""

    price_keys: list[str]
    """What each processor's kernels are priced under."""
    slowdown: float
    """Factor on compute while all of them run."""
    sync_us: float
    copies_in: list[Link]
    copies_out: list[Link]

    @classmethod
    def on(cls, soc: Soc, processors: tuple[str, ...]) -> Team:
        """Return the team of these processors of a chip."""
        team = [soc.processor_among(p, processors) for p in processors]
        is_branched = len(processors) > 1
        return cls(
            [soc.price_key(p, processors) for p in processors],
            soc.contention_factor(frozenset(processors)) if is_branched else 1.0,
            max(processor.sync_us for processor in team),
            [processor.copy_in for processor in team],
            [processor.copy_out for processor in team],
        )
