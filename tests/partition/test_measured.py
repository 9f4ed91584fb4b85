"""Which of the splits that were streamed is taken.

The fastest when all are streamed again, not who was lucky once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from nnstretch.bench.pipelines import MeasuredPipeline
from nnstretch.partition.measured import FINAL_ROUNDS, MeasuredPartition, fastest_measured


def tried(**periods_us: float) -> list[MeasuredPartition]:
    return [
        MeasuredPartition(cast(Any, None), Path(name), 0.0, MeasuredPipeline(us, (us,)))
        for name, us in periods_us.items()
    ]


@dataclass
class SecondStream:
    """Times of the second streaming, and the bundles that were streamed."""

    periods_us: dict[str, float]
    asked: list[list[str]] = field(default_factory=list)

    def __call__(self, paths: Sequence[Path], rounds: int) -> list[MeasuredPipeline]:
        assert rounds == FINAL_ROUNDS
        self.asked.append([path.name for path in paths])
        times = [self.periods_us[path.name] for path in paths]
        return [MeasuredPipeline(period_us, (period_us,)) for period_us in times]


def later(**periods_us: float) -> SecondStream:
    return SecondStream(periods_us)


def names(found: list[MeasuredPartition]) -> list[str]:
    return [one.path.name for one in found]


def test_a_lucky_round_is_not_enough() -> None:
    stream = later(forecast=4700.0, lucky=5200.0, other=4800.0)
    (one,) = fastest_measured(
        tried(forecast=5000.0, slow=9000.0, lucky=4000.0, other=4900.0), 1, stream
    )
    assert stream.asked == [["forecast", "lucky", "other"]]
    assert (one.path.name, one.measured.period_us) == ("forecast", 4700.0)


def test_what_is_clearly_faster_wins_over_the_prediction() -> None:
    stream = later(forecast=5000.0, better=4900.0)
    assert names(fastest_measured(tried(forecast=5000.0, better=4000.0), 1, stream)) == ["better"]


def test_what_is_not_told_apart_does_not() -> None:
    stream = later(forecast=5000.0, better=4960.0)
    assert names(fastest_measured(tried(forecast=5000.0, better=4000.0), 1, stream)) == ["forecast"]


def test_as_many_as_asked_for_in_order() -> None:
    stream = later(a=5.0, b=4.0, c=3.0, d=2.0, e=6.0)
    assert names(fastest_measured(tried(a=1.0, b=2.0, c=3.0, d=4.0, e=5.0, f=9.0), 4, stream)) == [
        "d",
        "c",
        "b",
        "a",
    ]
    assert stream.asked == [["a", "b", "c", "d", "e"]]


def test_a_prediction_that_is_slow_here_is_not_kept_for_its_name() -> None:
    stream = later(forecast=9.0, a=4.0, b=4.1, c=4.2)
    assert names(fastest_measured(tried(forecast=9.0, a=4.0, b=4.1, c=4.2), 3, stream)) == [
        "a",
        "b",
        "c",
    ]


def test_behind_the_first_times_decide() -> None:
    stream = later(forecast=5.01, a=5.0, b=4.99)
    assert names(fastest_measured(tried(forecast=5.0, a=5.0, b=5.0), 3, stream)) == [
        "forecast",
        "b",
        "a",
    ]


def test_one_alone_is_not_streamed_again() -> None:
    stream = later()
    assert names(fastest_measured(tried(a=1.0), 1, stream)) == ["a"]
    assert not stream.asked
