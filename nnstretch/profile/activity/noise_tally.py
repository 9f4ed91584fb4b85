"""What other work cost a profile, and whether the profile is noisy by it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from nnstretch.files.limits import Range

Amount = Annotated[float, Range(0)]
MOST_DOUBTED = 0.10
"""Share of the measured time whose kernels nobody could measure undisturbed."""
MOST_SLOW = 0.25
"""Share of the medleys in which the reference kernel stayed slow."""
NOTICED = 0.05
"""Share of the time waited for a core that may explain an error."""
LARGE_ERROR = 0.10
"""Mean error on whole networks that is more than a quiet machine shows."""


@dataclass(frozen=True, slots=True)
class NoiseTally:
    """Seconds and kernels of one profile, or of a part of it."""

    measured_s: Amount = 0.0
    """Seconds of all measurements."""
    waited_s: Amount = 0.0
    """Of them, waiting for a core that others had."""
    repeated_s: Amount = 0.0
    """Of them, measuring again."""
    paused_s: Amount = 0.0
    """Seconds in which nothing was measured, to let others end."""
    beside_s: Amount = 0.0
    """Processor time that others took meanwhile."""
    medleys: Amount = 0
    slow_medleys: Amount = 0
    """Of them, those whose reference kernel stayed slow."""
    kept_us: Amount = 0.0
    """Latency of the kernels that were kept, all together."""
    doubted_us: Amount = 0.0
    """Latency of the kernels that were measured and not kept."""
    doubted: Amount = 0

    def __add__(self, more: NoiseTally) -> NoiseTally:
        names = [field.name for field in fields(self)]
        return NoiseTally(*(getattr(self, name) + getattr(more, name) for name in names))

    @property
    def lost_s(self) -> float:
        """Return the seconds that others cost: waits, what was measured again, and pauses."""
        first_share = 1 - self.repeated_s / self.measured_s if self.measured_s else 0.0
        return self.waited_s * first_share + self.repeated_s + self.paused_s

    @property
    def waited_share(self) -> float:
        """Return the share of all measurements waited for a core."""
        return self.waited_s / self.measured_s if self.measured_s else 0.0

    @property
    def doubted_share(self) -> float:
        """Return the share of the measured latency that was not kept."""
        total_us = self.kept_us + self.doubted_us
        return self.doubted_us / total_us if total_us else 0.0

    @property
    def slow_share(self) -> float:
        """Return the share of medleys with a slow reference."""
        return self.slow_medleys / self.medleys if self.medleys else 0.0

    @property
    def beside(self) -> float:
        """Return the number of cores that others kept busy while kernels were measured."""
        return self.beside_s / self.measured_s if self.measured_s else 0.0


NO_NOISE = NoiseTally()


def noise_reasons(tally: NoiseTally, network_error: float | None = None) -> list[str]:
    """Return why a profile is noisy, none for a quiet one.

    `network_error` is the mean error on whole networks, None where none was measured.
    """
    reasons = []
    if tally.doubted_share > MOST_DOUBTED:
        reasons.append(
            f"{tally.doubted:.0f} kernels with {tally.doubted_share:.0%} of the measured time were"
            " never undisturbed"
        )
    if tally.slow_share > MOST_SLOW:
        reasons.append(f"the reference kernel stayed slow in {tally.slow_share:.0%} of the medleys")
    if network_error is not None and network_error > LARGE_ERROR and tally.waited_share > NOTICED:
        reasons.append(f"whole networks are off by {network_error:.0%} on average")
    return reasons


def loss_line(tally: NoiseTally, budget_s: float) -> str:
    """Return in one line how much of a budget was lost to other work."""
    return (
        f"{tally.lost_s:.0f} of {budget_s:.0f} s lost to other work, {tally.beside:.1f} cores busy"
        f" with it, {tally.waited_share:.0%} of the measuring waited for a core"
    )


def noise_line(tally: NoiseTally, budget_s: float, reasons: list[str]) -> str:
    """Return why a profile is noisy in one line, empty for a quiet one."""
    return f"{loss_line(tally, budget_s)}: {'; '.join(reasons)}" if reasons else ""
