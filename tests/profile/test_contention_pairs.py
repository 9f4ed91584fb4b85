"""Contention of every two cores: what is measured, what has no time, what others kept from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from support.fake_meter import FakeMeter
from support.quiet_watch import quiet_watch

from nnstretch.kernel import MOBILE_FUSION, Kernel
from nnstretch.predict import load_soc
from nnstretch.predict.save_soc import save_soc
from nnstretch.profile import system_costs
from nnstretch.profile.activity.noise_tally import NoiseTally, noise_line
from nnstretch.profile.budget import CONTENTION_S, Budget
from nnstretch.profile.earlier_profile import kept_contention, kept_doubts
from nnstretch.profile.fitting.fit_predictor import fit
from nnstretch.profile.machine import PinnedProcessor
from nnstretch.profile.profile_run import mark_noisy
from nnstretch.profile.sampling.kernel_generator import generate_kernels, load_prior
from nnstretch.profile.sampling.sample import Sample
from nnstretch.profile.system_costs import Surroundings, measure_surroundings
from nnstretch.soc import Soc


def cores(count: int) -> tuple[PinnedProcessor, ...]:
    return tuple(PinnedProcessor(f"cpu{core}", core, 0) for core in range(count))


def pair_of(first: int, second: int) -> frozenset[str]:
    return frozenset((f"cpu{first}", f"cpu{second}"))


class Cores:
    """Cores that slow each other by their numbers; each measurement takes its time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.pinned, self.disturbed = 0.0, -1, False
        monkeypatch.setattr(system_costs, "pin_process", self.pin)
        monkeypatch.setattr(system_costs, "queue_round_trip_us", lambda *_: 20.0)
        monkeypatch.setattr(system_costs, "measure_contention", self.contention)

    def pin(self, core: int) -> Cores:
        self.pinned = core
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.pinned = -1

    def contention(self, meter: object, kernels: Sequence[Kernel], core: int, *_: object) -> float:
        if self.disturbed:
            raise system_costs.Disturbed
        self.now_s += CONTENTION_S
        return 1 + self.pinned / 10 + core / 100

    def measure(
        self, count: int, budget_s: float, known: Sequence[frozenset[str]] = ()
    ) -> tuple[Surroundings, list[str]]:
        budget = Budget(budget_s, {"surroundings": 1.0}, lambda: self.now_s)
        places, meter = cores(count), FakeMeter()
        meters = {place.name: meter for place in places}
        costs = measure_surroundings(meters, places, [], budget, quiet_watch(), known)
        return costs, budget.skipped


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Cores:
    return Cores(monkeypatch)


def chip(count: int, costs: Surroundings, earlier: Soc | None = None) -> Soc:
    """A chip as a profile writes it, noisy where others disturbed."""
    kernels = [next(draw) for draw in [generate_kernels(load_prior(), MOBILE_FUSION, 0)] * 60]
    fitted = fit([Sample(k, (10.0,) * 12) for k in kernels], "", "float32", lambda *_: False)
    names = [place.name for place in cores(count)]
    predictors = {name: replace(fitted, processor=name) for name in names}
    contention = kept_contention(earlier, costs, names)
    soc = Soc("chip", costs.processors, "float32", predictors, costs.merge, contention)
    return mark_noisy(soc, noise_line(NoiseTally(), 30, kept_doubts(earlier, costs, cores(count))))


def test_every_two_cores_are_measured_side_by_side(machine: Cores) -> None:
    costs, skipped = machine.measure(3, 60.0)
    assert costs.contention == {pair_of(0, 1): 1.01, pair_of(0, 2): 1.02, pair_of(1, 2): 1.12}
    assert skipped == []


def test_pairs_without_time_are_told_in_one_line_and_come_first_later(machine: Cores) -> None:
    costs, skipped = machine.measure(4, 9.0)
    assert list(costs.contention) == [pair_of(0, 1), pair_of(0, 2)]
    named = "cpu0 and cpu3, cpu1 and cpu2, cpu1 and cpu3"
    assert skipped == [f"contention of {named} and 1 more pair"]
    later, skipped = machine.measure(4, 9.0, list(costs.contention))
    assert list(later.contention) == [pair_of(0, 3), pair_of(1, 2)]
    assert len(skipped) == 1


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 40])
def test_a_noisy_chip_of_many_cores_can_be_read_and_goes_on(
    tmp_path: Path, machine: Cores, count: int
) -> None:
    machine.disturbed = True
    costs, _ = machine.measure(count, 60.0)
    assert len(costs.disturbed) == count * (count - 1) // 2
    save_soc(chip(count, costs), tmp_path)
    earlier = load_soc(tmp_path)
    assert earlier.noisy.count("contention of ") == 1
    assert "cpu0 and cpu1" in earlier.noisy
    machine.disturbed = False
    untimed, _ = machine.measure(count, 1.0)
    assert chip(count, untimed, earlier).noisy == earlier.noisy
    every, _ = machine.measure(count, 1e6)
    assert len(every.contention) == len(list(combinations(range(count), 2)))
    assert chip(count, every, earlier).noisy == ""
