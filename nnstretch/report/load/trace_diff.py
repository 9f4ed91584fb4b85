"""Differences of one sub-graph between the predicted and the played timeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from nnstretch.report.load.data import RunSummary
from nnstretch.report.load.timeline import Timeline

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
        """Return measured over predicted; None where nothing was predicted, or next to nothing."""
        if not self.predicted_ms:
            return None
        ratio = self.measured_ms / self.predicted_ms
        return ratio if isfinite(ratio) else None

    @property
    def off_ms(self) -> float:
        """Return by how much the measured time exceeds the predicted one, ms."""
        return self.measured_ms - self.predicted_ms


@dataclass(frozen=True, slots=True)
class TimelinePair:
    """Prediction and run of one network."""

    network: str
    predicted: Timeline
    played: Timeline


def pairs_of(timelines: Mapping[str, tuple[Timeline, ...]]) -> tuple[TimelinePair, ...]:
    """Return each network's prediction with the first timeline beside it, where it has both."""
    pairs: list[TimelinePair] = []
    for network, lines in timelines.items():
        predicted = [timeline for timeline in lines if timeline.source == "predicted"]
        played = [timeline for timeline in lines if timeline.source != "predicted"]
        if predicted and played:
            pairs.append(TimelinePair(network, predicted[0], played[0]))
    return tuple(pairs)


def timing_of(network: str, played: Timeline, runs: Mapping[str, RunSummary]) -> str:
    """Return emulated or modelled where the trace or the run beside it says so, else measured."""
    run = runs.get(network)
    kinds = (played.timing, run.timing if run else None)
    return next((kind for kind in ("emulated", "modelled") if kind in kinds), "measured")


def largest(
    timelines: Mapping[str, tuple[Timeline, ...]], runs: Mapping[str, RunSummary], most: int = MOST
) -> tuple[TraceDifference, ...]:
    """Return the largest differences in milliseconds, of all networks together, largest first."""
    differences: list[TraceDifference] = []
    for pair in pairs_of(timelines):
        differences.extend(_differences(pair, timing_of(pair.network, pair.played, runs)))
    differences.sort(key=lambda d: (-abs(d.off_ms), d.network, d.subgraph))
    return tuple(differences[:most])


def _differences(pair: TimelinePair, timing: str) -> list[TraceDifference]:
    """Compare every sub-graph that is in both timelines, whichever request it computes."""
    spans = pair.predicted.trace.spans
    predicted_ms = {span.task.subgraph: span.duration_us / 1000 for span in spans}
    differences: list[TraceDifference] = []
    for span in pair.played.trace.spans:
        name = span.task.subgraph
        if name in predicted_ms:
            times_ms = (predicted_ms[name], span.duration_us / 1000)
            differences.append(
                TraceDifference(pair.network, name, span.processor, *times_ms, timing)
            )
    return differences
