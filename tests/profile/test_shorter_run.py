"""A later run into a folder: what it has no time to measure again stays as it was."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.fake_meter import FakeMeter
from support.quiet_watch import quiet_watch

from nnstretch.errors import BadInput
from nnstretch.files.journal import append_rows
from nnstretch.kernel import FusionRules
from nnstretch.predict import load_soc
from nnstretch.predict.learned import Learned
from nnstretch.predict.save_soc import save_soc
from nnstretch.profile import profile_run, system_costs, validation
from nnstretch.profile.machine import Cluster
from nnstretch.profile.profile_request import ProfileRequest, ProfileResult
from nnstretch.profile.profile_run import ProfileRun, mark_noisy
from nnstretch.profile.sampling.journal import NAME
from nnstretch.profile.validation import HeldOutNetwork, ProfiledProcessor

PAIR = frozenset(("cpu0", "cpu1"))
FUSES = frozenset({("conv", "relu"), ("linear", "relu"), ("mul", "relu")})


@dataclass
class Machine:
    """Two cores whose time passes only in measurements."""

    factor: float | None = 1.3
    """Of contention; None where others leave no two cores."""
    network_s: float = 4.0
    now_s: float = 1000.0
    stop_at_call: int = -1
    """Call of a meter in which somebody interrupts the run."""

    def clock(self) -> float:
        self.now_s += 1e-4
        return self.now_s

    def contention(self, *_: object) -> float:
        if self.factor is None:
            raise system_costs.Disturbed
        return self.factor

    def held_out(self, processor: ProfiledProcessor, name: str, _: object) -> HeldOutNetwork:
        self.now_s += self.network_s
        return HeldOutNetwork(
            name, processor.place.name, 1.07, 1.0, 1.0, 0.0, 9, processor.place.where
        )

    def run(
        self, out: Path, budget_s: float, meter: FakeMeter | None = None, **wanted: object
    ) -> ProfileResult:
        meter = meter or FakeMeter(FUSES)
        measure = meter.measure

        def slow(*args: object) -> list[tuple[float, ...]]:
            self.now_s += 0.5
            if meter.calls == self.stop_at_call:
                raise KeyboardInterrupt
            times_us = measure(*args)  # type: ignore[arg-type]
            return [tuple(us**1.2 for us in times) for times in times_us]  # trees find that

        meter.measure = slow  # type: ignore[method-assign]
        request = ProfileRequest(out, budget_s, networks=("a:b",), most=400, **wanted)  # type: ignore[arg-type]
        return ProfileRun(request, meter, lambda *_: None, self.clock, quiet_watch()).run()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(profile_run, "clusters", lambda: (Cluster((0, 1), 2_000_000),))
    monkeypatch.setattr(system_costs, "queue_round_trip_us", lambda *_: 20.0)
    monkeypatch.setattr(system_costs, "measure_contention", machine.contention)
    monkeypatch.setattr(validation, "measure_held_out", machine.held_out)
    return machine


@pytest.mark.slow
def test_a_shorter_run_keeps_what_it_has_no_time_to_measure(
    tmp_path: Path, machine: Machine
) -> None:
    out = tmp_path / "chip"
    first = machine.run(out, 80.0)
    assert first.budget.skipped == []
    before = load_soc(out)
    grown = before.predictors["cpu0"]
    assert isinstance(grown, Learned)
    assert any(family.forest for family in grown.families.values())
    result = machine.run(out, 3.0)
    after = load_soc(out)
    assert "contention of cpu0 and cpu1" in result.budget.skipped
    assert "taken as before" in result.budget.skipped[0]
    assert any(what.startswith("trees of conv") for what in result.budget.skipped)
    assert after.rules("cpu0") == before.rules("cpu0")
    assert after.rules("cpu1").pairs >= FUSES
    assert after.contention == before.contention == {PAIR: 1.3}
    assert after.predictors == before.predictors
    assert result.rows == first.rows
    assert after.provenance == before.provenance
    card = (out / "CARD.md").read_text()
    assert "1 of them were predicted and measured by earlier runs." in card


@pytest.mark.slow
def test_what_was_disturbed_stays_noisy_until_it_is_measured_anew(
    tmp_path: Path, machine: Machine
) -> None:
    out, disturbed = tmp_path / "chip", "contention of cpu0 and cpu1 could not be measured"
    machine.factor = None
    assert disturbed in machine.run(out, 80.0).soc.noisy
    assert disturbed in machine.run(out, 5.0).soc.noisy
    machine.factor = 1.2
    assert machine.run(out, 80.0).soc.noisy == ""
    assert load_soc(out).contention == {PAIR: 1.2}


def test_the_same_command_measures_more_where_others_disturbed(
    tmp_path: Path, machine: Machine
) -> None:
    out = tmp_path / "chip"
    first = machine.run(out, 12.0)
    assert machine.run(out, 12.0).kernels == first.kernels, "it has had its time"
    save_soc(mark_noisy(load_soc(out), "others took the core"), out)
    again = machine.run(out, 12.0)
    assert again.kernels > 1.5 * first.kernels
    assert machine.run(out, 12.0).kernels == again.kernels, "it is quiet now"


def test_the_same_command_measures_more_where_there_were_too_few_kernels(
    tmp_path: Path, machine: Machine
) -> None:
    out = tmp_path / "chip"
    with pytest.raises(BadInput, match=r"^48 kernels measured, .* at least 50 are needed"):
        machine.run(out, 4.0)
    assert machine.run(out, 4.0).kernels == 96


def test_losses_of_all_runs_are_told_of_the_time_of_all_runs(
    tmp_path: Path, machine: Machine
) -> None:
    out = tmp_path / "chip"
    with pytest.raises(BadInput):
        machine.run(out, 4.0)
    noise = {"measured_s": 40.0, "waited_s": 26.0, "doubted": 3, "doubted_us": 9e3}
    row = {"cluster": 0, "spent_s": 36.0, "samples": [], "noise": noise}
    append_rows(out / NAME, [row])
    with pytest.raises(
        BadInput, match=r"^48 kernels measured, .*, 2\d of 4\d s lost to other work"
    ):
        machine.run(out, 1.0)


@pytest.mark.slow
def test_a_fresh_run_keeps_nothing(tmp_path: Path, machine: Machine) -> None:
    out = tmp_path / "chip"
    machine.run(out, 80.0)
    result = machine.run(out, 12.0, fresh=True)
    assert (result.soc.contention, result.rows) == ({}, [])
    assert "taken as not fused" in result.budget.skipped[0]


def eager_meter() -> FakeMeter:
    return FakeMeter(name="eager", version="eager 2", rules=FusionRules(frozenset()))


@pytest.mark.slow
def test_a_fresh_run_that_is_interrupted_before_it_measured_a_kernel_changes_nothing(
    tmp_path: Path, machine: Machine
) -> None:
    out = tmp_path / "chip"
    first = machine.run(out, 12.0)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    machine.stop_at_call = 0
    with pytest.raises(KeyboardInterrupt):
        machine.run(out, 12.0, fresh=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    machine.stop_at_call = -1
    assert machine.run(out, 12.0).kernels == first.kernels


@pytest.mark.slow
def test_a_fresh_run_that_is_interrupted_leaves_no_chip_of_another_runtime(
    tmp_path: Path, machine: Machine
) -> None:
    out = tmp_path / "chip"
    machine.run(out, 30.0)
    chip, card = (out / "soc.json").read_bytes(), (out / "CARD.md").read_bytes()
    machine.stop_at_call = 6
    with pytest.raises(KeyboardInterrupt):
        machine.run(out, 30.0, eager_meter(), fresh=True)
    assert not (out / "soc.json").exists()
    assert not (out / "CARD.md").exists()
    machine.stop_at_call = -1
    (out / "soc.json").write_bytes(chip)
    (out / "CARD.md").write_bytes(card)
    soc = machine.run(out, 5.0, eager_meter()).soc
    assert soc.rules("cpu0").pairs == frozenset()
    assert (
        "Nothing joins a kernel: every operator is one of its own." in (out / "CARD.md").read_text()
    )
    assert soc.contention == {}
    assert "eager 2" in soc.provenance


@pytest.fixture
def two_kinds(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine of a fast core and a slow one."""
    kinds = Cluster((0,), 2_800_000), Cluster((1,), 1_800_000)
    monkeypatch.setattr(profile_run, "clusters", lambda: kinds)
    return machine


