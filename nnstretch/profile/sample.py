"""One measured kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnstretch.protocols import Kernel


@dataclass(frozen=True, slots=True)
class Sample:
    """A kernel and how long it took, round by round, without what the harness adds."""

    kernel: Kernel
    latencies_us: tuple[float, ...]

    @property
    def latency_us(self) -> float:
        """Mean of the faster half: a quiet machine, but not its luckiest moment, and finer than the clock's ticks."""
        fastest = sorted(self.latencies_us)[: (len(self.latencies_us) + 1) // 2]
        return float(np.mean(fastest))

    @property
    def spread(self) -> float:
        """Between the quartiles, as a share of the latency."""
        low, high = np.percentile(self.latencies_us, (25, 75))
        return float(high / low - 1)
