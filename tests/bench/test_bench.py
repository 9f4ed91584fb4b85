"""Comparisons: rounds in turns, honest speed-ups, doubts that are said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bundles import branched_bundle, conv, feature_map, subgraph

from nnstretch.bench.bench_page import doubts_about, markdown_page
from nnstretch.bench.contenders import (
    ALL_CORES,
    CONCURRENT,
    CRITICAL_PATH,
    ONE_CORE,
    SEQUENTIAL,
    BenchResult,
    BenchRow,
    BenchVariant,
    Contenders,
    without_predictions,
)
from nnstretch.bench.interleaved import LEAST, LONGEST_S, run_interleaved, wait_until_idle
from nnstretch.bench.statistics import SURE, Interval, order_statistic_rank, quartiles, speedup
from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Manifest, Port
from nnstretch.errors import BrokenFile
from nnstretch.run.isolated_latency import isolated_critical_path_us, isolated_us
from nnstretch.run.loaded_network import LoadedNetwork
from nnstretch.run.overlap_check import Overlap
from nnstretch.schedule.cpu_affinity import affinity

pytestmark = pytest.mark.usefixtures("no_thread_stays_behind", "affinity_is_restored")


# Who takes turns
def test_contenders_take_turns_and_the_last_run_of_each_counts() -> None:
    played: list[str] = []

    def turn(name: str) -> float:
        played.append(name)
        return float(len(played))

    found = run_interleaved(
        {"a": lambda: turn("a"), "b": lambda: turn("b")},
        2,
        pause=lambda: played.append("."),
        warm_s=0.0,
    )
    assert "".join(played) == "ab" + ".aa.bb" * 2
    assert found == {"a": [5.0, 11.0], "b": [8.0, 14.0]}


@pytest.mark.parametrize(("awake_s", "longest_s"), [(0.0, 0.012), (0.025, 0.04), (1e9, 0.6)])
def test_a_turn_waits_for_threads_that_look_for_work(
    monkeypatch: pytest.MonkeyPatch, awake_s: float, longest_s: float
) -> None:
    """A machine whose second core is kept busy for `awake_s`, and where the thread that waits costs
    next to nothing.
    """
    now_s = [0.0]
    monkeypatch.setattr("nnstretch.bench.interleaved.perf_counter", lambda: now_s[0])
    monkeypatch.setattr(
        "nnstretch.bench.interleaved.process_time", lambda: min(now_s[0], awake_s) + 1e-3 * now_s[0]
    )
    monkeypatch.setattr(
        "nnstretch.bench.interleaved.sleep", lambda time_s: now_s.__setitem__(0, now_s[0] + time_s)
    )
    wait_until_idle()
    assert min(awake_s, LONGEST_S) <= now_s[0] <= longest_s


def test_rounds_by_the_clock_are_never_too_few() -> None:
    told: list[tuple[int, int]] = []
    found = run_interleaved(
        {"a": lambda: 1.0}, 1, 1e-9, lambda done, total: told.append((done, total))
    )
    assert len(found["a"]) == LEAST
    assert told[-1] == (LEAST, LEAST)


# How sure a speed-up is
@pytest.mark.parametrize(
    ("count", "cut"),
    [(1, 0), (2, 0), (5, 0), (6, 0), (8, 0), (9, 1), (20, 5), (30, 9), (40_000, 19_803)],
)
def test_the_interval_is_that_of_the_sign_test(count: int, cut: int) -> None:
    """Ranks of any table of 95% intervals for a median."""
    assert order_statistic_rank(count) == cut


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=60), st.floats(0.1, 10))
def test_a_speedup_that_is_the_same_in_every_round_is_sure_however_times_drift(
    base: list[float], factor: float
) -> None:
    found = speedup(base, [time / factor for time in base])
    assert found.low == pytest.approx(factor)
    assert found.median == pytest.approx(factor)
    assert found.high == pytest.approx(factor)
    assert found.low <= found.median <= found.high


def test_a_spread_is_between_quartiles() -> None:
    found = quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found, found.relative) == (Interval(3.0, 2.0, 4.0), 2 / 3)


# What is measured
@pytest.fixture(scope="module")
def variant() -> BenchVariant:
    """Predicted times must not slow it down: it is this machine that is asked."""
    branched = branched_bundle(segments=2, branch_us=(9e6, 9e6))
    image, end = Port("image", feature_map(3)), Port("end", feature_map())
    data = conv(image, end, 1, depth=3)
    sub = subgraph("s0.cpu", "cpu", data, [image], [end])
    return BenchVariant(
        "onnxruntime",
        "float32",
        Bundle(Manifest("m", None, (image,), (end,), (sub,), 0.0), {"s0.cpu.onnx": data}),
        branched,
    )


@pytest.mark.slow
def test_every_contender_is_measured(variant: BenchVariant) -> None:
    with Contenders(variant) as contenders:
        times_us = run_interleaved(contenders.turns(), 3)
        found = contenders.outcome(times_us)
    assert set(times_us) - {ALL_CORES} == {ONE_CORE, SEQUENTIAL, CONCURRENT, CRITICAL_PATH}
    assert (ALL_CORES in times_us) == (len(affinity() or ()) > 1)
    assert [row.name for row in found.rows] == [
        name for name in (ONE_CORE, ALL_CORES, SEQUENTIAL, CONCURRENT) if name in times_us
    ]
    assert all(
        0 < row.latency_us.low <= row.latency_us.median <= row.latency_us.high < 9e6
        for row in found.rows
    )
    assert found.row(ONE_CORE).speedup == Interval(1.0, 1.0, 1.0)
    assert 0 < found.critical_path_us < 9e6
    assert found.efficiency == pytest.approx(
        found.critical_path_us / found.row(CONCURRENT).latency_us.median, rel=0.5
    )


def test_every_subgraph_is_timed_alone_on_its_processor(variant: BenchVariant) -> None:
    network = LoadedNetwork(without_predictions(variant.branched))
    inputs = network.inputs(network.random_inputs(0))
    bound_session = network.bound_and_filled(inputs)
    found = isolated_us(network.manifest, bound_session, ("cpu", "dsp"))
    assert found.keys() == {sub.name for sub in network.manifest.subgraphs}
    reached = network.all_tensors(inputs)
    assert all(
        np.array_equal(array, reached[name]) for name, array in bound_session.results().items()
    ), "no tensor is another one afterwards"


def test_the_critical_path_takes_the_slowest_branch_of_every_segment() -> None:
    manifest = branched_bundle(segments=2).manifest
    times = {
        "stem": 1.0,
        "s1_cpu": 10.0,
        "s1_dsp": 20.0,
        "s1_merge": 2.0,
        "s2_cpu": 30.0,
        "s2_dsp": 5.0,
        "s2_merge": 3.0,
    }
    assert isolated_critical_path_us(manifest, [times] * 3) == 1 + 20 + 2 + 30 + 3
    slow = dict.fromkeys(times, 1e6)
    assert isolated_critical_path_us(manifest, [times, slow, times]) == 56, "medians, not means"


def test_an_error_of_a_subgraph_alone_reaches_the_caller(variant: BenchVariant) -> None:
    network = LoadedNetwork(without_predictions(variant.branched))
    bound_session = network.bound_session()
    bound_session.calls["stem"] = lambda: (_ for _ in ()).throw(BrokenFile("stem burnt"))
    with pytest.raises(BrokenFile, match="stem burnt"):
        isolated_us(network.manifest, bound_session, ("cpu",))


# What is said
def outcome(spread: float = 0.0, overlap: Overlap | None = None, rounds: int = 30) -> BenchResult:
    rows = (
        BenchRow(
            ONE_CORE, Interval(100.0, 100.0 - 50 * spread, 100.0 + 50 * spread), Interval(1, 1, 1)
        ),
    )
    return BenchResult("litert", "int8", rows, 90.0, 0.9, 12.0, overlap, rounds)


def test_doubts_are_said() -> None:
    assert doubts_about([outcome(0.04, Overlap(1.9, 2, False, "", 2.0))]) == []
    assert doubts_about([outcome(0.2)]) == [
        "litert int8: a noisy machine, quartiles of 'original, one core' are 20% apart"
    ]
    (said,) = doubts_about([outcome(overlap=Overlap(1.0, 1, False, "one core allowed", 2.0))])
    assert (
        said == "litert int8: two workers at once are worth 1.00 of 2.00 possible, one core allowed"
    )


def test_an_interval_of_too_few_rounds_is_not_one_of_95_percent() -> None:
    assert doubts_about([outcome(rounds=6)]) == []
    (said,) = doubts_about([outcome(rounds=5)])
    assert said.startswith("litert int8: 5 rounds, too few for an interval of 95%")


def test_as_many_rounds_as_the_clock_asks_for_at_least_make_an_interval_sure() -> None:
    outside = [2 / 2**rounds for rounds in (LEAST - 1, LEAST)]
    assert outside[1] <= 1 - SURE < outside[0], "the median lies beyond all that was seen"


def test_golden_page() -> None:
    assert markdown_page(
        "t",
        "nnstretch bench p.yaml",
        ["a machine"],
        [outcome()],
        {"openvino float32": "no such operator"},
    ).splitlines() == [
        *("# t", "", "    nnstretch bench p.yaml", "", "- a machine", ""),
        "| backend | what | median ms | quartiles ms | speed-up | 95% interval |",
        "|---|---|---|---|---|---|",
        "| litert int8 | original, one core | 0.100 | 0.100 to 0.100 | 1.00x | 1.00 to 1.00 |",
        "",
        (
            "- litert int8: critical path 0.090 ms, 0.900 of the latency of branches at once; 12 us"
            " per meeting point"
        ),
        "- not measured: openvino float32, no such operator",
    ]
