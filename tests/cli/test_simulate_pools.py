"""`nnstretch simulate`: which costs count for which processor of a pool."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli.test_cli import refused
from cli.test_simulate_cli import simulate
from support.bundles import branched_bundle

from nnstretch.bundle.bundle import write_bundle
from nnstretch.predict.load_soc import find_soc

ONCE = "arrivals: {times_ms: [0]}"
TWICE = "arrivals: {times_ms: [0, 0]}"
CORES = {"c0": "cpu", "c1": "cpu"}


def workload(folder: Path, head: str, *applications: str) -> Path:
    """Write a workload of these applications."""
    path = folder / "w.yaml"
    path.write_text(f"{head}\npolicy: eft\napplications: [{', '.join(applications)}]\n")
    return path


def write_graph(path: Path, processors: Any, cost: dict[str, dict[str, float]]) -> None:
    """Write a task graph of independent tasks."""
    graph = {"tasks": list(cost), "processors": processors, "cost": cost}
    path.write_text(json.dumps(graph), encoding="utf-8")


@pytest.fixture
def chip(tmp_path: Path) -> Path:
    """A chip whose DSP is called cpu1, though it is no copy of its cpu."""
    folder = tmp_path / "chip"
    shutil.copytree(find_soc("mi9"), folder)
    (folder / "dsp.json").rename(folder / "cpu1.json")
    for path in (folder / "soc.json", folder / "cpu1.json"):
        text = path.read_text(encoding="utf-8")
        for key in ("name", "processor", "beside"):
            text = text.replace(f'"{key}": "dsp"', f'"{key}": "cpu1"')
        path.write_text(text, encoding="utf-8")
    return folder


def test_a_name_with_a_digit_makes_no_copy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, chip: Path
) -> None:
    write_graph(tmp_path / "g.json", ["dsp", "dsp1"], {"x": {"dsp": 4000}, "y": {"dsp": 3000}})
    path = workload(tmp_path, "", f"{{name: g, model: g.json, {ONCE}}}")
    result = simulate(capsys, path, "--check")
    assert (result["makespan_ms"], result["utilisation"]["dsp1"]) == (7.0, 0.0)
    cost = f"{{name: a, costs_ms: {{cpu: 5}}, {TWICE}}}"
    for head in ("pool: {cpu: 1, cpu64: 1}", f"soc: {chip}"):
        result = simulate(capsys, workload(tmp_path, head, cost), "--check")
        assert result["makespan_ms"] == 10.0
    for head in ("pool: {cpu: 2}", "soc: mi9\npool: {cpu: 2}"):
        assert simulate(capsys, workload(tmp_path, head, cost))["makespan_ms"] == 5.0


def test_a_bundle_takes_its_own_time_of_a_processor(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, chip: Path
) -> None:
    bundle = branched_bundle()
    times_us = {"cpu1": 287.0, "cpu": 133.0, "gpu": 90.0}
    stem = replace(bundle.manifest.subgraphs[0], processor="cpu", predicted_us=times_us)
    manifest = replace(bundle.manifest, subgraphs=(stem,), outputs=stem.outputs, sync_us={})
    write_bundle(tmp_path / "net.nns", manifest, {stem.file: bundle.files[stem.file]})
    network = f"{{name: a, model: net.nns, {TWICE}}}"
    for head, latency_ms in (
        (f"soc: {chip}\npool: {{cpu1: 1}}", 2 * 0.287),
        ("pool: {cpu1: 1, cpu: 1}", 2 * 0.133),
        ("pool: {gpu: 2}", 0.09),
    ):
        result = simulate(capsys, workload(tmp_path, head, network))
        assert result["makespan_ms"] == pytest.approx(latency_ms)


@pytest.mark.parametrize("head", ["soc: mi9\npool: {cpu: 2, dsp: 1}", "pool: {cpu: 2, dsp: 1}"])
def test_a_task_that_keeps_its_place_runs_on_any_copy_of_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, head: str
) -> None:
    bundle = branched_bundle()
    stem = replace(
        bundle.manifest.subgraphs[0], processor="cpu", predicted_us={"cpu": 100.0, "dsp": 10.0}
    )
    manifest = replace(bundle.manifest, subgraphs=(stem,), outputs=stem.outputs, sync_us={})
    write_bundle(tmp_path / "net.nns", manifest, {stem.file: bundle.files[stem.file]})
    for placement, busy in (("kept", {"cpu0", "cpu1"}), ("free", {"dsp"})):
        network = f"{{name: a, model: net.nns, placement: {placement}, {TWICE}}}"
        result = simulate(capsys, workload(tmp_path, head, network), "--check")
        assert {name for name, share in result["utilisation"].items() if share} == busy


@pytest.mark.slow
def test_a_plan_runs_on_copies_of_the_processors_that_it_names(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = "model: torchvision:resnet18?num_classes=10\ninput: [1, 3, 64, 64]\nsoc: mi9\nformat: 1"
    (tmp_path / "p.yaml").write_text(f"{plan}\nsegments: [{{end: output, processor: cpu}}]\n")
    for placement in ("free", "kept"):
        network = f"{{name: a, model: p.yaml, placement: {placement}, {TWICE}}}"
        makespans_ms = []
        for count in (1, 2):
            path = workload(tmp_path, f"soc: mi9\npool: {{cpu: {count}, dsp: 1}}", network)
            makespans_ms.append(simulate(capsys, path, "--check")["makespan_ms"])
        assert makespans_ms[0] == pytest.approx(2 * makespans_ms[1])


def test_costs_of_a_type_count_for_no_type_that_the_graph_is_without(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_graph(tmp_path / "g.json", CORES, {"x": {"cpu": 4000}, "y": {"cpu": 3000}})
    write_graph(tmp_path / "h.json", {"g0": "gpu"}, {"z": {"gpu": 1000}})
    (tmp_path / "s.stg").write_text("1\n0 0 0\n1 5000 1 0\n2 0 1 1\n")
    graph, second, plain = (
        f"{{name: {name[0]}, model: {name}, {ONCE}}}" for name in ("g.json", "h.json", "s.stg")
    )
    path = workload(tmp_path, "pool: {gpu: 1}", graph)
    assert "x of g can run nowhere, workload, the pool is gpu" in refused(
        capsys, "simulate", str(path)
    )
    path = workload(tmp_path, "", graph, second)
    assert "z of h can run nowhere, workload, the pool is c0, c1" in refused(
        capsys, "simulate", str(path)
    )
    result = simulate(capsys, workload(tmp_path, "pool: {gpu: 2}", plain))
    assert result["makespan_ms"] == 5.0, "a file without types runs on any one type"
    pool = "pool: {cpu: 1, gpu: 1}"
    result = simulate(capsys, workload(tmp_path, pool, graph, second), "--check")
    assert result["makespan_ms"] == 7.0


def test_what_runs_on_some_of_a_type_wants_processors_of_its_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    processors = {**CORES, "f": "fft"}
    write_graph(tmp_path / "g.json", processors, {"x": {"c1": 4000}, "y": {"c1": 3000, "fft": 9}})
    graph = f"{{name: g, model: g.json, {ONCE}}}"
    assert simulate(capsys, workload(tmp_path, "", graph))["makespan_ms"] == 4.0
    path = workload(tmp_path, "pool: {cpu: 2}", graph)
    said = refused(capsys, "simulate", str(path))
    assert "x has a cost on c1 and none on c0, of type cpu, task graph, the pool has no c1" in said
    write_graph(tmp_path / "g.json", processors, {"y": {"c1": 3000, "fft": 9}})
    result = simulate(capsys, workload(tmp_path, "pool: {fft: 1}", graph))
    assert result["makespan_ms"] == 0.009, "of other types nothing is asked"


def test_a_named_processor_has_its_own_costs_and_not_those_of_its_type(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_graph(tmp_path / "g.json", CORES, {"x": {"cpu": 4000}})
    write_graph(tmp_path / "h.json", {"c0": "cpu", "d": "cpu"}, {"y": {"d": 1000}})
    first, second = (f"{{name: {name}, model: {name}.json, {TWICE}}}" for name in "gh")
    result = simulate(capsys, workload(tmp_path, "", first, second), "--check")
    assert result["makespan_ms"] == 6.0, "y twice on c1, which stands for d, and one x"


@pytest.mark.parametrize("named", [("cpu0", "cpu1"), ("cpu1",), ("c0", "cpu2")])
def test_processors_that_the_graph_does_not_name_cost_what_their_type_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, named: tuple[str, ...]
) -> None:
    write_graph(tmp_path / "g.json", dict.fromkeys(named, "cpu"), {"x": {"cpu": 4000}})
    graph = "{name: g, model: g.json, arrivals: {times_ms: [0, 0, 0, 0, 0, 0]}}"
    for count, makespan_ms in ((1, 24.0), (2, 12.0), (3, 8.0)):
        path = workload(tmp_path, f"pool: {{cpu: {count}}}", graph)
        assert simulate(capsys, path, "--check")["makespan_ms"] == makespan_ms


def test_processors_of_another_graph_cost_what_their_type_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cores = {"cpu0": "cpu", "cpu1": "cpu"}
    write_graph(tmp_path / "g.json", cores, {"x": {"cpu": 4000}})
    write_graph(tmp_path / "h.json", {"cpu0": "cpu", "acc": "fft"}, {"y": {"cpu": 4000}})
    first, second = (f"{{name: {name}, model: {name}.json, {TWICE}}}" for name in "gh")
    path = workload(tmp_path, "", first, second)
    assert simulate(capsys, path, "--check")["makespan_ms"] == 8.0
    write_graph(tmp_path / "g.json", cores, {"x": {"cpu0": 4000, "cpu1": 9000}})
    path = workload(tmp_path, "pool: {cpu: 3}", first)
    said = refused(capsys, "simulate", str(path))
    assert (
        "x costs 4000 and 9000 us on processors of type cpu, task graph, the graph has no" in said
    )