@pytest.mark.slow
def test_a_name_that_stands_for_another_core_keeps_nothing_of_the_first(
    tmp_path: Path, two_kinds: Machine
) -> None:
    out = tmp_path / "chip"
    assert len(two_kinds.run(out, 40.0, processors="big=0").rows) == 1
    result = two_kinds.run(out, 10.0, FakeMeter(), processors="big=1")
    assert result.rows == []
    assert "whole networks" not in result.soc.provenance
    assert not result.soc.rules("big").fuses("linear", "relu")
    assert two_kinds.run(out, 3.0, FakeMeter(), processors="big=1").rows == []


@pytest.mark.slow
def test_what_was_measured_on_a_core_follows_it_under_another_name(
    tmp_path: Path, two_kinds: Machine
) -> None:
    out = tmp_path / "chip"
    two_kinds.run(out, 40.0, processors="a=0,b=1")
    before, extra = load_soc(out), ("matmul", "tanh")
    of_b = replace(before.rules("b"), pairs=before.rules("b").pairs | {extra})
    save_soc(replace(before, fusion={**before.fusion, "b": of_b}), out)
    result = two_kinds.run(out, 3.0, processors="b=0,a=1")
    assert result.rows == [], "they were predicted under the other name"
    assert extra in result.soc.rules("a").pairs
    assert extra not in result.soc.rules("b").pairs
    assert result.soc.contention == {frozenset("ab"): 1.3}
    for now, then in ("ab", "ba"):
        predictor = result.soc.predictors[now]
        assert predictor == replace(before.predictors[then], processor=now)  # type: ignore[type-var]
