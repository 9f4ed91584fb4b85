"""`nnstretch run --mode pipeline`.

A stream of items, predicted or run, as numbers, a table and a trace.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.bundles import branched_bundle
from support.pipeline_bundles import chain, framed, reference
from support.verb_run import ran, refused

from nnstretch.bundle.bundle import Bundle, read_bundle, write_bundle
from nnstretch.cli import run_verb
from nnstretch.errors import BadInput
from nnstretch.partition.measured import CLEARLY_FASTER
from nnstretch.run.pipelines.metrics import measure_pipeline
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.run.results.npy_files import write_npy

STAGES = """
import numpy as np

def load(path):
    return np.full((3, 3), 3, np.float32), np.full((3, 3), 3, np.float32)

def draw(x):
    return np.asarray(x.sum())
"""
BROKEN = """
n = 0

def m1(x):
    global n
    n += 1
    if n > 20:
        raise RuntimeError("lens cap")
    return x
"""


def written(tmp_path: Path, bundle: Bundle, times_us: dict[str, float] | None = None) -> Path:
    """With predicted times by stage where they are given."""
    manifest = bundle.manifest
    if times_us is not None:
        subs = tuple(
            replace(
                sub,
                predicted_us=dict.fromkeys(
                    replicas_of(bundle, sub.name, sub.processor), times_us[sub.name]
                ),
            )
            for sub in manifest.subgraphs
        )
        manifest = replace(manifest, subgraphs=subs, soc="mi9")
    write_bundle(tmp_path / "net.nns", manifest, bundle.files)
    return tmp_path / "net.nns"


def replicas_of(bundle: Bundle, name: str, processor: str) -> tuple[str, ...]:
    assert bundle.manifest.pipeline is not None
    stage = next(stage for stage in bundle.manifest.pipeline.stages if name in stage.subgraphs)
    return stage.replicas or (processor,)


def test_predicted_times_give_the_period_of_the_slowest_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On cpu, dsp, cpu."""
    path = written(tmp_path, Bundle(*reference()), {"s0": 2000.0, "s1": 3000.0, "s2": 500.0})
    found = ran(
        capsys, path, "--mode", "pipeline", "--repeat", "40", "--trace", tmp_path / "t.json"
    )
    assert (found["mode"], found["clock"], found["timing"], found["predicted_for"]) == (
        "pipeline",
        "virtual",
        "predicted",
        "mi9",
    )
    assert found["period_ms"] == pytest.approx(3.0)
    assert found["bottleneck_ms"] == found["predicted_bottleneck_ms"] == pytest.approx(3.0)
    assert (found["efficiency"], found["max_abs_error"]) == (pytest.approx(1.0), 0.0)
    assert found["throughput_per_s"] == pytest.approx(1000 / 3)
    assert found["sequential_throughput_per_s"] == pytest.approx(1000 / 5.5)
    assert found["balance"] == pytest.approx((2 + 3 + 0.5) / 3 / 3)
    assert [stage["name"] for stage in found["stages"]] == ["s0", "s1", "s2"]
    assert found["processors"]["dsp"]["utilisation"] == pytest.approx(1.0)
    slices = [
        event
        for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"]
        if event["ph"] == "X"
    ]
    assert len(slices) == 3 * 40
    overlap = [
        s
        for s in slices
        if s["args"]["stage"] == "s0"
        and any(
            o["args"]["stage"] == "s1" and o["ts"] < s["ts"] < o["ts"] + o["dur"] for o in slices
        )
    ]
    assert overlap, "the next item is at the first stage while one is at the second"


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_stages_that_share_a_processor_take_turns_on_it(
    clock: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """cpu, dsp, cpu: a result takes what the first and the last need together."""
    path = written(tmp_path, Bundle(*reference()), {"s0": 4000.0, "s1": 3000.0, "s2": 3000.0})
    found = ran(
        capsys, path, "--mode", "pipeline", "--repeat", "40", "--clock", clock, "--soc", "mi9"
    )
    assert found["period_ms"] > 6.5
    assert found["bottleneck_ms"] == pytest.approx(7.0)
    assert found["predicted_bottleneck_ms"] == pytest.approx(7.0)
    assert clock == "real" or found["period_ms"] == pytest.approx(7.0, rel=0.05), (
        "whose turn it is is the policy's choice"
    )


def test_replicas_halve_what_their_stage_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, chain(3, replicas=2), {"m0": 500.0, "m1": 4000.0, "m2": 800.0})
    found = ran(capsys, path, "--mode", "pipeline", "--repeat", "60", "--soc", "mi9")
    assert found["stages"][1]["processors"] == ["cpu0", "cpu1"]
    assert found["stages"][1]["share_ms"] == pytest.approx(2.0)
    assert found["period_ms"] == pytest.approx(2.0, rel=0.05)


