"""What `nnstretch simulate` refuses, each in one line, and leaves as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.test_cli import refused
from cli.test_simulate_cli import GRAPH, QUEUE, simulate
from support.bundles import branched_bundle

from nnstretch.bundle.bundle import write_bundle


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A workload that is right until a test spoils it."""
    path = tmp_path / "queue.yaml"
    path.write_text(QUEUE, encoding="utf-8")
    return path


def test_costs_that_differ_within_a_type_want_processors_of_their_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    costs = {"a": {"P1": 1000, "P2": 9000}}
    graph = {"tasks": ["a"], "processors": {"P1": "cpu", "P2": "cpu"}, "cost": costs}
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    path = tmp_path / "w.yaml"
    text = "applications: [{name: g, model: graph.json, arrivals: {times_ms: [0, 0]}}]\n"
    path.write_text(text)
    assert simulate(capsys, path)["makespan_ms"] == pytest.approx(2.0)
    path.write_text("pool: {cpu: 2}\n" + text)
    said = refused(capsys, "simulate", str(path))
    assert "a costs 1000 and 9000 us on processors of type cpu" in said


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("policy: rr", "policy: etff", "unknown policy 'etff'"),
        ("cpu: 1.0", "gpu: 1.0", "cost of a on gpu, workload, the pool has none of it"),
        ("costs_ms: {cpu: 1.0}", "model: absent.json", "absent.json"),
        ("costs_ms: {cpu: 1.0}", "model: 'torchvision:resnet18'", "needed is soc or --soc"),
        ("pool: {cpu: 2}", "", "needed is soc, --soc or pool"),
        ("pool: {cpu: 2}", "soc: mi99", "mi99"),
        ("{exponential_ms: 1.0}", "{csv: absent.csv}", "absent.csv"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str],
    queue: Path,
    old: str,
    new: str,
    message: str,
) -> None:
    queue.write_text(QUEUE.replace(old, new, 1), encoding="utf-8")
    assert message in refused(capsys, "simulate", str(queue))


def test_an_application_without_arrivals_is_refused(
    capsys: pytest.CaptureFixture[str],
    queue: Path,
) -> None:
    queue.write_text(QUEUE.replace("arrivals: {exponential_ms: 1.0}, ", ""), encoding="utf-8")
    assert "no arrivals, application a" in refused(capsys, "simulate", str(queue))


def test_a_log_that_is_a_file_is_refused(
    capsys: pytest.CaptureFixture[str],
    queue: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "log").write_text("")
    assert "name a folder" in refused(
        capsys, "simulate", str(queue), "--log", str(tmp_path / "log")
    )
    assert "--replications is 0" in refused(capsys, "simulate", str(queue), "--replications", "0")
    assert "--soc mi9 beside --replay" in refused(
        capsys, "simulate", str(queue), "--replay", "r", "--soc", "mi9"
    )
    assert "--seed is -1" in refused(capsys, "simulate", str(queue), "--seed", "-1")
    assert "--svg, its name must end in .svg" in refused(
        capsys, "simulate", str(queue), "--svg", "page.html"
    )
    assert "--report, its name must end in .html" in refused(
        capsys, "simulate", str(queue), "--report", "page"
    )


def test_a_window_after_the_end_is_refused_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str],
    queue: Path,
    tmp_path: Path,
) -> None:
    files = ("--svg", str(tmp_path / "g.svg"), "--trace", str(tmp_path / "t.json"))
    message = refused(capsys, "simulate", str(queue), *files, "--window", "9e9:")
    assert "--window 9e9:, command line, the last task ends at" in message
    assert [path.name for path in tmp_path.iterdir()] == [queue.name]


@pytest.mark.parametrize("arrivals", ["times_ms: [0, 5, 5]", "csv: t.csv"])
def test_more_instances_than_times_are_refused_and_fewer_are_the_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arrivals: str
) -> None:
    (tmp_path / "t.csv").write_text("0\n5\n5\n")
    path = tmp_path / "w.yaml"
    app = f"{{name: a, costs_ms: {{cpu: 1}}, arrivals: {{{arrivals}}}, instances: 2}}"
    path.write_text(f"pool: {{cpu: 1}}\napplications: [{app}]\n")
    assert simulate(capsys, path)["makespan_ms"] == pytest.approx(6.0)
    path.write_text(path.read_text().replace("instances: 2", "instances: 9"))
    said = refused(capsys, "simulate", str(path))
    assert "9 instances, application a, 3 times are listed" in said


def test_a_sweep_is_no_workload(capsys: pytest.CaptureFixture[str], queue: Path) -> None:
    queue.write_text("workload: w.yaml\ntrials: 2\n", encoding="utf-8")
    assert f"nnstretch simulate sweep {queue}" in refused(capsys, "simulate", str(queue))


def test_no_output_takes_the_place_of_an_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("g.json").write_text(json.dumps(GRAPH), encoding="utf-8")
    Path("t.csv").write_text("1\n2\n")
    app = "{name: g, model: g.json, arrivals: {csv: t.csv}}"
    Path("w.yaml").write_text(f"applications:\n- {app}\n", encoding="utf-8")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for name in ("g.json", "t.csv", "w.yaml"):
        message = refused(capsys, "simulate", "w.yaml", "--trace", f"./{name}")
        assert f"cannot write {name}, it is the command's own input" in message
    Path("r.jsonl").write_text("{}\n")
    asked = ("--replay", "r.jsonl", "--trace", "r.jsonl")
    assert "own input r.jsonl" in refused(capsys, "simulate", "w.yaml", *asked)
    assert "l is written twice" in refused(
        capsys, "simulate", "w.yaml", "--trace", "l", "--log", "l"
    )
    Path("r.jsonl").unlink()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_bundle_without_times_says_what_it_lacks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bundle, path = branched_bundle(predicted=False), tmp_path / "w.yaml"
    write_bundle(tmp_path / "net.nns", bundle.manifest, bundle.files)
    app = "{name: detect, model: net.nns, arrivals: {times_ms: [0]}}"
    path.write_text(f"pool: {{cpu: 2}}\napplications: [{app}]\n")
    told = "no predicted times, net.nns of detect, workload, export it with --soc, or give"
    assert told in refused(capsys, "simulate", str(path))
