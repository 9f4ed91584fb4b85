"""How long a queue was over time: means over steps equal those of every moment."""

from __future__ import annotations

import random

import pytest

from nnstretch.schedule.simulation.length_over_time import STEPS, LengthOverTime


@pytest.mark.parametrize("seed", range(5))
def test_steps_hold_the_mean_length_of_their_time(seed: int) -> None:
    draw = random.Random(seed)
    queue, at_us, before = LengthOverTime(), 0.0, 0
    pieces: list[tuple[float, float, int]] = []
    for _ in range(200):
        until_us, after = at_us + draw.expovariate(1e-3), draw.randrange(5)
        queue.add(until_us, after - before)
        pieces.append((at_us, until_us, before))
        at_us, before = until_us, after
    means = queue.means()
    assert STEPS / 2 <= len(means) <= STEPS
    for number, mean in enumerate(means):
        start_us = number * queue.step_us
        end_us = min(start_us + queue.step_us, at_us)
        area = sum(
            length * max(0.0, min(end, end_us) - max(start, start_us))
            for start, end, length in pieces
        )
        assert mean == pytest.approx(area / (end_us - start_us), rel=1e-9)
    assert queue.area_us == pytest.approx(sum((b - a) * n for a, b, n in pieces))
    assert queue.most == max(n for _, _, n in pieces)