def test_on_threads_every_item_comes_out_with_the_numbers_of_the_stages_in_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, Bundle(*reference()))
    np.save(tmp_path / "x.npy", np.ones((3, 3), np.float32))
    found = ran(
        capsys,
        path,
        "--mode",
        "pipeline",
        "--repeat",
        "30",
        "--output",
        tmp_path / "y.npy",
        "--trace",
        tmp_path / "t.json",
    )
    assert (found["clock"], found["timing"], found["items"], found["max_abs_error"]) == (
        "real",
        "measured",
        30,
        0.0,
    )
    assert (found["lost"], found["failed"]) == (0, 0)
    assert [stage["items"] for stage in found["stages"]] == [30, 30, 30]
    assert 0 < found["efficiency"] <= 1.2
    assert found["throughput_per_s"] > 0
    assert found["sequential_throughput_per_s"] > 0
    assert np.load(tmp_path / "y.npy").shape == (3, 3)
    assert (
        "the pipeline of reference has 2 inputs (data_a, data_b), write --input NAME=FILE.npy"
        in refused(capsys, path, "--mode", "pipeline", "--input", tmp_path / "x.npy")
    )


def test_emulated_stages_take_their_predicted_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, chain(3), {"m0": 4000.0, "m1": 8000.0, "m2": 6000.0})
    found = ran(
        capsys, path, "--mode", "pipeline", "--clock", "real", "--soc", "mi9", "--repeat", "30"
    )
    assert found["timing"] == "emulated"
    assert [stage["service_ms"] for stage in found["stages"]] == pytest.approx([4.0, 8.0, 6.0])
    assert found["period_ms"] >= 8.0 * 0.999


def test_python_stages_run_only_where_the_user_allows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "camera_stage.py").write_text(STAGES)
    path = written(tmp_path, Bundle(*framed("camera_stage:load", "camera_stage:draw")))
    np.save(tmp_path / "x.npy", np.zeros(1))
    allowed = ["--allow", "camera_stage:load", "--allow", "camera_stage:draw"]
    refusal = refused(capsys, path, "--mode", "pipeline")
    assert refusal.startswith(
        "stage before runs camera_stage:load, pipeline, no function was passed for it"
    )
    assert refusal.endswith("on the command line: --allow camera_stage:load")
    assert "give --input" in refused(capsys, path, "--mode", "pipeline", *allowed)
    found = ran(
        capsys, path, "--mode", "pipeline", "--input", "x.npy", "--output", "y.npy", *allowed
    )
    assert [stage["name"] for stage in found["stages"]] == ["before", "s0", "s1", "s2", "after"]
    assert np.load("y.npy") == 9 * 43
    for name, why in (
        ("camera_stage:nothing", "AttributeError"),
        ("no_such_module:f", "ModuleNotFoundError"),
        ("camera_stage:np", "it is no function"),
    ):
        assert why in refused(capsys, path, "--mode", "pipeline", "--allow", name)


def test_items_that_fail_are_counted_and_the_first_error_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stages.py").write_text(BROKEN)
    path = written(tmp_path, chain(3, python=[1]))
    found = ran(
        capsys,
        path,
        "--mode",
        "pipeline",
        "--allow",
        "stages:m1",
        "--repeat",
        "50",
        "--on-error",
        "continue",
    )
    assert found["failed"] == 50 - (20 - 12), "a dozen ran alone"
    assert "stage m1, RuntimeError: lens cap" in found["first_error"]
    assert found["items"] == 50


@pytest.mark.parametrize("every", [1, 10])
def test_only_items_with_a_result_count_as_results(every: int) -> None:
    """A stage that fails at once on the others would make a stream of failures look fast."""

    def slow_or_failing(x: np.ndarray) -> np.ndarray:
        calls.append(0)
        if len(calls) % every == 0 and every > 1:
            time.sleep(0.01)
            return np.asarray(x)
        raise ValueError("no good")

    calls: list[int] = []
    with Pipeline(chain(2, (0,)), {"stages:m0": slow_or_failing}) as pipeline:
        metrics = measure_pipeline(pipeline, np.ones((3, 3), np.float32), 40, lambda result: None)
    results = 40 // every if every > 1 else 0
    assert (len(metrics.ended_us), metrics.failed_items) == (results, 40 - results)
    assert len(metrics.latencies_us) == results
    if results:
        assert min(metrics.latencies_us) >= 10_000
        assert metrics.period_us >= 10_000
    else:
        assert (metrics.period_us, metrics.efficiency) == (0.0, 0.0)


