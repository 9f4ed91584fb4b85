"""How much slower than predicted each processor is now, and when to act on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from nnstretch.errors import BadInput
from nnstretch.task import WorkKey

FAILED = inf
"""Slowdown of a processor that has failed."""


@dataclass(slots=True)
class LearnedRatio:
    """Measured over predicted time of work on a processor, and how often it was measured."""

    ratio: float = 1.0
    count: int = 0


@dataclass(frozen=True, slots=True)
class AdaptationSettings:
    """How quickly to believe that a processor is slow, and when to leave it."""

    gain: float = 0.05
    """A plan, or what remains of a request, must be expected to end so much sooner (hysteresis)."""
    evidence: float = 0.05
    """Predicted length of a task that counts as much as all tasks before it.

    As a share of a request's latency.
    """
    half_life: float = 16.0
    """Time after which half of a slowdown is forgotten, in latencies of a request.

    Otherwise a processor that was left would never be tried again.
    """
    patience: int = 2
    """Requests for which another plan must have been better before it is used."""
    probe_every: int = 4
    """Requests between two probes of idle processors."""
    moves: bool = True
    """Whether tasks leave a slow processor inside a request, too."""
    slow: float = 1.25
    """Slowdown above which tasks are moved, relative to the least slowed processor."""

    def __post_init__(self) -> None:
        positive = self.evidence > 0 and self.half_life > 0
        counts = self.patience >= 1 and self.probe_every >= 1
        if not (self.slow >= 1 and 0 <= self.gain < 1 and positive and counts):
            raise BadInput(
                f"{self}, moves, needed are slow of at least 1, 0 <= gain < 1, evidence and"
                " half_life above 0, patience and probe_every of at least 1"
            )


@dataclass(slots=True)
class SlowdownEstimator:
    """Measured over predicted time of tasks: by processor, and by what is computed on it.

    Of a processor recent and long tasks count most; of work on a processor, all tasks alike.
    """

    evidence_us: float
    half_life_us: float
    moving_share: float = 0.1
    """Weight of a task in the moving average of its kind, once there were ten of them."""
    _factors: dict[str, tuple[float, float]] = field(default_factory=dict)
    """A factor, and when it was updated."""
    _ratios: dict[tuple[WorkKey, str], LearnedRatio] = field(default_factory=dict)
    """By work and processor."""

    def observe(self, processor: str, predicted_us: float, took_us: float, now_us: float) -> None:
        """Learn from a task that has ended; one predicted to take no time says nothing."""
        if predicted_us > 0:
            before = self.factor(processor, now_us)
            share = predicted_us / (predicted_us + self.evidence_us)
            factor = before + share * (took_us / predicted_us - before)
            self._factors[processor] = (factor, now_us)

    def factor(self, processor: str, now_us: float) -> float:
        """Return the slowdown: 1 where nothing was observed, and approaching 1 ever after."""
        factor, updated_us = self._factors.get(processor, (1.0, now_us))
        return float(1 + (factor - 1) * 0.5 ** ((now_us - updated_us) / self.half_life_us))

    def learn(
        self, learned: LearnedRatio, predicted_us: float, took_us: float, rounding_us: float
    ) -> bool:
        """Learn how far the prediction of work on a processor is off; return whether that changed.

        The mean at first, then a moving average; a prediction of no time says nothing.
        """
        if predicted_us <= 0:
            return False
        learned.count += 1
        if -rounding_us <= took_us - predicted_us * learned.ratio <= rounding_us:
            return False
        share = max(self.moving_share, 1 / learned.count)
        learned.ratio += share * (took_us / predicted_us - learned.ratio)
        return True

    def learned(self, work: WorkKey, processor: str) -> LearnedRatio:
        """Return what is known of work on a processor, kept up to date by `learn`."""
        learned = self._ratios.get((work, processor))
        if learned is None:
            learned = self._ratios[work, processor] = LearnedRatio()
        return learned

    def forget(self, processor: str) -> None:
        """Take a processor to be as fast as predicted."""
        self._factors.pop(processor, None)


def slowdown_estimator(settings: AdaptationSettings, latency_us: float) -> SlowdownEstimator:
    """Return an estimator for requests of this latency."""
    latency_us = max(1.0, latency_us)
    return SlowdownEstimator(settings.evidence * latency_us, settings.half_life * latency_us)
