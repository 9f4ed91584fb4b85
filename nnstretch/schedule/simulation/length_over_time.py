"""How long a queue was over time, in bounded memory: means over steps of one length."""

from __future__ import annotations

STEPS = 64


class LengthOverTime:
    """Mean length in each of at most 64 steps, which become longer when time outgrows them."""

    def __init__(self) -> None:
        self.step_us = 1.0
        self.area_us = 0.0
        """Integral of the length over time."""
        self.length = 0
        self.most = 0
        """Of the lengths that lasted."""
        self.until_us = 0.0
        """When it changed last."""
        self._number = 0
        """Of the step that time is in."""
        self._edge_us = 0.0
        """Where that step ends."""
        self._areas = [0.0] * STEPS
        """Integrals of the length over each step."""

    def add(self, at_us: float, count: int) -> None:
        """Hear that the length has grown by `count`, or shrunk where that is below 0."""
        before = self.length
        self.length = before + count
        # What ends and begins at one instant was never there at once.
        if before > self.most and at_us > self.until_us:
            self.most = before
        area = before * (at_us - self.until_us)
        self.area_us += area
        if at_us <= self._edge_us:
            self._areas[self._number] += area
        else:
            self._leave_step(at_us, before)
        self.until_us = at_us

    def _leave_step(self, at_us: float, before: int) -> None:
        while at_us > self.step_us * STEPS:
            areas = self._areas
            pairs = [areas[at] + areas[at + 1] for at in range(0, STEPS, 2)]
            self._areas = pairs + [0.0] * (STEPS - len(pairs))
            self.step_us *= 2
        if before:
            self._add(at_us, before)
        self._number = min(int(at_us / self.step_us), STEPS - 1)
        self._edge_us = (self._number + 1) * self.step_us

    def means(self) -> list[float]:
        """Return the mean length in each step, the last of which may be shorter."""
        means: list[float] = []
        for number, area in enumerate(self._areas):
            covered_us = min(self.step_us, self.until_us - number * self.step_us)
            if covered_us <= 0:
                break
            means.append(area / covered_us)
        return means

    def _add(self, until_us: float, length: int) -> None:
        at_us, step_us = self.until_us, self.step_us
        number = min(int(at_us / step_us), STEPS - 1)
        while at_us < until_us:
            edge_us = min((number + 1) * step_us, until_us)
            self._areas[number] += length * (edge_us - at_us)
            at_us, number = edge_us, number + 1
