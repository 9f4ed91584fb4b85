"""`nnstretch bench`: rounds in turns, honest speed-ups, warnings, one line for what cannot be
measured.
"""

from __future__ import annotations

import json
import threading
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.bundles import branched_bundle, conv, feature_map, subgraph
from support.small_plan import write_plan_of_small_net
from torch import nn

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
from nnstretch.bench.prepare import (
    BenchForm,
    random_inputs,
    requested_forms,
    settle_norms,
    warn_low_snr,
)
from nnstretch.bench.statistics import Interval, order_statistic_rank, quartiles, speedup
from nnstretch.bundle.bundle import Bundle, write_bundle
from nnstretch.bundle.manifest import Manifest, Port
from nnstretch.cli import main, run_verb
from nnstretch.cli.bench.result import options
from nnstretch.errors import BrokenFile
from nnstretch.files.plan_yaml import plan_text, read_plan
from nnstretch.plan import Branch, Segment
from nnstretch.run.isolated_latency import isolated_critical_path_us, isolated_us
from nnstretch.run.loaded_network import LoadedNetwork
from nnstretch.run.overlap_check import Overlap
from nnstretch.schedule.cpu_affinity import affinity


@pytest.fixture(autouse=True)
def _no_thread_stays_behind() -> Iterator[None]:
    """Of ours: libraries that a command loads may start threads for good."""
    cores = affinity()
    yield
    assert not [
        thread.name for thread in threading.enumerate() if thread.name.startswith("nnstretch")
    ]
    assert affinity() == cores


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
    ("count", "cut"), [(1, 0), (2, 0), (5, 0), (6, 0), (8, 0), (9, 1), (20, 5), (30, 9)]
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


def outcome(spread: float = 0.0, overlap: Overlap | None = None) -> BenchResult:
    rows = (
        BenchRow(
            ONE_CORE, Interval(100.0, 100.0 - 50 * spread, 100.0 + 50 * spread), Interval(1, 1, 1)
        ),
    )
    return BenchResult("litert", "int8", rows, 90.0, 0.9, 12.0, overlap)


def test_doubts_are_said() -> None:
    assert doubts_about([outcome(0.04, Overlap(1.9, 2, False, "", 2.0))]) == []
    assert doubts_about([outcome(0.2)]) == [
        "litert int8: a noisy machine, quartiles of 'original, one core' are 20% apart"
    ]
    (said,) = doubts_about([outcome(overlap=Overlap(1.0, 1, False, "one core allowed", 2.0))])
    assert (
        said == "litert int8: two workers at once are worth 1.00 of 2.00 possible, one core allowed"
    )


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


# The command


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plan_of_small_net(tmp_path_factory.mktemp("bench"))


