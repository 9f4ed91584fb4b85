"""The verb `partition`: networks are split, exported, run and right, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.pipeline_graphs import residual

from nnstretch.bundle.bundle import read_bundle
from nnstretch.bundle.pipeline_view import stage_inputs
from nnstretch.cli import run_verb
from nnstretch.partition.partition import Partition, PartitionRequest, partitions
from nnstretch.predict import load_soc
from nnstretch.run import Session
from nnstretch.run.pipelines.prediction import predicted_bottleneck_us
from nnstretch.soc import Soc

GRAPH = residual()
MI9 = load_soc("mi9")


def one(stages: int | None, *processors: str, soc: Soc = MI9, **wish: Any) -> Partition:
    return partitions(GRAPH, soc, PartitionRequest(stages, processors, **wish))[0]


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("partition")
    source = (Path(__file__).parents[1] / "support" / "pipeline_nets.py").read_text()
    (folder / "net.py").write_text(source)
    return folder


def verb(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run_verb("partition", [*words, "--soc", "mi9", "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_a_detector_with_two_outputs_is_split_exported_and_runs_as_the_network(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = net / "det.nns"
    words = [
        f"{net}/net.py:Detector",
        "--stages",
        "2",
        "--processors",
        "cpu,dsp",
        "--out",
        str(out),
        "--after",
        "boxes:draw",
    ]
    result = verb(capsys, *words)
    assert [
        set(stage) >= {"processor", "start", "end", "latency_ms"} for stage in result["stages"]
    ] == [True, True]
    assert {stage["processor"] for stage in result["stages"]} == {"cpu", "dsp"}
    assert result["bottleneck_ms"] == max(stage["period_ms"] for stage in result["stages"])
    assert result["balance"] == pytest.approx(
        sum(s["period_ms"] for s in result["stages"]) / 2 / result["bottleneck_ms"]
    )
    assert (result["stages"][0]["start"], result["stages"][1]["end"]) == ("input", "output")
    bundle = read_bundle(out)
    pipeline = bundle.manifest.pipeline
    assert pipeline is not None
    assert [stage.name for stage in pipeline.stages] == ["s0", "s1", "after"]
    assert stage_inputs(pipeline.stages[2], bundle.manifest) == ("cat", "cat_1")
    assert pipeline.groups[0].parameters, "weights can be replaced"
    from nnstretch.capture import load_model

    network, image = (
        load_model(f"{net}/net.py:Detector").eval(),
        torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(5)),
    )
    with Session(bundle) as session, torch.no_grad():
        found = session.run(image.numpy())
        assert isinstance(found, dict)
        for mine, theirs in zip(found.values(), network(image), strict=True):
            assert np.allclose(mine, theirs.numpy(), atol=1e-5)
        assert session.latency_us >= result["bottleneck_ms"] * 1000


@pytest.mark.slow
def test_the_reference_network_is_split_by_hand_and_right(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As captured, with `{add, 1}` and `{add, 4}`.

    Three stages, two inputs, a value that skips a stage.
    """
    out = net / "ref.nns"
    words = [
        "--input",
        "3,3",
        "--input",
        "3,3",
        "--split",
        "add:1,add:4",
        "--processors",
        "cpu,cpu,dsp",
        "--fallback",
        "nearest",
    ]
    result = verb(capsys, f"{net}/net.py:Reference", *words, "--out", str(out))
    ends = [
        ([one["name"] for one in s["inputs"]], [one["name"] for one in s["outputs"]])
        for s in result["stages"]
    ]
    assert ends == [
        (["d"], ["add_1", "sub"]),
        (["add_1", "e"], ["add_4"]),
        (["add_4", "sub"], ["add_5"]),
    ]
    with Session(read_bundle(out)) as session:
        for value in range(3, 8):
            array = np.full((3, 3), value, np.float32)
            assert np.array_equal(
                session.run({"d": array, "e": array}), np.full((3, 3), 7 * value + 22)
            )


