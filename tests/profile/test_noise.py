"""Other work beside a profile: what is seen of it, which rounds are believed, when it is noisy."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.fake_meter import FakeMeter, law_us
from support.quiet_watch import quiet_watch, watch_of

from nnstretch.kernel import MOBILE_FUSION
from nnstretch.profile.activity.activity_watch import ActivityWatch, others_leave
from nnstretch.profile.activity.machine_activity import (
    ActivityReading,
    CoreTimes,
    OtherWork,
    interference_between,
    read_activity,
)
from nnstretch.profile.activity.noise_tally import (
    NO_NOISE,
    NoiseTally,
    loss_line,
    noise_line,
    noise_reasons,
)
from nnstretch.profile.activity.steady_rounds import (
    LEAST_CLEAN,
    Attempt,
    clean_rounds,
    faster_half_us,
    keep_steady,
    may_stop,
    merge_attempts,
)
from nnstretch.profile.sampling.journal import open_journal
from nnstretch.profile.sampling.kernel_generator import generate_kernels, load_prior
from nnstretch.profile.sampling.kernel_sampler import KernelSampler
from nnstretch.profile.validation import durations_us

STAT = """cpu  30 0 10 60 0 0 0 8 0 0
cpu0 20 1 10 30 0 2 3 5 0 0
cpu1 10 0 0 30 0 0 0 3 0 0
intr 5 0
"""
SHARED = OtherWork(wall_s=1.0, waited_s=0.5, interruptions=125, beside_s=1.0)
"""A core shared with another job, 4 ms each in turns: measured so on a Linux of 2025."""


def test_counters_of_the_system_are_read(tmp_path: Path) -> None:
    task = tmp_path / "self" / "task" / "7"
    task.mkdir(parents=True)
    (task / "schedstat").write_text("900 1500000000 3\n")
    (tmp_path / "stat").write_text(STAT)
    reading = read_activity(tmp_path)
    assert reading.waited_s == 1.5
    assert reading.cores == {0: CoreTimes(0.36, 0.05), 1: CoreTimes(0.1, 0.03)}
    silent = read_activity(tmp_path / "none")
    assert (silent.waited_s, silent.cores) == (None, {})


def test_what_others_did_lies_between_two_readings() -> None:
    before = ActivityReading(10.0, 1.0, 0.25, 3, {0: CoreTimes(5.0, 0.5), 1: CoreTimes(2.0, 0.0)})
    after = ActivityReading(12.0, 2.5, 0.75, 9, {0: CoreTimes(7.0, 0.5), 1: CoreTimes(3.0, 0.25)})
    seen = interference_between(before, after)
    assert seen == OtherWork(2.0, 0.5, 6, 0.25, 1.5)
    assert (seen.waited_share, seen.beside) == (0.25, 0.75)
    untold = interference_between(replace(before, waited_s=None), replace(after, waited_s=None))
    assert untold.waited_s == 0.5


def rounds_of(latency_us: float, rounds: int, seed: int) -> tuple[float, ...]:
    """Rounds of a kernel on a core that another job has for 4 ms after each 4 ms."""
    rng = random.Random(seed)
    times = []
    for _ in range(rounds):
        until_us, taken_us = rng.uniform(0, 4000), latency_us * rng.uniform(1.0, 1.01)
        interruptions = 0 if taken_us < until_us else 1 + int((taken_us - until_us) / 4000)
        times.append(taken_us + 4000 * interruptions)
    return tuple(times)


@settings(max_examples=60, deadline=None)
@given(st.floats(5, 30_000), st.integers(0, 10_000))
@example(latency_us=2557.0, seed=1949)
@example(latency_us=2325.0, seed=2507)
def test_a_latency_is_right_where_it_is_believed(latency_us: float, seed: int) -> None:
    kept = keep_steady(rounds_of(latency_us, 36, seed), SHARED)
    if kept.steady:
        assert faster_half_us(kept.times_us) == pytest.approx(latency_us, rel=0.02)
    else:
        assert latency_us > 1800, "short kernels have rounds that nobody interrupts"


def test_a_kernel_longer_than_a_turn_is_not_believed_and_a_short_one_is() -> None:
    assert clean_rounds(1000.0, 36, SHARED) == pytest.approx(27)
    assert clean_rounds(4000.0, 36, SHARED) == 0
    assert not keep_steady(rounds_of(20_000, 36, 1), SHARED).steady
    assert keep_steady(rounds_of(20_000, 12, 1), OtherWork(1.0, 0.01, 9)).steady
    stolen = OtherWork(wall_s=1.0, stolen_s=0.3)
    assert clean_rounds(20_000.0, 10, stolen) == pytest.approx(4)


def test_a_medley_is_measured_again_only_where_that_can_help() -> None:
    reference = rounds_of(2000, 12, 0)
    once = Attempt([reference, rounds_of(50, 12, 1)], SHARED)
    assert not may_stop([once], 3)
    assert may_stop([once, once], 3)
    mild = OtherWork(wall_s=1.0, waited_s=0.2, interruptions=50)
    assert may_stop([Attempt([reference, rounds_of(50, 12, 1)], mild)], 3)
    assert may_stop([Attempt([reference, rounds_of(90_000, 12, 1)], mild)], 3)
    assert not may_stop([Attempt([reference, (10_000.0,) * 12], mild)], 3)


def test_a_quiet_attempt_stands_alone_and_others_are_put_together() -> None:
    slow = Attempt([(300.0,) * 12], OtherWork(1.0))
    quick = Attempt([(200.0,) * 12], OtherWork(1.0))
    shared = Attempt([(190.0,) * 12], SHARED)
    assert merge_attempts([shared, slow, quick]) is quick
    merged = merge_attempts([shared, shared])
    assert len(merged.times_us[0]) == 24
    assert merged.interference == SHARED + SHARED


def sampler(folder: Path, watch: ActivityWatch) -> KernelSampler:
    head = {"backend": "fake", "version": "fake 1", "dtype": "float32", "machine": "here"}
    journal, _ = open_journal(folder, head)
    return KernelSampler(FakeMeter(), MOBILE_FUSION, load_prior(), journal, 0, [], watch)


def test_what_stays_disturbed_is_not_kept_and_counted(tmp_path: Path) -> None:
    drawn = generate_kernels(load_prior(), MOBILE_FUSION, 0)
    kernels = [kernel for kernel, _ in zip(drawn, range(60), strict=False)]
    long = {kernel.key for kernel in kernels if law_us(kernel) > 3500}
    watched = sampler(tmp_path, watch_of([SHARED] * 3))
    samples = watched.measure_kernels(kernels)
    assert 0 < len(long) < 30
    assert {kernel.key for kernel in kernels} - {s.kernel.key for s in samples} == long
    assert watched.attempted == {s.kernel.key for s in samples}
    assert (watched.disturbed, watched.noise.doubted) == (1, len(long))
    assert (watched.noise.measured_s, watched.noise.repeated_s) == (2.0, 1.0)
    watched.journal.append(0, samples, 3.0, watched.noise)
    assert open_journal(tmp_path, watched.journal.head)[0].noise.doubted == len(long)


def test_nobody_waits_for_work_that_does_not_end() -> None:
    watch = quiet_watch()
    clock = iter(range(1000))
    watch.clock, watch.pausable_s = lambda: next(clock) * 0.5, 3.0
    busy = iter(range(1000))
    watch.read = lambda: ActivityReading(t := float(next(busy)), 0, 0, 0, {0: CoreTimes(64 * t, 0)})
    paused_s = watch.wait_for_quiet() + watch.wait_for_quiet()
    assert 0 < paused_s <= 6.0
    assert watch.pausable_s <= 1.0


def test_as_many_cores_as_needed_must_be_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    one_job = OtherWork(wall_s=1.0, beside_s=1.0)
    assert others_leave(1, one_job)
    assert not others_leave(2, one_job)
    assert not others_leave(1, OtherWork(wall_s=1.0, beside_s=1.6))


@pytest.mark.slow
def test_networks_beside_other_work_take_their_processor_time() -> None:
    quiet = durations_us(lambda: None, quiet_watch())
    assert len(quiet) >= 20
    shared = durations_us(lambda: None, watch_of([SHARED]))
    assert len(shared) >= 20


def test_a_profile_is_noisy_for_a_reason_with_numbers() -> None:
    quiet = NoiseTally(measured_s=100.0, waited_s=1.0, medleys=50, kept_us=1e6)
    assert noise_reasons(quiet, 0.3) == []
    assert noise_line(quiet, 180, []) == ""
    doubted = quiet + NoiseTally(doubted_us=4e5, doubted=31)
    assert noise_reasons(doubted) == [
        "31 kernels with 29% of the measured time were never undisturbed"
    ]
    slow = quiet + NoiseTally(slow_medleys=20)
    assert noise_reasons(slow) == ["the reference kernel stayed slow in 40% of the medleys"]
    waited = quiet + NoiseTally(waited_s=40.0, repeated_s=20.0, paused_s=5.0, beside_s=120.0)
    assert noise_reasons(waited, 0.05) == []
    assert noise_reasons(waited, 0.42) == ["whole networks are off by 42% on average"]
    assert loss_line(waited, 180) == (
        "58 of 180 s lost to other work, 1.2 cores busy with it, 41% of the measuring waited for a"
        " core"
    )
    assert NO_NOISE.lost_s == NO_NOISE.beside == 0
    assert LEAST_CLEAN == 6
