"""`nnstretch profile` up to the first measurement: what `--for` names, and what the budget counts."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import nnstretch.profile
from nnstretch.cli import main
from nnstretch.cli.profile import target_graphs
from nnstretch.errors import BadInput, NnstretchError, UnknownName

PLAN = """format: 1
model: net.py:make
input: [1, 3, 16, 16]
segments:
- {end: '1', processor: cpu}
- end: '3'
  branches:
  - {processor: cpu, width: 8}
  - {processor: dsp, width: 0.5x}
- {end: output, processor: cpu}
"""
FACTORY = """
from torch import nn

def make():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 60),
    )
"""


@pytest.fixture(autouse=True)
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(FACTORY)
    Path("plan.yaml").write_text(PLAN)
    weight = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "k")
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"], "relu"),
    ]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size, "h", "w"])]
        for name, size in (("x", 3), ("y", 4))
    ]
    graph = helper.make_graph(nodes, "open", *ends, [weight])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), "net@1.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), "net.onnx")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    wanted: dict[str, Any] = {}

    def profile(out: str, **how: Any) -> None:
        wanted.update(how, out=out)
        raise BadInput("asked")

    monkeypatch.setattr(nnstretch.profile, "profile", profile)
    return wanted


@pytest.mark.parametrize("text", ["net.onnx@1,3,24,40", "net.onnx@x=1,3,24,40"])
def test_a_shape_closes_the_sizes_that_a_network_leaves_open(text: str) -> None:
    [graph] = target_graphs(text)
    assert graph.inputs[0].spec.shape == (1, 3, 24, 40)
    assert sum(node.macs for node in graph.nodes) == 24 * 40 * 4 * 27


def test_a_file_may_have_an_at_in_its_name() -> None:
    [graph] = target_graphs("net@1.onnx@1,3,8,8")
    assert graph.inputs[0].spec.shape == (1, 3, 8, 8)
    with pytest.raises(NnstretchError, match="h"):
        target_graphs("net@1.onnx")


def test_of_a_plan_its_branches_are_measured() -> None:
    graphs = target_graphs("plan.yaml")
    assert len(graphs) == 4
    widths = sorted(
        node.outputs[0].shape[1] for g in graphs for node in g.nodes if node.op == "conv2d"
    )
    assert widths == [8, 8, 16]


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("net.onnx", NnstretchError, "--input"),
        ("net.onnx@1,3,nan,8", BadInput, "nan"),
        ("net.onnx@1,3,0,8", BadInput, "0"),
        ("absent.onnx@1,3,8,8", UnknownName, "absent.onnx"),
        ("net.py:make@1,4,16,16", NnstretchError, "4"),
        ("@1,3,8,8", NnstretchError, ""),
        ("", NnstretchError, ""),
    ],
)
def test_what_is_no_network_is_refused_before_anything_is_measured(
    text: str,
    kind: type[NnstretchError],
    says: str,
    asked: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(kind, match=says):
        target_graphs(text)
    assert main(["profile", "--out", "chip", "--for", text]) == 1
    said = capsys.readouterr().err
    assert said.startswith("nnstretch: ")
    assert said.count("\n") == 1
    assert not asked
    assert not Path("chip").exists()


def test_several_networks_are_asked_for_and_their_capture_is_inside_the_budget(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    before_s = perf_counter()
    words = ["--for", "net.onnx@1,3,8,8", "--for", "net.py:make@1,3,16,16", "--budget-s", "7"]
    assert main(["profile", "--out", "chip", *words]) == 1
    assert "asked" in capsys.readouterr().err
    assert [len(graph.nodes) > 1 for graph in asked["targets"]] == [True, True]
    assert asked["budget_s"] == 7
    captured_s = perf_counter() - before_s
    assert asked["started_s"] - before_s < 0.1 * captured_s


def test_an_unknown_backend_is_refused_with_networks(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--backend", "nowhere", "--for", "net.py:make@1,3,16,16", "--json"]
    assert main(["profile", "--out", "chip", *words]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert not Path("chip").exists()


def test_a_chip_that_no_profile_measured_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chip = tmp_path / "chip"
    chip.mkdir()
    (chip / "soc.json").write_text("{}")
    for flags in ([], ["--fresh"]):
        assert main(["profile", "--out", str(chip), "--budget-s", "5", *flags]) == 1
        assert "its soc.json is of no profile" in capsys.readouterr().err.replace("\n", " ")
    assert [path.name for path in chip.iterdir()] == ["soc.json"]