def test_a_plan_becomes_stages_that_are_branched(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stem on the GPU, two branches on CPU and DSP behind it; no processor in two stages."""
    (net / "chain.py").write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Sequential(nn.Conv2d(3,"
        " 16, 3, 2, 1), nn.ReLU()), nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU()))\n"
    )
    (net / "plan.yaml").write_text(
        f"format: 1\nmodel: {net}/chain.py:make\ninput: [1, 3, 16, 16]\nsegments:\n  - {{end: '0',"
        " processor: gpu}\n  - end: output\n    branches: [{processor: cpu, width: 8},"
        " {processor: dsp, width: 8}]\n"
    )
    out = net / "plan.nns"
    result = verb(capsys, str(net / "plan.yaml"), "--stages", "2", "--out", str(out))
    assert [stage["processors"] for stage in result["stages"]] == [["gpu"], ["cpu", "dsp"]]
    assert [stage["branched"] for stage in result["stages"]] == [False, True]
    pipeline = read_bundle(out).manifest.pipeline
    assert pipeline is not None
    assert [stage.subgraphs for stage in pipeline.stages] == [
        ("s0.gpu",),
        ("s1.cpu", "s1.dsp", "s1.merge"),
    ]
    known = {processor.name: processor for processor in MI9.processors}
    assert predicted_bottleneck_us(read_bundle(out).manifest, known) == pytest.approx(
        1000 * result["bottleneck_ms"]
    )
    assert run_verb("partition", [str(net / "plan.yaml"), "--soc", "mi9", "--stages", "2"]) == 0
    assert "no grouping of the plan's segments is better" in capsys.readouterr().out
    text = (net / "plan.yaml").read_text().replace("processor: gpu", "processor: cpu")
    (net / "shared.yaml").write_text(text)
    assert run_verb("partition", [str(net / "shared.yaml"), "--soc", "mi9", "--stages", "2"]) == 1
    assert "no 2 stages of disjoint processors" in (error := capsys.readouterr().err)
    assert "its segments share cpu" in error


def test_an_idle_processor_of_a_stage_slows_nobody(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One stage holds one item: it takes what its plan does, and so does its bundle."""
    (net / "wide.py").write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Sequential(nn.Conv2d(64,"
        " 256, 3), nn.ReLU()), nn.Sequential(nn.Conv2d(256, 256, 3), nn.ReLU()))\n"
    )
    (net / "plan.yaml").write_text(
        f"format: 1\nmodel: {net}/wide.py:make\ninput: [1, 64, 32, 32]\nsegments:\n  - {{end: '0',"
        " processor: cpu}\n  - end: output\n    branches: [{processor: cpu, width: 64},"
        " {processor: dsp, width: 192}]\n"
    )
    plan, out = str(net / "plan.yaml"), net / "plan.nns"
    assert run_verb("predict", [plan, "--soc", "mi9", "--json"]) == 0
    predicted_ms = json.loads(capsys.readouterr().out)["plan_latency_ms"]
    result = verb(capsys, plan, "--out", str(out))
    assert [stage["processors"] for stage in result["stages"]] == [["cpu", "dsp"]]
    assert result["latency_ms"] == pytest.approx(predicted_ms)
    known = {processor.name: processor for processor in MI9.processors}
    assert predicted_bottleneck_us(read_bundle(out).manifest, known) == pytest.approx(
        1000 * predicted_ms
    )


REFUSED: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "split nothing": (
        lambda net: [f"{net}/net.py:Detector", "--split", "conv2d:99"],
        "unknown split point conv2d:99",
    ),
    "too many": (
        lambda net: [f"{net}/net.py:Detector", "--stages", "9"],
        "9 stages on 3 processors (cpu, gpu, dsp)",
    ),
    "zero": (lambda net: [f"{net}/net.py:Detector", "--stages", "0"], "--stages is 0"),
    "no processor": (
        lambda net: [f"{net}/net.py:Detector", "--processors", "cpu,tpu"],
        "unknown processor 'tpu'",
    ),
    "no plan": (lambda net: ["plan.yaml"], "plan.yaml"),
    "a plan's own": (
        lambda net: ["plan.yaml", "--split", "a"],
        "--split with plan.yaml, command line, a plan places its own branches",
    ),
    "code": (lambda net: [f"{net}/net.py:Detector", "--before", "rm -rf"], "--before is 'rm -rf'"),
    "no name": (lambda net: [f"{net}/net.py:Detector", "--out", "."], "--out is '.'"),
    "no folder": (
        lambda net: [f"{net}/net.py:Detector", "--out", f"{net}/none/x.nns"],
        "no folder",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_bad_command_lines_are_refused_in_one_line(
    case: str, net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, message = REFUSED[case]
    assert run_verb("partition", [*words(net), "--soc", "mi9"]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(net.glob("x.nns"))
