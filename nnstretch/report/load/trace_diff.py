"""Where a run left its prediction.

The same sub-graph in the predicted and in the played timeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nnstretch.report.load.data import RunSummary, Timeline, TimelineSpan

MOST = 5


@dataclass(frozen=True, slots=True)
class TraceDifference:
    """One sub-graph of one network."""

    network: str
    """original or branched."""
    subgraph: str
    processor: str
    """Where it was played."""
    predicted_ms: float
    measured_ms: float
    timing: str
    """What kind of milliseconds the second number is: measured, or emulated."""

    @property
    def ratio(self) -> float | None:
        """Return measured over predicted; None where nothing was predicted to happen."""
        return self.measured_ms / self.predicted_ms if self.predicted_ms else None

    @property
    def off_ms(self) -> float:
        """Return by how much the measured time exceeds the predicted one, ms."""
        return self.measured_ms - self.predicted_ms


def pair_of(timelines: tuple[Timeline, ...]) -> tuple[Timeline, Timeline] | None:
    """Return the prediction and the first timeline beside it; None where one of them is missing."""
    predicted = [timeline for timeline in timelines if timeline.source == "predicted"]
    played = [timeline for timeline in timelines if timeline.source != "predicted"]
    return (predicted[0], played[0]) if predicted and played else None


def largest(
    timelines: Mapping[str, tuple[Timeline, ...]], runs: Mapping[str, RunSummary], most: int = MOST
) -> tuple[TraceDifference, ...]:
    """Return the largest differences in milliseconds, of all networks together, largest first."""
    differences_ = [
        difference
        for network, lines in timelines.items()
        for difference in differences(network, lines, runs)
    ]
    return tuple(
        sorted(
            differences_,
            key=lambda difference: (
                -abs(difference.off_ms),
                difference.network,
                difference.subgraph,
            ),
        )[:most]
    )


def timing_of(network: str, played: Timeline, runs: Mapping[str, RunSummary]) -> str:
    """Return how times came about; a trace calls what was played measured, its `timing` or the run
    beside it says where processors were emulated.
    """
    return (
        "emulated"
        if "emulated" in (played.timing, runs[network].timing if network in runs else None)
        else "measured"
    )


def differences(
    network: str, timelines: tuple[Timeline, ...], runs: Mapping[str, RunSummary]
) -> list[TraceDifference]:
    """Return the difference of every sub-graph that is in both timelines."""
    pair = pair_of(timelines)
    if pair is None:
        return []
    timing = timing_of(network, pair[1], runs)
    predicted = {named(part): part.span.duration_us / 1000 for part in pair[0].parts}
    return [
        TraceDifference(
            network,
            name,
            part.span.processor,
            predicted[name],
            part.span.duration_us / 1000,
            timing,
        )
        for part in pair[1].parts
        if (name := named(part)) in predicted
    ]


def named(part: TimelineSpan) -> str:
    """Return the sub-graph's name, whichever request it was computed for."""
    return part.span.task.subgraph
