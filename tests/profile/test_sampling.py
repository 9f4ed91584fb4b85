"""Kernels are sampled in medleys, into a journal that goes on after a kill."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_meter import FakeMeter, law_us
from support.quiet_watch import quiet_watch

from nnstretch.errors import BrokenFile
from nnstretch.kernel import MOBILE_FUSION, FusionRules
from nnstretch.profile.sampling.journal import NAME, open_journal
from nnstretch.profile.sampling.kernel_generator import (
    generate_kernels,
    load_prior,
)
from nnstretch.profile.sampling.kernel_sampler import KernelSampler
from nnstretch.profile.sampling.medleys import kernel_groups
from nnstretch.profile.sampling.sample import (
    REPRESENTATIVES,
    Sample,
    normalize_disturbed,
    representative_kernels,
)

PRIOR = load_prior()


HEAD = {"backend": "fake", "version": "fake 1", "dtype": "float32", "machine": "here"}


def some(count: int, rules: FusionRules = MOBILE_FUSION, seed: int = 0) -> list:
    return list(itertools.islice(generate_kernels(PRIOR, rules, seed), count))


def test_medleys_hold_kernels_over_maps_of_one_size() -> None:
    found = some(240)
    groups = kernel_groups(found)
    assert sorted(k.name for group in groups for k in group) == sorted(k.name for k in found)
    moved = [[kernel.read_elements + kernel.write_elements for kernel in group] for group in groups]
    spans = sorted((min(group), max(group)) for group in moved)
    assert spans[0][1] < spans[-1][0]


def gathering(meter: FakeMeter, folder: Path, samples: list[Sample] | None = None) -> KernelSampler:
    journal, _ = open_journal(folder, HEAD)
    return KernelSampler(
        meter, MOBILE_FUSION, PRIOR, journal, 0, [] if samples is None else samples, quiet_watch()
    )


def test_a_disturbed_medley_is_measured_again(tmp_path: Path) -> None:
    meter = FakeMeter(disturbed=frozenset({3}))
    found = gathering(meter, tmp_path)
    for _ in range(3):
        found.measure_kernels(some(5))
    samples = found.measure_kernels(some(5))
    assert found.disturbed == 1
    assert [s.latency_us for s in samples] == pytest.approx([law_us(k) for k in some(5)])


def test_kernels_that_a_backend_refuses_are_counted_and_left_out(tmp_path: Path) -> None:
    found = gathering(FakeMeter(refuses=frozenset({"dwconv"})), tmp_path)
    kernels = some(60)
    samples = found.measure_kernels(kernels)
    assert {s.kernel.kind for s in samples} == {k.kind for k in kernels} - {"dwconv"}
    assert sum(found.refused.values()) == sum(k.kind == "dwconv" for k in kernels)


def test_adaptive_draws_stand_near_what_is_told_badly(tmp_path: Path) -> None:
    kernels = some(200)
    found = gathering(FakeMeter(), tmp_path, [Sample(kernel, (1.0,)) for kernel in kernels])
    chosen = found.draw_adaptively(
        iter(some(300, seed=7)),
        lambda samples: [1.0 if s.kernel.kind == "linear" else 0.0 for s in samples],
    )
    assert sum(k.kind == "linear" and k.name.startswith("near") for k in chosen) > 10
    assert len({k.key for k in chosen}) > len(chosen) - 5


def test_samples_of_slow_moments_are_steadied() -> None:
    kernel = some(1)[0]
    usual = [Sample(kernel, (10.0,), 100.0)] * 9
    slow = [
        Sample(kernel, (10.5,), 105.0),
        Sample(kernel, (14.0,), 140.0),
        Sample(kernel, (40.0,), 400.0),
    ]
    assert [round(s.latency_us, 2) for s in normalize_disturbed([*usual, *slow])] == [10.0] * 9 + [
        10.5,
        11.2,
        26.67,
    ]
    assert normalize_disturbed([usual[0], Sample(kernel, (5.0,))])[1].latency_us == 5.0


def test_a_journal_goes_on_where_a_kill_left_it(tmp_path: Path) -> None:
    samples = [Sample(kernel, (1.0, 2.0, 3.0)) for kernel in some(6)]
    journal, found = open_journal(tmp_path, HEAD)
    assert found == {}
    journal.append(0, samples[:3], 1.5)
    journal.append(1, samples[3:], 2.0)
    with (tmp_path / NAME).open("a") as file:
        file.write('{"cluster": 0, "spent_s": 1.0, "samp')
    again, found = open_journal(tmp_path, HEAD)
    assert again.spent_s == 3.5
    assert found == {0: samples[:3], 1: samples[3:]}
    again.append(0, samples[3:4], 1.0)
    assert len(open_journal(tmp_path, HEAD)[1][0]) == 4


def test_a_journal_of_another_backend_is_refused(tmp_path: Path) -> None:
    open_journal(tmp_path, HEAD)[0].append(0, [Sample(some(1)[0], (1.0,))], 1.0)
    with pytest.raises(
        BrokenFile,
        match=(
            r"^backend is 'fake', .*samples\.jsonl line 1, this profile has 'litert'; take another"
            r" folder or --fresh$"
        ),
    ):
        open_journal(tmp_path, HEAD | {"backend": "litert"})


def test_a_journal_whose_first_line_was_cut_off_starts_anew(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"format": 1, "back')
    journal, found = open_journal(tmp_path, HEAD)
    assert found == {}
    journal.append(0, [Sample(some(1)[0], (1.0,))], 1.0)
    assert len(open_journal(tmp_path, HEAD)[1][0]) == 1


@pytest.mark.parametrize(
    "line",
    [
        "nonsense\n",
        "[]\n",
        '{"cluster": 0}\n',
        '{"cluster": 0, "spent_s": 1, "samples": [{"kernel": {}}]}\n',
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    open_journal(tmp_path, HEAD)[0].append(0, [Sample(some(1)[0], (1.0,))], 1.0)
    with (tmp_path / NAME).open("a") as file:
        file.write(line)
    with pytest.raises(BrokenFile, match=r"samples\.jsonl line 3"):
        open_journal(tmp_path, HEAD)


@pytest.mark.parametrize("count", [0, 1, 9, 16, 17, 31, 33, 47, 400])
def test_kernels_that_stand_for_all_lie_evenly_over_their_times(count: int) -> None:
    kernel = some(1)[0]
    samples = [Sample(replace(kernel, name=str(i)), (200.0 + i,)) for i in range(count)]
    ranks = [int(chosen.name) for chosen in representative_kernels(samples[::-1])]
    assert ranks == sorted(set(ranks))
    assert len(ranks) == min(count, REPRESENTATIVES)
    gaps = [later - earlier for earlier, later in itertools.pairwise(ranks)]
    assert max(gaps, default=0) - min(gaps, default=0) <= 1
    assert not ranks or abs(ranks[0] - (count - 1 - ranks[-1])) <= 1