def benched(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    assert run_verb("bench", [*map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert run_verb("bench", [*map(str, argv)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.slow
def test_a_plan_is_measured_and_told(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = benched(capsys, plan, "--runs", 3, "--out", tmp_path / "page.md")
    (one,) = found["variants"]
    assert (one["backend"], one["precision"], found["skipped"]) == ("onnxruntime", "float32", {})
    assert {ONE_CORE, SEQUENTIAL, CONCURRENT} <= one["contenders"].keys()
    assert one["contenders"][ONE_CORE]["speedup"] == 1.0
    assert "what the model starts with" in found["weights"]
    text = (tmp_path / "page.md").read_text()
    assert f"nnstretch bench {plan} --runs 3" in text
    assert f"| onnxruntime float32 | {CONCURRENT} |" in text


def test_branches_of_another_plan_are_not_measured_as_these(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = branched_bundle().manifest
    planned = read_plan(plan)
    whole = replace(planned, segments=(Segment("input", "output", (Branch("cpu"),)),))
    manifest = replace(manifest, model=planned.model, plan=plan_text(whole))
    write_bundle(tmp_path / "whole.nns", manifest, branched_bundle().files)
    told = refused(capsys, plan, "--bundle", tmp_path / "whole.nns")
    assert "whole.nns has other branches than" in told


INNER = """
from torch import nn

def make(inner=8, outer=8):
    first = nn.Sequential(nn.Conv2d(3, inner, 3, 2, 1), nn.ReLU(), nn.Conv2d(inner, outer, 3, 2, 1), nn.ReLU())
    return nn.Sequential(first, nn.Flatten(), nn.Linear(outer * 16, 10))
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "litert"])
def test_branches_of_an_older_network_are_not_measured_beside_the_present_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    network, plan, bundle = (tmp_path / name for name in ("net.py", "plan.yaml", "net.nns"))
    network.write_text(INNER)
    plan.write_text(
        f"format: 1\nmodel: {network}:make\ninput: [1, 3, 16, 16]\nsegments:\n"
        "  - {end: '0', processor: cpu}\n  - {end: output, processor: cpu}\n"
    )
    argv = ["export", str(plan), "--out", str(bundle), "--format", form, "--json"]
    assert main(argv) == 0
    capsys.readouterr()
    network.write_text(INNER.replace("inner=8", "inner=6"))
    told = refused(capsys, plan, "--bundle", bundle)
    assert "than the one that is there now, bench, sub-graph s0.cpu has a kernel of 216" in told
    network.write_text(INNER.replace("outer=8", "outer=6"))
    told = refused(capsys, plan, "--bundle", bundle)
    assert "sub-graph s0.cpu writes 128 numbers and its branch now 96, export it again" in told


@pytest.mark.slow
def test_a_bundle_exported_before_is_measured_for_people(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb("export", [str(plan), "--out", str(tmp_path / "net.nns"), "--json"]) == 0
    capsys.readouterr()
    assert run_verb("bench", [str(plan), "--bundle", str(tmp_path / "net.nns"), "--runs", "2"]) == 0
    other = branched_bundle()
    write_bundle(tmp_path / "other.nns", other.manifest, other.files)
    assert "us per meeting point" in " ".join(capsys.readouterr().out.split())
    assert "other.nns is of test:branched, bench, the plan stretches" in refused(
        capsys, plan, "--bundle", tmp_path / "other.nns"
    )


class Deep(nn.Sequential):
    """Twenty layers that each leave a tenth of what they read, with norms that have seen
    nothing.
    """

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for _ in range(20):
            conv = nn.Conv2d(3, 3, 1, bias=False)
            conv.weight.data = 0.1 * torch.eye(3)[:, :, None, None]
            layers += [conv, nn.BatchNorm2d(3)]
        super().__init__(*layers)


@pytest.mark.parametrize("settled", [True, False])
def test_norms_of_random_weights_see_what_reaches_them(settled: bool) -> None:
    inputs = random_inputs((1, 3, 8, 8))
    with torch.no_grad():
        network = settle_norms(Deep().eval(), inputs if settled else None)
        deviation = float(network(torch.cat(inputs)).std())
    assert not network.training
    assert (0.9 < deviation < 1.1) if settled else deviation < 1e-6


def test_networks_without_norms_stay_as_they_are() -> None:
    network = nn.Flatten(0)  # takes one image only
    assert settle_norms(network, [torch.zeros(1, 3, 8, 8)]) is network


def test_int8_alone_is_of_litert() -> None:
    given = {
        "backend": None,
        "weights": None,
        "bundle": None,
        "calibration": "random",
        "calibration_images": 64,
        "runs": 3,
        "seconds": None,
    }
    only = Namespace(int8=True, only_int8=True, **given)
    assert requested_forms(None, True, True, None) == [BenchForm("litert", "litert", True)]
    assert [name for name in options(only) if "int8" in name] == ["only-int8"]
    too = Namespace(int8=True, only_int8=False, **given)
    assert requested_forms(None, True, False, None) == [
        BenchForm("onnxruntime", "onnx", False),
        BenchForm("litert", "litert", False),
        BenchForm("litert", "litert", True),
    ]
    assert [name for name in options(too) if "int8" in name] == ["int8"]


def test_int8_too_faint_for_use_is_told_and_measured() -> None:
    bundle = branched_bundle(predicted=False)
    ratios = (None, 4.04, 12.0)
    assert warn_low_snr(
        [BenchVariant("litert", "int8", bundle, bundle, ratio) for ratio in ratios]
    ) == ["litert int8: random weights leave a signal-to-noise ratio of 4.0 dB, for times only"]


def test_what_cannot_be_measured_is_one_line(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "torchvision:resnet18 is no plan, bench" in refused(capsys, "torchvision:resnet18")
    assert "unknown backend 'tvm', --backend" in refused(capsys, plan, "--backend", "tvm")
    twice = "onnxruntime,onnxruntime"
    assert f"--backend {twice}, command line" in refused(capsys, plan, "--backend", twice)
    assert "--int8 with --backend onnxruntime" in refused(
        capsys, plan, "--backend", "onnxruntime", "--int8", "--calibration", "random"
    )
    assert "--int8 without --calibration" in refused(capsys, plan, "--int8")
    assert "--int8 without --calibration" in refused(capsys, plan, "--only-int8")
    only = ("--only-int8", "--calibration", "random")
    assert "--only-int8 with --backend litert,onnxruntime" in refused(
        capsys, plan, "--backend", "litert,onnxruntime", *only
    )
    assert "without --int8" in refused(capsys, plan, "--calibration", "random")
    assert "a bundle brings its own" in refused(capsys, plan, "--bundle", "a.nns", "--weights", "b")
    assert "no bundle" in refused(capsys, plan, "--bundle", tmp_path / "none.nns")
    assert "no folder" in refused(capsys, plan, "--out", tmp_path / "nowhere" / "page.md")
    assert "cannot write" in refused(capsys, plan, "--out", plan)


@pytest.mark.parametrize(
    "argv",
    [["--runs", "0"], ["--seconds", "0"], ["--seconds", "nan"], ["--runs", "3", "--seconds", "3"]],
)
def test_wrong_usage_is_status_2(plan: Path, argv: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_verb("bench", [str(plan), *argv])
    assert stopped.value.code == 2
