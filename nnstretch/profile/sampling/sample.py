"""One measured kernel, and what many of them tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnstretch.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Sample:
    """A kernel and how long it took, round by round, without what the harness adds."""

    kernel: Kernel
    latencies_us: tuple[float, ...]
    reference_us: float = 0.0
    """What the reference kernel of its medley took; 0 where there was none."""

    @property
    def latency_us(self) -> float:
        """Return the mean of the faster half, us.

        A quiet machine, but not its luckiest moment, and finer than the clock's ticks.
        """
        fastest = sorted(self.latencies_us)[: (len(self.latencies_us) + 1) // 2]
        return float(np.mean(fastest))

    @property
    def spread(self) -> float:
        """Return the distance between the quartiles, as a share of the latency."""
        low, high = np.percentile(self.latencies_us, (25, 75))
        return float(high / low - 1)


TOLERATED = 1.12
"""Times the usual reference within which a medley counts as undisturbed.

What a reference takes also depends on its company.
"""
MOST = 1.5
"""Nobody believes a correction beyond this."""
REPRESENTATIVES = 16
"""Kernels that stand for all."""


def normalize_disturbed(samples: Sequence[Sample]) -> list[Sample]:
    """Divide samples of a clearly slower machine by how much slower the reference was."""
    references = [sample.reference_us for sample in samples if sample.reference_us > 0]
    if not references:
        return list(samples)
    usual_us = float(np.median(references))
    corrected: list[Sample] = []
    for sample in samples:
        factor = min(max(sample.reference_us / usual_us / TOLERATED, 1.0), MOST)
        latencies_us = tuple(time_us / factor for time_us in sample.latencies_us)
        corrected.append(replace(sample, latencies_us=latencies_us))
    return corrected


def representative_kernels(samples: Sequence[Sample]) -> list[Kernel]:
    """Return kernels of the sizes that most of a network's time goes to, evenly over them."""
    order = sorted(
        (s for s in samples if 100 <= s.latency_us <= 3000 and s.kernel.kind != "reorder"),
        key=lambda s: s.latency_us,
    )
    count = min(len(order), REPRESENTATIVES)
    # The middle of each of as many equal shares of the ranks.
    return [order[(2 * i + 1) * len(order) // (2 * count)].kernel for i in range(count)]
