"""`nnstretch simulate measure`, `--costs` and `--replay`: tables, records, refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from support.bundles import branched_bundle

from nnstretch.bundle.bundle import write_bundle
from nnstretch.cli import main
from nnstretch.files.workload.measured_costs import read_measured_costs

HEADER = {
    **{"format": 1, "record": "nnstretch serve", "version": "0.1.0", "workload": "w.yaml"},
    **{"policy": "rr", "queueing": True, "correction": True, "seed": 0},
    "processors": [{"name": "cpu0", "kind": "cpu"}],
    "applications": [
        {
            **{"name": "net", "priority": 0, "deadline_us": None, "queue_limit": None},
            "tasks": [{"name": "t", "needs": [], "processor": None, "costs_us": {"cpu0": 900.0}}],
        }
    ],
}
WORKLOAD = """
pool: {cpu: 2}
applications:
- {name: net, costs_ms: {cpu: 1}, arrivals: {times_ms: [0]}}
"""


def request(number: int, arrived_us: float, start_us: float, took_us: float) -> dict[str, Any]:
    end_us = start_us + took_us
    return {
        **{"request": number, "application": "net", "arrived_us": arrived_us},
        **{"admitted_us": arrived_us, "ended_us": end_us, "end": "answered"},
        **{"deadline_us": None, "priority": 0},
        "tasks": [{"task": "t", "processor": "cpu0", "start_us": start_us, "end_us": end_us}],
    }


@pytest.fixture
def record(tmp_path: Path) -> Path:
    rows = [request(0, 0, 0, 1000), request(1, 500, 1000, 2000), request(2, 9000, 9000, 1500)]
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [HEADER, *rows]))
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    return path


def run(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    assert main([*map(str, args), "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def refusal(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    assert main(list(map(str, args))) == 1
    error = capsys.readouterr().err
    assert error.startswith("nnstretch: ")
    assert error.count("\n") == 1
    return error


def test_a_record_arrives_once_more(
    capsys: pytest.CaptureFixture[str], record: Path, tmp_path: Path
) -> None:
    replay = run(capsys, "simulate", tmp_path / "w.yaml", "--replay", record)["replay"]
    assert replay["recorded_ms"] == {"mean": 5.0 / 3, "p50": 1.5, "p95": 2.5, "p99": 2.5}
    assert replay["error"] == {"mean": 0.0, "p50": 0.0, "p95": 0.0, "p99": 0.0}
    assert replay["requests"] == 3
    assert replay["durations"] == "recorded"
    assert main(["simulate", str(tmp_path / "w.yaml"), "--replay", str(record)]) == 0
    assert "3 requests of" in capsys.readouterr().out


def test_costs_of_a_record_are_drawn_from(
    capsys: pytest.CaptureFixture[str], record: Path, tmp_path: Path
) -> None:
    costs, workload = tmp_path / "c.json", tmp_path / "w.yaml"
    table = run(capsys, "simulate", "measure", workload, "--record", record, "--out", costs)
    assert [row["median_ms"] for row in table["tasks"]] == [1.5]
    samples_us = read_measured_costs(costs).tasks[0].samples_us
    assert samples_us == (1000.0, 1500.0, 2000.0)
    replay = run(capsys, "simulate", workload, "--replay", record, "--costs", costs)["replay"]
    assert replay["durations"] == "measured"
    assert 1.0 <= replay["simulated_ms"]["p50"] <= 3.5


def test_a_record_of_another_workload_is_refused(
    capsys: pytest.CaptureFixture[str], record: Path, tmp_path: Path
) -> None:
    workload = tmp_path / "other.yaml"
    workload.write_text(WORKLOAD.replace("net", "ocr"))
    message = refusal(capsys, "simulate", workload, "--replay", record)
    assert "is a record of w.yaml, --replay, ocr is not in it and net is not in the" in message
    out = tmp_path / "c.json"
    again = refusal(capsys, "simulate", "measure", workload, "--record", record, "--out", out)
    assert "ocr is not in it" in again
    assert not out.exists()


def test_bundles_are_measured_alone_and_beside_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bundle = branched_bundle()
    write_bundle(tmp_path / "net.nns", bundle.manifest, bundle.files)
    workload, costs = tmp_path / "w.yaml", tmp_path / "c.json"
    workload.write_text(
        "pool: {cpu: 2}\napplications:\n"
        "- {name: net, model: net.nns, arrivals: {period_ms: 5}, instances: 20}\n"
    )
    table = run(capsys, "simulate", "measure", workload, "--out", costs, "--rounds", "3")
    names = {sub.name for sub in bundle.manifest.subgraphs}
    assert {(row["task"], row["processor"]) for row in table["tasks"]} == {
        (name, core) for name in names for core in ("cpu0", "cpu1")
    }
    assert all(row["median_ms"] > 0 and row["beside"] > 0 for row in table["tasks"])
    assert table["handover_us"] > 0
    result = run(capsys, "simulate", workload, "--costs", costs, "--check")
    assert result["apps"][0]["ended"] == 20
    fastest_ms = dict.fromkeys(names, math.inf)
    for row in table["tasks"]:
        fastest_ms[row["task"]] = min(fastest_ms[row["task"]], row["median_ms"])
    assert result["app_latency_ms"]["p50"] > max(fastest_ms.values())


def test_what_cannot_be_measured_or_drawn_is_refused(
    capsys: pytest.CaptureFixture[str], record: Path, tmp_path: Path
) -> None:
    workload, costs = tmp_path / "w.yaml", tmp_path / "c.json"
    assert "only what `nnstretch export` wrote" in refusal(
        capsys, "simulate", "measure", workload, "--out", costs
    )
    recorded = ("simulate", "measure", workload, "--record", record, "--out", costs)
    for option in (("--rounds", "500"), ("--seed", "0")):
        assert f"{' '.join(option)} with --record" in refusal(capsys, *recorded, *option)
    assert "--rounds is 0" in refusal(capsys, *recorded[:3], "--out", costs, "--rounds", "0")
    run(capsys, *recorded)
    assert "net of net was not measured, costs, the table has t" in refusal(
        capsys, "simulate", workload, "--costs", costs
    )
    table = json.loads(costs.read_text())
    costs.write_text(json.dumps(table | {"many_under_way": -1}))
    assert "costs.many_under_way, -1 is out of range" in refusal(
        capsys, "simulate", workload, "--costs", costs
    )
    table["processors"] = ["cpu7"]
    costs.write_text(json.dumps(table))
    assert "t on cpu0, the table has no such processor" in refusal(
        capsys, "simulate", workload, "--costs", costs
    )
    workload.write_text(WORKLOAD + "durations: {kind: measured}\n")
    assert "no costs, measured durations" in refusal(capsys, "simulate", workload)


def test_a_pool_may_have_fewer_processors_than_were_measured_but_no_others(
    capsys: pytest.CaptureFixture[str], record: Path, tmp_path: Path
) -> None:
    workload, costs = tmp_path / "w.yaml", tmp_path / "c.json"
    run(capsys, "simulate", "measure", workload, "--record", record, "--out", costs)
    table = json.loads(costs.read_text())
    table["processors"] = ["cpu0", "cpu1", "cpu2"]
    table["tasks"][0]["task"] = "net"
    costs.write_text(json.dumps(table))
    assert run(capsys, "simulate", workload, "--costs", costs)["apps"][0]["ended"] == 1
    workload.write_text(WORKLOAD.replace("cpu: 2", "cpu: 4"))
    told = "cpu3 of the pool was not measured, costs, the table has cpu0, cpu1, cpu2"
    assert told in refusal(capsys, "simulate", workload, "--costs", costs)
