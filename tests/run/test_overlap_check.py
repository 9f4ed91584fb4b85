"""Do two workers truly run at once? The self-test's verdict, its reasons, and what it measures."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.bundles import branched_bundle, image

from nnstretch.bundle.bundle import Bundle
from nnstretch.run import Session
from nnstretch.run import overlap_check as overlap_module
from nnstretch.run.loaded_network import LoadedNetwork
from nnstretch.run.overlap_check import (
    GOOD,
    compare_overlap,
    explain_overlap,
    heaviest_pair,
    holds_gil,
    repeats_per_round,
    run_concurrently,
)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return branched_bundle(segments=2, predicted=False)


def test_works_at_once_are_at_once() -> None:
    """Each waits for the other in its midst: one after another they would never end."""
    meeting = threading.Barrier(2, timeout=60)
    assert run_concurrently([(meeting.wait, 5), (meeting.wait, 5)]) > 0


def test_works_behind_one_lock_are_not() -> None:
    lock, inside, most, runs = threading.Lock(), 0, 0, 0

    def work() -> None:
        nonlocal inside, most, runs
        with lock:
            inside, runs = inside + 1, runs + 1
            most = max(most, inside)
            inside -= 1

    run_concurrently([(work, 50), (work, 50)])
    assert (most, runs) == (1, 100)


def test_a_work_that_fails_is_not_timed() -> None:
    def burn() -> None:
        raise OSError("burnt")

    with pytest.raises(OSError, match="burnt"):
        run_concurrently([(burn, 1), (lambda: None, 1)])


class Timed:
    """A backend that takes 1 ms of an imagined clock; those with a lock take turns."""

    def __init__(self, locked: bool, lasts_s: float = 1e-3) -> None:
        self.locked, self.lasts_s = locked, lasts_s

    def __call__(self) -> None:
        pass


def imagined(works: Sequence[tuple[Timed, int]]) -> float:
    times_s = [work.lasts_s * count for work, count in works]
    return sum(times_s) if all(work.locked for work, _ in works) else max(times_s)


def test_backends_that_let_each_other_work_are_worth_two() -> None:
    found = compare_overlap([Timed(False), Timed(False)], (), 1, imagined)  # type: ignore[arg-type]
    assert (found.speedup, found.possible, found.why, found.holds_gil) == (2.0, 2.0, "", False)


def test_backends_that_take_turns_are_worth_one_and_the_reason_is_told() -> None:
    found = compare_overlap([Timed(True), Timed(True)], ("slow",), 1, imagined)  # type: ignore[arg-type]
    assert (found.speedup, found.possible, found.holds_gil) == (1.0, 2.0, True)
    assert found.why in (
        "slow keeps Python's interpreter lock while it computes",
        "one core allowed, two workers take turns on it",
    )


def test_works_of_unequal_length_are_kept_equally_busy() -> None:
    assert repeats_per_round([1e-3, 1e-3]) == [25, 25]
    assert repeats_per_round([1e-3, 3e-3]) == [24, 8]
    assert repeats_per_round([1.0, 0.4]) == [1, 2]
    found = compare_overlap([Timed(False, 1.0), Timed(False, 0.4)], (), 1, imagined)  # type: ignore[arg-type]
    assert (found.speedup, found.possible, found.why) == (
        pytest.approx(1.8),
        pytest.approx(1.8),
        "",
    )


@pytest.mark.parametrize(
    ("share", "found", "holders", "threads", "load", "expected"),
    [
        (GOOD, 1, ("a",), 4, 9.0, ""),
        (0.5, 1, ("a",), 4, 9.0, "one core allowed"),
        (0.5, 4, ("a", "b"), 4, 9.0, "a and b keeps Python's interpreter lock"),
        (0.5, 4, (), 4, 9.0, "4 threads inside each sub-graph, 4 cores for all"),
        (0.5, 4, (), 1, 9.0, "other programs compute too, 9.0 wait for 4 cores"),
        (0.5, 4, (), 1, 1.0, "not told apart"),
    ],
)
def test_the_likeliest_reason_comes_first(
    share: float, found: int, holders: tuple[str, ...], threads: int, load: float, expected: str
) -> None:
    assert explain_overlap(share, found, holders, threads, load).startswith(expected)


@pytest.mark.skipif(os.name != "posix", reason="usleep is POSIX")
def test_a_call_that_keeps_pythons_lock_is_found_out() -> None:
    keeping, releasing = ctypes.PyDLL(None).usleep, ctypes.CDLL(None).usleep
    assert holds_gil(lambda: keeping(20_000))
    assert not holds_gil(lambda: releasing(20_000))


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_backends_let_pythons_lock_go(bundle: Bundle, backend: str) -> None:
    if backend == "openvino":
        pytest.importorskip("openvino")
    deep = branched_bundle(side=48, channels=32, depth=4, predicted=False)
    network = LoadedNetwork(deep, backend)
    values = network.inputs(network.random_inputs(0))
    network.compute("stem", values)
    assert not holds_gil(lambda: network.results("s1_cpu", values))


def test_the_heaviest_pair_is_of_one_segment_and_two_processors(bundle: Bundle) -> None:
    times_s = {sub.name: 1.0 for sub in bundle.manifest.subgraphs} | {"s2_dsp": 2.0, "stem": 9.0}
    assert heaviest_pair(bundle.manifest, times_s) == ("s2_cpu", "s2_dsp")
    one = replace(
        bundle.manifest,
        subgraphs=tuple(replace(sub, processor="cpu") for sub in bundle.manifest.subgraphs),
    )
    assert heaviest_pair(one, times_s) is None
    with Session(replace(bundle, manifest=one), clock="real") as session:
        assert session.overlap(image(bundle)) is None


def test_a_session_tests_its_own_branches(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def race(works: Sequence[tuple[object, int]]) -> float:
        seen.append(len(works))
        for work, _ in works:
            assert callable(work)
            (output,) = work()
            assert output.shape == (1, 4, 8, 8)
        return 1.0

    monkeypatch.setattr(overlap_module, "run_concurrently", race)
    with Session(bundle, clock="real") as session:
        found = session.overlap(image(bundle))
    assert found is not None
    assert (found.speedup, found.possible) == (2.0, 2.0)
    assert seen.count(2) >= 1


def test_a_sequential_sibling_shares_what_is_loaded(bundle: Bundle) -> None:
    with Session(bundle, clock="real") as session:
        with session.one_after_another() as alone:
            assert alone.network is session.network
            assert (alone.mode, session.mode) == ("sequential", "spatial")
            assert np.array_equal(alone.run(image(bundle)), session.run(image(bundle)))
        session.run(image(bundle))
