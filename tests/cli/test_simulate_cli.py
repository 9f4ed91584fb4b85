"""`nnstretch simulate`: fields of the contract, traces and logs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli.test_cli import refused
from support.bundles import branched_bundle
from support.small_plan import write_plan_of_small_net

from nnstretch.bundle.bundle import write_bundle
from nnstretch.cli import main

QUEUE = """
pool: {cpu: 2}
policy: rr
applications:
- {name: a, costs_ms: {cpu: 1.0}, arrivals: {exponential_ms: 1.0}, instances: 200}
- {name: b, costs_ms: {cpu: 0.5}, arrivals: {period_ms: 3, first: period}, duration_ms: 90}
"""
GRAPH = {
    "tasks": ["t1", "t2"],
    "processors": {"big": "cpu", "small": "fft"},
    "cost": {"t1": {"cpu": 1000.0}, "t2": {"cpu": 900.0, "fft": 500.0}},
    "edges": [{"from": "t1", "to": "t2", "data": 200.0}],
}


def simulate(capsys: pytest.CaptureFixture[str], path: Path, *more: str) -> dict[str, Any]:
    assert main(["simulate", str(path), "--json", *more]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    path = tmp_path / "queue.yaml"
    path.write_text(QUEUE, encoding="utf-8")
    return path


def test_handing_over_is_a_part_of_what_a_bundle_is_predicted_to_take(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bundle = branched_bundle()
    stem = replace(bundle.manifest.subgraphs[0], processor="gpu", predicted_us={"gpu": 300.0})
    manifest = replace(bundle.manifest, subgraphs=(stem,), outputs=stem.outputs, sync_us={0: 400.0})
    write_bundle(tmp_path / "net.nns", manifest, {stem.file: bundle.files[stem.file]})
    app = "{name: a, model: net.nns, placement: kept, arrivals: {times_ms: [0]}}"
    path = tmp_path / "one.yaml"
    path.write_text(f"soc: mi9\npolicy: met\napplications:\n- {app}\n", encoding="utf-8")
    assert simulate(capsys, path)["app_latency_ms"]["mean"] == 0.7


def test_costs_that_nobody_measured_say_so_and_where_they_come_from(
    capsys: pytest.CaptureFixture[str], queue: Path
) -> None:
    assert main(["simulate", str(queue)]) == 0
    assert "calibrated" not in capsys.readouterr().out
    queue.write_text(f"calibrated: false\nprovenance: my own guess\n{QUEUE}", encoding="utf-8")
    assert main(["simulate", str(queue)]) == 0
    told = capsys.readouterr().out
    assert "the costs of this workload are not calibrated\nsource: my own guess\n" in told


@pytest.mark.parametrize("verb", ["simulate", "schedule"])
def test_the_page_of_a_trace_says_that_its_times_are_modelled(
    capsys: pytest.CaptureFixture[str], queue: Path, verb: str
) -> None:
    graph, trace, page = (queue.with_name(name) for name in ("g.json", "t.json", "t.html"))
    graph.write_text(json.dumps(GRAPH), encoding="utf-8")
    subject = str(queue if verb == "simulate" else graph)
    assert main([verb, subject, "--trace", str(trace)]) == 0
    assert main(["report", str(trace), "--out", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "measured" not in text
    assert ", modelled" in text


def test_work_that_takes_no_time_ends_when_it_arrives(
    capsys: pytest.CaptureFixture[str], queue: Path
) -> None:
    queue.write_text(QUEUE.replace("cpu: 1.0", "cpu: 0").replace("cpu: 0.5", "cpu: 0"))
    result = simulate(capsys, queue, "--check")
    assert [app["slowdown"] for app in result["apps"]] == [1.0, 1.0]
    assert result["app_latency_ms"]["p99"] == 0


def test_fields_of_the_contract_and_equal_seeds(
    capsys: pytest.CaptureFixture[str], queue: Path
) -> None:
    first, second = (simulate(capsys, queue, "--seed", "3", "--check") for _ in range(2))
    assert {
        *("apps", "makespan_ms", "app_latency_ms", "throughput_per_s", "scheduling_us"),
        "utilisation",
    } <= first.keys()
    assert first["app_latency_ms"].keys() == {"mean", "p50", "p95", "p99"}
    assert first["scheduling_us"]["per_task"] > 0
    assert first["utilisation"].keys() == {"cpu0", "cpu1"}
    assert [app["ended"] for app in first["apps"]] == [200, 30]
    assert first["checked_tasks"] == 230
    for result in (first, second):
        del result["scheduling_us"]
    assert first == second
    assert simulate(capsys, queue, "--seed", "4")["app_latency_ms"] != first["app_latency_ms"]


def test_costs_of_next_to_no_time_slow_nothing_down(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "workload.yaml"
    tiny = "{name: tiny, costs_ms: {cpu: 1.0e-308}, arrivals: {period_ms: 1}, instances: 9}"
    long = "{name: long, costs_ms: {cpu: 5}, arrivals: {times_ms: [0, 0]}}"
    path.write_text(f"pool: {{cpu: 1}}\napplications: [{tiny}, {long}]\n")
    assert main(["simulate", str(path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [app["slowdown"] for app in result["apps"]] == [1, 1.5]
    assert result["jain_fairness"] == pytest.approx(2.5**2 / (2 * (1 + 1.5**2)))


def test_an_application_of_which_nothing_ends_is_not_taken_for_one_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "workload.yaml"
    late = "{name: late, costs_ms: {cpu: 5}, deadline_ms: 1, arrivals: {times_ms: [0, 0]}}"
    calm = "{name: calm, costs_ms: {cpu: 5}, arrivals: {times_ms: [0, 0]}}"
    path.write_text(f"pool: {{cpu: 1}}\npolicy: least_slack_drop\napplications: [{late}, {calm}]\n")
    call = ["simulate", str(path), "--report", str(tmp_path / "page.html")]
    assert main([*call, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [app["slowdown"] for app in result["apps"]] == [None, 1.5]
    assert result["apps"][0]["latency_ms"] == dict.fromkeys(("mean", "p50", "p95", "p99"))
    assert (result["antt"], result["jain_fairness"]) == (None, None)
    assert result["stp"] == pytest.approx(1 / 1.5)
    assert main(call) == 0
    assert re.search(r"late +│ 0 of 2 +│ - +│ - +│ - +│ - +│ 2 +│ - ", capsys.readouterr().out)


def test_replications_give_intervals_and_people_get_a_table(
    capsys: pytest.CaptureFixture[str], queue: Path
) -> None:
    result = simulate(capsys, queue, "--replications", "4")
    low, high = result["app_latency_interval_95_ms"]["mean"]
    assert low < result["app_latency_ms"]["mean"] < high
    assert main(["simulate", str(queue), "--policy", "etf"]) == 0
    assert "etf: makespan" in capsys.readouterr().out


def test_replications_in_which_nothing_ends_have_no_latency(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "rare.yaml"
    path.write_text(
        "pool: {cpu: 1}\napplications:\n"
        "- {name: a, costs_ms: {cpu: 10}, arrivals: {exponential_ms: 5}, duration_ms: 2}\n"
    )
    result = simulate(capsys, path, "--replications", "20")
    (app,) = result["apps"]
    assert 0 < app["ended"] < 20, "in some of the replications"
    for latency_ms in (app["latency_ms"], result["app_latency_ms"]):
        assert all(value >= 10 for value in latency_ms.values())


def test_a_trace_and_logs_of_cedr(
    capsys: pytest.CaptureFixture[str], queue: Path, tmp_path: Path
) -> None:
    trace, logs = tmp_path / "t.json", tmp_path / "logs"
    for number in range(2):
        result = simulate(capsys, queue, "--trace", str(trace), "--log", str(logs))
        assert result["log"] == str(logs / f"experiment{number}")
    slices = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(slices) == 230
    folder = logs / "experiment1"
    rows = {}
    for name in ("timing_trace", "appruntime_trace", "schedule_trace"):
        lines = (folder / f"{name}.log").read_text().splitlines()
        rows[name] = [dict(pair.split(": ") for pair in line.split(", ")) for line in lines]
    assert len(rows["timing_trace"]) == len(rows["appruntime_trace"]) == 230
    starts = [int(row["ref_start_time"]) for row in rows["timing_trace"]]
    assert starts == sorted(starts)
    assert {row["actual_exe_time"] for row in rows["timing_trace"]} == {"1000000", "500000"}
    for row in rows["appruntime_trace"]:
        assert int(row["app_lifetime"]) == int(row["end"]) - int(row["arrival"])
    assert rows["schedule_trace"][0]["sheduling_overhead"].endswith(" ns")
    assert rows["schedule_trace"][-1].keys() == {"total_ready_tasks", "total_scheduling_overhead"}


def test_names_do_not_end_fields_of_logs(
    capsys: pytest.CaptureFixture[str], queue: Path, tmp_path: Path
) -> None:
    queue.write_text(QUEUE.replace("name: a,", "name: 'a, app_id: 7',"), encoding="utf-8")
    folder = Path(simulate(capsys, queue, "--log", str(tmp_path / "logs"))["log"])
    for name in ("timing_trace", "appruntime_trace"):
        for line in (folder / f"{name}.log").read_text().splitlines():
            keys = [field.split(": ")[0] for field in line.split(", ")]
            assert len(keys) == len(set(keys))
            assert all(field.count(": ") == 1 for field in line.split(", "))


def test_a_task_graph_runs_on_processors_of_its_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "g.json").write_text(json.dumps(GRAPH), encoding="utf-8")
    path = tmp_path / "w.yaml"
    path.write_text("applications:\n- {name: g, model: g.json, arrivals: {times_ms: [0, 0.1]}}\n")
    alone = simulate(capsys, path, "--policy", "eft", "--check")
    assert alone["apps"][0]["alone_ms"] == 1.7, "1 ms, a copy of 0.2, then 0.5"
    assert alone["utilisation"].keys() == {"big", "small"}


def test_a_pool_gives_a_graph_more_processors(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "g.json").write_text(json.dumps(GRAPH), encoding="utf-8")
    path = tmp_path / "w.yaml"
    path.write_text(
        "pool: {cpu: 2, fft: 1}\n"
        "applications:\n- {name: g, model: g.json, arrivals: {times_ms: [0, 0]}}\n"
    )
    result = simulate(capsys, path, "--policy", "mct", "--check")
    assert result["utilisation"].keys() == {"cpu0", "cpu1", "fft"}
    assert result["makespan_ms"] == 1.9, "each graph on a core of its own: 1 and 0.9"


def test_a_graph_without_processors_wants_a_pool(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "one.stg").write_text("1\n0 0 0\n1 5 1 0\n2 0 1 1\n")
    path = tmp_path / "workload.yaml"
    path.write_text("applications: [{name: a, model: one.stg, arrivals: {times_ms: [0]}}]\n")
    assert "no pool, workload, one.stg names no processors" in refused(
        capsys, "simulate", str(path)
    )
    path.write_text(f"pool: {{cpu: 2}}\n{path.read_text()}")
    assert simulate(capsys, path, "--check")["checked_tasks"] == 3, "with both dummies"


def test_pieces_of_a_network_run_where_they_are_predicted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    conv = lambda i, o: [nn.Conv2d(i, o, 3, padding=1), nn.ReLU()]\n"
        "    return nn.Sequential(*conv(3, 16), *conv(16, 16), *conv(16, 16), *conv(16, 16))\n"
    )
    path = tmp_path / "w.yaml"
    latencies, alone_ms = {}, {}
    for cut in ("whole", "layers", "2"):
        path.write_text(
            f"soc: mi9\npolicy: eft\napplications:\n"
            f"- {{name: n, model: '{tmp_path}/net.py:make', cut: {cut},"
            " arrivals: {period_ms: 50}, instances: 4}\n"
        )
        result = simulate(capsys, path, "--check")
        latencies[cut] = result["apps"][0]["alone_ms"]
        assert result["checked_tasks"] == {"whole": 4, "layers": 16, "2": 8}[cut]
    assert latencies["whole"] > 0
    path.write_text(path.read_text().replace("soc: mi9", "soc: mi9\npool: {cpu: 1}"))
    for cut in ("whole", "layers", "segments", "2"):
        path.write_text(path.read_text().replace("cut: 2", f"cut: {cut}"))
        alone_ms[cut] = simulate(capsys, path)["apps"][0]["alone_ms"]
        path.write_text(path.read_text().replace(f"cut: {cut}", "cut: 2"))
    assert alone_ms == dict.fromkeys(alone_ms, pytest.approx(alone_ms["whole"])), "nothing copied"
    path.write_text(path.read_text().replace("cut: 2", "cut: 9"))
    assert "it has 4 layers" in refused(capsys, "simulate", str(path))


def test_a_plan_runs_on_a_pool_without_a_cpu(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = write_plan_of_small_net(tmp_path)
    head = plan.read_text(encoding="utf-8").partition("segments:")[0]
    plan.write_text(f"{head}segments: [{{end: output, processor: dsp}}]\n", encoding="utf-8")
    path = tmp_path / "w.yaml"
    path.write_text(
        "soc: mi9\npool: {dsp: 1}\n"
        "applications: [{name: a, model: plan.yaml, arrivals: {times_ms: [0]}}]\n"
    )
    assert simulate(capsys, path, "--check")["utilisation"].keys() == {"dsp"}


def test_measured_times_of_nothing_leave_nothing_to_compare(
    capsys: pytest.CaptureFixture[str], queue: Path, tmp_path: Path
) -> None:
    table = tmp_path / "costs.json"
    row = {"processor": "cpu0", "median_us": 5000.0, "samples_us": [0.0]}
    rows = [{"application": name, "task": name} | row for name in ("a", "b")]
    table.write_text(json.dumps({"format": 1, "processors": ["cpu0", "cpu1"], "tasks": rows}))
    result = simulate(capsys, queue, "--costs", str(table))
    assert result["jain_fairness"] is None


def test_times_that_no_clock_tells_apart_give_finite_numbers(
    capsys: pytest.CaptureFixture[str], queue: Path
) -> None:
    app = "{name: a, costs_ms: {cpu: 1e-312}, arrivals: {times_ms: [0]}}"
    queue.write_text(f"pool: {{cpu: 1}}\napplications:\n- {app}\n")
    assert simulate(capsys, queue)["throughput_per_s"] == 0
