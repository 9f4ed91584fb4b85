"""`nnstretch run --requests`: many requests, what goes wrong meanwhile, and several plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.bundles import branched_bundle, branched_latency_us, several_plans
from support.verb_run import ran, refused

from nnstretch.bundle.bundle import Bundle, write_bundle
from nnstretch.cli import run_verb

CONTRACT = {
    *(
        "mode",
        "clock",
        "latency_ms",
        "critical_path_ms",
        "overlap_efficiency",
        "dispatch_overhead_us",
        "throughput_per_s",
    ),
    *("sequential_throughput_per_s", "max_abs_error", "replaced", "lost", "processors"),
}


def written(folder: Path, bundle: Bundle) -> Path:
    write_bundle(folder / "net.nns", bundle.manifest, bundle.files)
    return folder / "net.nns"


@pytest.fixture
def net(tmp_path: Path) -> Path:
    return written(tmp_path, several_plans())


def test_one_client_on_a_quiet_chip_gets_the_predicted_latency(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ran(capsys, net, "--requests", 20)
    assert found.keys() >= CONTRACT
    ms = branched_latency_us(1, (1000.0, 1000.0)) / 1000
    assert found["latency_ms"] == dict.fromkeys(
        ("min", "median", "p90", "p95", "p99"), pytest.approx(ms)
    )
    assert (
        found["answered"],
        found["errors"],
        found["cancelled"],
        found["lost"],
        found["replaced"],
    ) == (20, {}, 0, 0, 0)
    assert (found["plans"], found["adaptive"], found["clock"], found["timing"]) == (
        {"main": 20},
        True,
        "virtual",
        "predicted",
    )
    assert found["throughput_per_s"] == pytest.approx(1000 / ms)
    assert (found["overlap_efficiency"], found["max_abs_error"]) == (pytest.approx(1.0), 0.0)
    assert found["sequential_throughput_per_s"] < found["throughput_per_s"]


def test_more_clients_share_the_chip(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, four = (
        ran(capsys, net, "--requests", 40, "--clients", k, "--plan", "both") for k in (1, 4)
    )
    assert four["throughput_per_s"] > one["throughput_per_s"]
    assert four["latency_ms"]["median"] > one["latency_ms"]["median"]


def test_busy_processors_are_left(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    busy = ["--requests", 60, "--busy", "dsp@10:40,gpu@40:60"]
    adaptive, fixed = ran(capsys, net, *busy), ran(capsys, net, *busy, "--plan", "main")
    assert set(adaptive["plans"]) > {"main"}
    assert sum(adaptive["plans"].values()) == 60
    assert (fixed["plans"], fixed["adaptive"], fixed["plan"]) == ({"main": 60}, False, "main")
    assert adaptive["elapsed_ms"] < fixed["elapsed_ms"]


def test_a_failed_processors_work_runs_elsewhere(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ran(capsys, net, "--requests", 30, "--plan", "main", "--fail", "dsp@5")
    assert (found["answered"], found["lost"], found["max_abs_error"]) == (30, 0, 0.0)
    assert found["replaced"] > 20
    back = ran(capsys, net, "--requests", 30, "--plan", "main", "--fail", "dsp@5:10")
    assert 0 < back["replaced"] < 10
    none = ran(capsys, net, "--requests", 30, "--fail", "cpu@5,dsp@5,gpu@5")
    assert none["answered"] + none["errors"]["no processor left"] == 30
    late = ran(capsys, net, "--requests", 10, "--clients", 10, "--deadline-ms", 3)
    assert 0 < late["errors"]["deadline missed"] < 10
    nobody = ran(capsys, net, "--requests", 3, "--deadline-ms", 0.01)
    assert (nobody["answered"], nobody["latency_ms"], nobody["errors"]) == (
        0,
        None,
        {"deadline missed": 3},
    )


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["virtual", "real"])
@pytest.mark.parametrize("trouble", [["--deadline-ms", 0.01], ["--fail", "cpu@0,dsp@0,gpu@0"]])
def test_without_an_answer_there_is_no_output_and_nothing_was_compared(
    net: Path, capsys: pytest.CaptureFixture[str], clock: str, trouble: list[object]
) -> None:
    options = ["--requests", 3, "--clock", clock, *trouble]
    nobody = ran(capsys, net, *options)
    assert (nobody["answered"], nobody["max_abs_error"]) == (0, None)
    output, trace = net.with_name("y.npy"), net.with_name("t.json")
    told = refused(capsys, net, *options, "--output", output, "--trace", trace)
    assert told.startswith("no request of 3 was answered (")
    assert f"{output} is not written" in told
    assert (output.exists(), trace.exists()) == (False, True)
    assert run_verb("run", [str(net), *map(str, options)]) == 0
    assert "nothing to compare" in capsys.readouterr().out


def test_a_task_that_ends_after_its_request_ran_elsewhere_too(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--requests", 8, "--clients", 4, "--plan", "main", "--fail", "dsp@0"]
    trace = net.with_name("t.json")
    told = ran(capsys, net, *options, "--deadline-ms", 1.5, "--trace", trace)
    events = json.loads(trace.read_text())["traceEvents"]
    assert told["errors"] == {"deadline missed": 8}
    assert told["replaced"] == sum(event["name"].endswith("s1_dsp") for event in events) > 0


def test_what_was_to_go_wrong_later_is_told(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--fail", "dsp@2,gpu@300:400", "--busy", "cpu@200:250"]
    assert ran(capsys, net, "--requests", 5, *options)["not_reached"] == ["cpu@200:250", "gpu@300"]
    assert run_verb("run", [str(net), "--requests", "5", "--fail", "dsp@300"]) == 0
    assert "not reached: dsp@300, all had ended after" in capsys.readouterr().out


def test_what_ended_the_last_requests_was_reached(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ran(capsys, net, "--requests", 50, "--fail", "cpu@10,dsp@10,gpu@10")
    assert (found["elapsed_ms"], found["not_reached"]) == (10.0, [])
    assert found["errors"]


def test_the_real_clock_serves_the_same(
    net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--clock", "real", "--requests", 12, "--clients", 2, "--fail", "dsp@4"]
    found = ran(
        capsys, net, *options, "--output", tmp_path / "y.npy", "--trace", tmp_path / "t.json"
    )
    assert (found["answered"], found["lost"], found["max_abs_error"], found["timing"]) == (
        12,
        0,
        0.0,
        "emulated",
    )
    assert sum(found["plans"].values()) == 12
    assert found["latency_ms"]["min"] > 1
    assert (tmp_path / "y.npy").is_file()
    trace = json.loads((tmp_path / "t.json").read_text())
    assert trace["otherData"]["timing"] == found["timing"]
    events = trace["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"measured"}
    slices = {e["name"] for e in events if e["ph"] == "X"}
    plans = trace["otherData"]["plans"]
    assert plans["main"] == ["main/stem", "main/s1_cpu", "main/s1_dsp", "main/s1_merge"]
    assert slices <= {name for names in plans.values() for name in names}


def test_without_predictions_tasks_take_what_they_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = written(tmp_path, branched_bundle(predicted=False))
    found = ran(capsys, plain, "--requests", 5, "--fail", "dsp@0")
    assert (found["clock"], found["timing"], found["answered"], found["replaced"]) == (
        "real",
        "measured",
        5,
        5,
    )
    assert (found["critical_path_ms"], found["sequential_throughput_per_s"], found["adaptive"]) == (
        None,
        None,
        False,
    )
    assert "only a processor whose times are predicted can be slowed down" in refused(
        capsys, plain, "--requests", 5, "--busy", "dsp@0:5"
    )


def test_for_people_it_is_a_table(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb("run", [str(net), "--requests", "9", "--fail", "dsp@3"]) == 0
    out = capsys.readouterr().out
    assert "p95" in out
    assert "plans, adaptive" in out
    assert run_verb("run", [str(net), "--repeat", "1"]) == 0
    assert "main, of main, gpu, both" in capsys.readouterr().out


def test_one_plan_of_several(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ran(capsys, net, "--plan", "both", "--repeat", 1)
    assert (found["plan"], found["plans"]) == ("both", ["main", "gpu", "both"])
    assert set(found["processors"]) == {"cpu", "gpu", "dsp"}
    assert "unknown plan 'best'" in refused(capsys, net, "--plan", "best")
    assert "unknown plan 'best'" in refused(capsys, net, "--plan", "best", "--requests", 3)


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--fail", "dsp@30"], "--fail dsp@30 without --requests"),
        (["--clients", "3"], "--clients 3 without --requests"),
        (["--requests", "3", "--repeat", "2"], "--repeat 2 with --requests"),
        (["--requests", "3", "--mode", "sequential"], "--mode sequential with --requests"),
        (
            ["--requests", "3", "--fail", "dsp"],
            "--fail 'dsp' cannot be read, command line, write PROCESSOR@MS",
        ),
        (["--requests", "3", "--fail", "dsp@5,"], "--fail '' cannot be read"),
        (["--requests", "3", "--fail", "dsp@-1"], "--fail 'dsp@-1' cannot be read"),
        (["--requests", "3", "--fail", "dsp@9:9"], "--fail 'dsp@9:9' is no stretch of time"),
        (
            ["--requests", "3", "--busy", "gpu@5"],
            "--busy 'gpu@5' cannot be read, command line, write PROCESSOR@MS:MS",
        ),
        (["--requests", "3", "--busy", "gpu@50:5"], "--busy 'gpu@50:5' is no stretch of time"),
        (["--requests", "3", "--busy", "gpu@0:nan"], "cannot be read"),
        (
            ["--requests", "3", "--busy", "gpu@0:9999999999"],
            "is too late, command line, times go up to 1e+09 ms",
        ),
        (
            ["--requests", "3", "--fail", "npu@5"],
            "unknown processor 'npu', command line, the bundle knows cpu, dsp, gpu",
        ),
        (["--requests", "3", "--deadline-ms", "0"], "--deadline-ms is 0"),
        (["--requests", "3", "--deadline-ms", "nan"], "--deadline-ms is nan"),
    ],
)
def test_a_bad_specification_is_one_line(
    net: Path, capsys: pytest.CaptureFixture[str], argv: list[str], why: str
) -> None:
    assert why in refused(capsys, net, *argv)
