"""Whole branches beside sums of kernels: folded norms, and what a search shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.pricing.deployed_graph import deployed_graph
from nnstretch.accelerate.pricing.whole_branch import BranchScheduler
from nnstretch.capture import capture
from nnstretch.cli import main
from nnstretch.errors import BadPlan

PHONE = Path(__file__).parents[2] / "examples" / "accelerator" / "phone"


def network() -> nn.Sequential:
    shared = nn.Conv2d(8, 8, 3, padding=1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), shared, nn.BatchNorm2d(8)
    ).eval()


def test_norms_behind_convolutions_become_their_bias() -> None:
    graph = capture(network(), torch.zeros(1, 3, 8, 8))
    folded = deployed_graph(graph)
    assert [node.kind for node in folded.nodes] == ["conv2d", "relu", "conv2d"]
    biases = [weight for weight in folded.weights if weight.spec.shape == (8,)]
    assert len(biases) == 2
    assert folded.specs()[folded.outputs[0]] == graph.specs()[graph.outputs[0]]


def test_a_norm_whose_input_is_read_twice_stays() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            features = self.conv(image)
            return features + self.norm(features)

    graph = capture(Twice().eval(), torch.zeros(1, 3, 8, 8))
    assert "batch_norm" in [node.kind for node in deployed_graph(graph).nodes]


def test_equal_branches_are_scheduled_once() -> None:
    scheduler = BranchScheduler(ChipRates(load_accelerator("nvdla-512"), "int8"))
    graph = capture(network(), torch.zeros(1, 3, 8, 8))
    assert scheduler.schedule(graph) is scheduler.schedule(graph)


def test_a_branch_that_fits_nowhere_is_refused() -> None:
    machine = load_accelerator("nvdla-512", ["local_buffer.size=0.01"])
    scheduler = BranchScheduler(ChipRates(machine, "int8"))
    with pytest.raises(BadPlan, match="does not fit even alone"):
        scheduler.schedule(capture(network(), torch.zeros(1, 3, 8, 8)))


@pytest.mark.slow
def test_predict_names_the_assumed_values_of_a_described_processor(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["predict", "torchvision:alexnet", "--soc", str(PHONE)]
    assert main([*command, "--json"]) == 0
    machines = json.loads(capsys.readouterr().out)["accelerators"]
    assert machines.keys() == {"npu"}, "a measured processor has no assumed values"
    assumed = machines["npu"]["assumed"]
    assert "vector.lanes" in assumed
    assert main([*command, "--processors", "npu"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{len(assumed)} assumed values: {', '.join(assumed)}" in shown


@pytest.mark.slow
def test_search_shows_whole_branches_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["search", "torchvision:resnet18", "--soc", str(PHONE), "--width-steps", "6"]
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    rows = result["whole_branches"]
    times_ms = [row["whole_ms"] for row in rows]
    assert times_ms == sorted(times_ms)
    assert 1 < len(rows) <= 10
    assert len(result["plans"]) == 1
    for row in rows:
        assert row["difference_ms"] == pytest.approx(row["whole_ms"] - row["kernels_ms"])
    first = next(row for row in rows if row["plan"] == 1)
    assert first["kernels_ms"] == pytest.approx(result["plans"][0]["latency_ms"])
    assert result["accelerators"]["npu"]["machine"] == "nvdla-512"
    assert "vector.lanes" in result["accelerators"]["npu"]["assumed"]


def test_whole_branches_beside_a_described_processor_have_the_nearest_prices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokens.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 4))\n"
    )
    command = ["search", f"{tmp_path}/tokens.py:make", "--input", "1,5:int64", "--soc", str(PHONE)]
    assert main([*command, "--fallback", "nearest", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["fallbacks"]["embedding"] == "add"
    assert [row for row in result["whole_branches"] if "never measured" in str(row)] == []
    assert result["whole_branches"][0]["whole_ms"] is not None
