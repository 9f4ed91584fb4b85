"""A profile checked: the kernels it was made of, then and now."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.fake_meter import FakeMeter, law_us
from support.quiet_watch import quiet_watch, watch_of

from nnstretch.cli import main
from nnstretch.errors import BrokenFile
from nnstretch.kernel import MOBILE_FUSION, Kernel
from nnstretch.profile.activity.machine_activity import OtherWork
from nnstretch.profile.check_profile import (
    DIFFERS,
    FITS,
    UNKNOWN,
    changes,
    check_profile,
    core_of,
    judge,
)
from nnstretch.profile.machine import Cluster, description
from nnstretch.profile.sampling.journal import NAME, JournalHead, open_journal
from nnstretch.profile.sampling.kernel_generator import generate_kernels, load_prior
from nnstretch.profile.sampling.sample import Sample

HEAD = {"backend": "fake", "version": "fake 0", "dtype": "float32", "machine": "there"}


@dataclass
class SlowerMeter(FakeMeter):
    """Everything takes so many times as long as it did."""

    factor: float = 1.0

    def measure(self, chains: list[tuple[Kernel, ...]], rounds: int, /) -> list[tuple[float, ...]]:
        measured = super().measure(chains, rounds)
        return [tuple(self.factor * us for us in times) for times in measured]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return profile_of(tmp_path, medleys=8)


def profile_of(folder: Path, medleys: int, kernels_each: int = 10) -> Path:
    """A profile of so many kernels, as far as a check reads it."""
    journal, _ = open_journal(folder, HEAD)
    kernels = generate_kernels(load_prior(), MOBILE_FUSION, 0)
    for _ in range(medleys):
        medley = [next(kernels) for _ in range(kernels_each)]
        journal.append(0, [Sample(kernel, (law_us(kernel),) * 12) for kernel in medley], 1.0)
    (folder / "soc.json").touch()
    return folder


@pytest.mark.parametrize(("factor", "verdict"), [(1.02, FITS), (1.3, DIFFERS), (0.7, DIFFERS)])
def test_a_machine_that_changed_does_not_fit(folder: Path, factor: float, verdict: str) -> None:
    meter = SlowerMeter(factor=factor)
    checked = check_profile(folder, lambda *_: None, quiet_watch(), meter)
    assert len(checked.kernels) == 10
    assert [kernel.ratio for kernel in checked.kernels] == pytest.approx([factor] * 10, rel=1e-3)
    assert checked.verdict == verdict
    assert checked.changed[1] == "runtime was fake 0, is fake 1"
    assert len(meter.seen) > 50, "kernels are measured in the company that they had"


BIG, LITTLE = Cluster((4, 5, 6, 7), 2_800_000), Cluster((0, 1, 2, 3), 1_800_000)


@pytest.mark.parametrize(
    ("cores", "cluster", "core_clusters", "core"),
    [
        (((None, 0),), 0, (BIG, LITTLE), 0),
        (((2_800_000, 5, 6),), 0, (BIG, LITTLE), 5),
        (((1_800_000, 4),), 0, (BIG, LITTLE), 0),
        (((2_800_000, 4, 5, 6, 7), (1_800_000, 0, 1, 2, 3)), 1, (LITTLE,), 0),
        (((None, 0),), 0, (Cluster((1,), None),), 1),
        (((2_400_000, 9),), 0, (BIG, LITTLE), None),
        (((None, 0),), 1, (BIG, LITTLE), None),
        ((), 1, (BIG, LITTLE), 0),
        ((), 2, (BIG, LITTLE), None),
    ],
)
def test_kernels_are_measured_again_on_a_core_of_their_kind(
    cores: tuple[tuple[int | None, ...], ...],
    cluster: int,
    core_clusters: tuple[Cluster, ...],
    core: int | None,
) -> None:
    head = JournalHead(1, "fake", "fake 0", "float32", "there", cores)
    assert core_of(head, cluster, core_clusters) == core


def test_cores_that_are_not_those_of_the_profile_are_named() -> None:
    here = {"machine": description(), "version": "fake 1"}
    head = JournalHead(1, "fake", dtype="float32", cores=((None, 0),), **here)
    assert changes(head, FakeMeter(), (Cluster((0,), None),)) == ()
    assert changes(head, FakeMeter(), (BIG, LITTLE)) == (
        "set of cores was 0, is 4,5,6,7 at 2.80 GHz and 0,1,2,3 at 1.80 GHz",
    )
    assert changes(replace(head, cores=()), FakeMeter(), (BIG, LITTLE)) == ()


def test_nothing_is_told_of_kernels_that_others_disturb(folder: Path) -> None:
    crowded = OtherWork(wall_s=1.0, waited_s=0.6, interruptions=100_000)
    checked = check_profile(folder, lambda *_: None, watch_of([crowded] * 15), FakeMeter())
    assert checked.ratios == []
    assert checked.verdict == UNKNOWN


def test_two_of_ten_may_be_off_and_the_median_may_not() -> None:
    assert judge([1.0] * 8 + [1.5, 0.5], 10) == FITS
    assert judge([1.0] * 7 + [1.5] * 3, 10) == DIFFERS
    assert judge([1.12] * 10, 10) == DIFFERS
    assert judge([1.0] * 5, 10) == UNKNOWN


def test_a_small_profile_is_checked_by_ten_kernels_too(tmp_path: Path) -> None:
    small = profile_of(tmp_path, medleys=2, kernels_each=25)
    checked = check_profile(small, lambda *_: None, quiet_watch(), FakeMeter())
    assert len({kernel.name for kernel in checked.kernels}) == len(checked.kernels) == 10
    assert checked.verdict == FITS


def test_nothing_is_told_of_fewer_than_six_kernels(tmp_path: Path) -> None:
    tiny = profile_of(tmp_path, medleys=1, kernels_each=5)
    checked = check_profile(tiny, lambda *_: None, quiet_watch(), FakeMeter())
    assert len(checked.ratios) == 5
    assert checked.verdict == UNKNOWN
    assert judge([1.0] * 2, 2) == UNKNOWN
    assert judge([1.0] * 6, 6) == FITS


def test_kernels_of_a_profile_that_was_not_finished_are_no_profile(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "soc.json").unlink()
    assert main(["profile", "--check", str(folder)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"no profile yet in {folder}, --check, it has kernels and no soc.json" in said
    assert "the same `nnstretch profile` again goes on with them" in said


def test_a_folder_that_is_no_profile_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "--check", str(tmp_path / "none")]) == 1
    assert "no profile in" in capsys.readouterr().err
    assert main(["profile", "--check", str(folder), "--fresh"]) == 1
    assert "--fresh with --check" in capsys.readouterr().err
    (folder / NAME).write_text(json.dumps({"format": 1, "backend": "fake"}) + "\n")
    with pytest.raises(BrokenFile, match=r"samples\.jsonl line 1"):
        check_profile(folder, lambda *_: None, quiet_watch(), FakeMeter())
