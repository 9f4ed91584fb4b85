"""Whole branches beside sums of kernels: folded norms, and what a search shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from nnstretch.accelerate.chip_graph import chip_graph
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.operator_work import operations_of
from nnstretch.accelerate.policies import ScheduleOptions, schedule_cluster
from nnstretch.accelerate.pricing.deployed_graph import deployed_graph
from nnstretch.accelerate.pricing.kernel_times import kernel_times
from nnstretch.accelerate.pricing.whole_branch import BranchScheduler
from nnstretch.capture import capture
from nnstretch.cli import main
from nnstretch.errors import BadPlan
from nnstretch.predict.described import DescribedAccelerator
from nnstretch.structure.kernel_fusion import fuse_kernels
from nnstretch.structure.slices.operator_sets import ELEMENTWISE

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


def busy_us(machine: str, layer: nn.Module, *shape: int) -> tuple[list[float], list[float]]:
    """Return what matrix and vector unit work for one layer: as priced, and as simulated."""
    described = load_accelerator(machine)
    rates = ChipRates(described, described.element_types[0])
    graph = capture(layer.eval(), torch.zeros(shape))
    chip = chip_graph(graph, rates.element_type)
    (kernel,) = fuse_kernels(graph)
    times = kernel_times(kernel, rates, chip.element_bytes)
    simulated = {"matrix": 0.0, "vector": 0.0}
    for item in schedule_cluster(chip, rates, ScheduleOptions("lb")).instructions:
        if item.engine in simulated:
            simulated[item.engine] += item.duration_us
    return [times.matrix_us.item(), times.vector_us.item()], list(simulated.values())


class Norm(nn.Module):
    """Root of the sum of squares of each row."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Compute the roots."""
        return torch.linalg.vector_norm(rows, dim=-1, keepdim=True)


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "flat window": (nn.MaxPool2d((1, 15), 1, (0, 7)), (1, 64, 14, 56)),
    "upright window": (nn.AvgPool2d((3, 1)), (1, 64, 57, 14)),
    "square window": (nn.MaxPool2d(3, 2, 1), (1, 64, 28, 28)),
    "window along a line": (nn.MaxPool1d(4), (1, 64, 64)),
    "mean along a line": (nn.AvgPool1d(16), (1, 64, 64)),
    "pool to a size": (nn.AdaptiveAvgPool2d(2), (1, 64, 14, 14)),
    "sum of squares": (Norm(), (1, 50, 64)),
    "two inputs a group": (nn.Conv2d(64, 32, 3, padding=1, groups=32), (1, 64, 14, 14)),
    "depthwise along a line": (nn.Conv1d(64, 64, 5, padding=2, groups=64), (1, 64, 96)),
    "flat depthwise": (nn.Conv2d(64, 64, (1, 7), groups=64), (1, 64, 14, 14)),
    "flat": (nn.Conv2d(32, 64, (1, 3)), (1, 32, 14, 14)),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("machine", ["nvdla-512", "ethos-u55-128"])
def test_units_of_one_core_work_as_long_as_in_the_simulator(machine: str, layer: str) -> None:
    module, shape = LAYERS[layer]
    priced, simulated = busy_us(machine, module, *shape)
    assert priced == pytest.approx(simulated, rel=1e-9)
    assert sum(priced) > 0


ON_EIGHT_CORES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "rows": (nn.Conv2d(64, 32, 3, padding=1), (1, 64, 56, 56)),
    "channels": (nn.Conv2d(512, 512, 3, padding=1), (1, 512, 7, 7)),
    "both, depthwise": (nn.Conv2d(64, 64, 7, padding=3, groups=64), (1, 64, 14, 14)),
    "a line": (nn.Conv1d(64, 64, 5, padding=2, groups=64), (1, 64, 96)),
}


@pytest.mark.parametrize("layer", ON_EIGHT_CORES)
def test_cores_share_what_the_simulator_lets_them_share(layer: str) -> None:
    module, shape = ON_EIGHT_CORES[layer]
    priced, simulated = busy_us("stcp920", module, *shape)
    assert priced == pytest.approx(simulated, rel=1e-9)


@pytest.mark.parametrize(("cin", "side", "groups"), [(64, 13, 1), (64, 14, 32), (64, 28, 8)])
def test_no_sharing_of_the_simulator_is_faster_than_the_price(
    cin: int, side: int, groups: int
) -> None:
    layer = nn.Conv2d(cin, 32, 3, padding=1, groups=groups)
    priced, simulated = busy_us("stcp920", layer, 1, cin, side, side)
    assert 0 < priced[0] <= simulated[0] * (1 + 1e-9)


def test_windows_of_many_kernels_are_their_own() -> None:
    described = load_accelerator("nvdla-512")
    predictor = DescribedAccelerator("npu", "int8", ChipRates(described, "int8"), "nvdla-512")
    pools = (nn.MaxPool2d((1, 5)), nn.MaxPool2d(5), nn.MaxPool2d((5, 2)))
    graphs = [capture(pool, torch.zeros(1, 64, 20, 20)) for pool in pools]
    kernels = [kernel for graph in graphs for kernel in fuse_kernels(graph)]
    assert len({kernel.key for kernel in kernels}) == len(pools)
    singles = [predictor.estimate(kernel).latency_us for kernel in kernels]
    assert predictor.estimate_many(kernels).latency_us.tolist() == pytest.approx(singles)


ONE_SIMPLE = """
    relu relu6 hardtanh leaky_relu prelu clamp clamp_min clamp_max neg pow add sub rsub mul maximum
    minimum where abs square floor masked_fill eq ne lt le gt ge logical_not logical_and logical_or
    clone to _to_copy type_as contiguous dropout feature_dropout alpha_dropout detach alias identity
    lift_fresh_copy
"""


def test_operators_of_exponentials_divisions_and_roots_cost_them() -> None:
    for kind in ELEMENTWISE:
        simple, special = operations_of(kind)
        if kind in ONE_SIMPLE.split():
            assert (simple, special) == (1, 0), kind
        else:
            assert special or simple > 1, kind
    for kind in ("mish", "softplus", "selu", "celu", "softsign", "sin", "cos", "elu"):
        assert operations_of(kind)[1] >= 1, kind
    assert operations_of("_softmax") == operations_of("softmax")


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