def test_a_stream_that_stops_says_what_the_stage_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "stages", raising=False)
    (tmp_path / "stages.py").write_text(BROKEN)
    path = written(tmp_path, chain(3, python=[1]))
    said = refused(
        capsys,
        path,
        "--mode",
        "pipeline",
        "--clock",
        "real",
        "--allow",
        "stages:m1",
        "--repeat",
        "50",
        "--on-error",
        "stop",
    )
    assert "stage m1, RuntimeError: lens cap" in said


def test_results_that_are_no_arrays_are_counted_and_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "boxes_stage.py").write_text(STAGES.replace("np.asarray(x.sum())", "['box']"))
    path = written(tmp_path, Bundle(*framed("boxes_stage:load", "boxes_stage:draw")))
    np.save(tmp_path / "x.npy", np.zeros(1))
    allowed = ["--allow", "boxes_stage:load", "--allow", "boxes_stage:draw"]
    found = ran(capsys, path, "--mode", "pipeline", "--input", "x.npy", *allowed)
    assert (found["failed"], found["max_abs_error"]) == (0, None)
    assert "a .npy holds numbers" in refused(
        capsys, path, "--mode", "pipeline", "--input", "x.npy", "--output", "y.npy", *allowed
    )
    assert not (tmp_path / "y.npy").exists()


def test_what_is_no_array_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="npy holds numbers and this is dict"):
        write_npy(tmp_path / "y.npy", {"a": 1})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mode", "pipeline", "--requests", "3"], "--mode pipeline with --requests"),
        (["--mode", "pipeline", "--plan", "gpu"], "--plan gpu with --mode pipeline"),
        (
            ["--mode", "pipeline", "--allow", "os.system"],
            "--allow is 'os.system', command line, write MODULE:FUNCTION",
        ),
        (["--allow", "os:getcwd"], "--allow with --mode spatial"),
        (["--on-error", "stop"], "--on-error with --mode spatial"),
        (["--mode", "pipeline"], "no pipeline, bundle"),
    ],
)
def test_what_does_not_go_together_is_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, branched_bundle())
    assert message in refused(capsys, path, *words)


@pytest.mark.slow
def test_candidates_are_measured_here_and_the_fastest_is_kept_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files have changed places with their rows.

    Each bundle has the stages that its row shows.
    """
    net = Path(__file__).parents[1] / "support" / "pipeline_nets.py"
    words = [
        f"{net}:Detector",
        "--soc",
        "mi9",
        "--stages",
        "2",
        "--processors",
        "cpu,cpu",
        "--top",
        "3",
        "--measure",
        "--json",
    ]
    assert run_verb("partition", [*words, "--out", str(tmp_path / "net.nns")]) == 0
    found = json.loads(capsys.readouterr().out)
    times = [one["measured_ms"] for one in found["candidates"]]
    assert times[1:] == sorted(times[1:])
    assert times[0] * (1 - CLEARLY_FASTER) <= times[1], (
        "the best by prediction may be first where no other is clearly faster"
    )
    assert found["measured_ms"] == times[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.2.nns", "net.3.nns", "net.nns"]
    assert [len(one["measured_stages_ms"]) for one in found["candidates"]] == [2, 2, 2]
    for one in found["candidates"]:
        manifest = read_bundle(Path(one["bundle"])).manifest
        assert [
            sub.predicted_us[sub.processor] / 1e3 for sub in manifest.subgraphs
        ] == pytest.approx([stage["latency_ms"] for stage in one["stages"]])


def test_candidates_cannot_be_measured_without_files_or_with_functions_nobody_passes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["torchvision:resnet18", "--soc", "mi9", "--measure"]
    for more, why in (
        ([], "--measure without --out"),
        (["--out", "x.nns", "--after", "m:f"], "--measure with a Python stage"),
    ):
        assert run_verb("partition", [*words, *more]) == 1
        assert why in capsys.readouterr().err
