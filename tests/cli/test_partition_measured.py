"""Which of the splits that were streamed is taken.

The fastest when all are streamed again, not who was lucky once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from nnstretch.bench import pipelines
from nnstretch.bench.pipelines import MeasuredPipeline
from nnstretch.cli.partition.measured import LAST_ROUNDS, MeasuredPartition, fastest_measured


def tried(**periods_us: float) -> list[MeasuredPartition]:
    return [
        MeasuredPartition(cast(Any, None), Path(name), 0.0, MeasuredPipeline(us, (us,)))
        for name, us in periods_us.items()
    ]


def later(monkeypatch: pytest.MonkeyPatch, **periods_us: float) -> list[list[str]]:
    """What streaming again says; returns whom it was asked of."""
    asked: list[list[str]] = []

    def candidates(paths: Sequence[Path], rounds: int, tell: object) -> list[MeasuredPipeline]:
        assert rounds == LAST_ROUNDS
        asked.append([path.name for path in paths])
        return [MeasuredPipeline(periods_us[path.name], (periods_us[path.name],)) for path in paths]

    monkeypatch.setattr(pipelines, "measure_candidates", candidates)
    return asked


def names(found: list[MeasuredPartition]) -> list[str]:
    return [one.path.name for one in found]


def test_a_lucky_round_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = later(monkeypatch, forecast=4700.0, lucky=5200.0, other=4800.0)
    (one,) = fastest_measured(tried(forecast=5000.0, slow=9000.0, lucky=4000.0, other=4900.0), 1)
    assert asked == [["forecast", "lucky", "other"]]
    assert (one.path.name, one.measured.period_us) == ("forecast", 4700.0)


def test_what_is_clearly_faster_wins_over_the_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    later(monkeypatch, forecast=5000.0, better=4900.0)
    assert names(fastest_measured(tried(forecast=5000.0, better=4000.0), 1)) == ["better"]


def test_what_is_not_told_apart_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    later(monkeypatch, forecast=5000.0, better=4960.0)
    assert names(fastest_measured(tried(forecast=5000.0, better=4000.0), 1)) == ["forecast"]


def test_as_many_as_asked_for_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = later(monkeypatch, a=5.0, b=4.0, c=3.0, d=2.0, e=6.0)
    assert names(fastest_measured(tried(a=1.0, b=2.0, c=3.0, d=4.0, e=5.0, f=9.0), 4)) == [
        "d",
        "c",
        "b",
        "a",
    ]
    assert asked == [["a", "b", "c", "d", "e"]]


def test_a_prediction_that_is_slow_here_is_not_kept_for_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later(monkeypatch, forecast=9.0, a=4.0, b=4.1, c=4.2)
    assert names(fastest_measured(tried(forecast=9.0, a=4.0, b=4.1, c=4.2), 3)) == ["a", "b", "c"]


def test_behind_the_first_times_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    later(monkeypatch, forecast=5.01, a=5.0, b=4.99)
    assert names(fastest_measured(tried(forecast=5.0, a=5.0, b=5.0), 3)) == ["forecast", "b", "a"]


def test_one_alone_is_not_streamed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = later(monkeypatch)
    assert names(fastest_measured(tried(a=1.0), 1)) == ["a"]
    assert not asked
