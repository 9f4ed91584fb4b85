"""Latencies of any number of requests in bounded memory."""

from __future__ import annotations

from array import array
from math import exp, inf, log

EXACT = 65_536
"""From so many on they are counted in buckets; fewer are kept as they are."""
WIDTH = 0.001
"""Relative width of a bucket: quantiles are within half of it, 0.05%."""


class Latencies:
    """Mean, extremes and quantiles of latencies, us; quantiles are exact for fewer than 65,536."""

    def __init__(self) -> None:
        self.count = 0
        self.total_us = 0.0
        self.least_us = inf
        self.most_us = 0.0
        self._exact = array("d")
        self._buckets: dict[int, int] = {}

    def add(self, latency_us: float) -> None:
        """Add a latency."""
        self.count += 1
        self.total_us += latency_us
        if latency_us < self.least_us:
            self.least_us = latency_us
        if latency_us > self.most_us:
            self.most_us = latency_us
        if self._buckets:
            self._fold(latency_us)
            return
        self._exact.append(latency_us)
        if self.count >= EXACT:
            for kept_us in self._exact:
                self._fold(kept_us)
            del self._exact[:]

    @property
    def mean_us(self) -> float:
        """Return the mean; 0 where there is none."""
        return self.total_us / self.count if self.count else 0.0

    def quantile_us(self, share: float) -> float:
        """Return the least latency that this share of all does not exceed; 0 without any.

        Of 65,536 or more it is within 0.05%, and never outside of what there was.
        """
        rank = max(1, -int(-share * self.count // 1))
        if not self.count:
            return 0.0
        if not self._buckets:
            return sorted(self._exact)[rank - 1]
        passed = 0
        for bucket in sorted(self._buckets):
            passed += self._buckets[bucket]
            if passed >= rank:
                break
        return min(max(exp((bucket + 0.5) * WIDTH), self.least_us), self.most_us)

    def summary_ms(self) -> dict[str, float | None]:
        """Return mean and percentiles, ms; None for each where there is no latency."""
        quantiles = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
        if not self.count:
            return dict.fromkeys(("mean", *quantiles))
        of_quantiles = {name: self.quantile_us(share) / 1000 for name, share in quantiles.items()}
        return {"mean": self.mean_us / 1000, **of_quantiles}

    def merge(self, latencies: Latencies) -> None:
        """Add all latencies of another."""
        for latency_us in latencies._exact:
            self.add(latency_us)
        if not latencies._buckets:
            return
        for kept_us in self._exact:
            self._fold(kept_us)
        del self._exact[:]
        for bucket, number in latencies._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + number
        self.count += latencies.count
        self.total_us += latencies.total_us
        self.least_us = min(self.least_us, latencies.least_us)
        self.most_us = max(self.most_us, latencies.most_us)

    def _fold(self, latency_us: float) -> None:
        bucket = int(log(max(latency_us, 1e-6)) / WIDTH // 1)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
