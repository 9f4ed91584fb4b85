"""A network that inherits nothing still has the tables, masks and scales of its original."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.capacity_study import wanted_of
from support.trainings import SMALL
from torch import nn

from nnstretch.capture import load_model, trace
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import NetworkAnalysis, lower, stretch
from nnstretch.stretch.weights.branched_module import build_module
from nnstretch.study.capacity.experiment import capture_original, make_candidate_module
from nnstretch.study.capacity.plans import original_candidate
from nnstretch.train.branched_start import branched_network
from nnstretch.train.recipe import BranchedSettings

INPUT = (2, 3, 16, 16)


class Prepared(nn.Module):
    """Normalizes its images itself and adds what a table says, with batch norm behind."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]).reshape(3, 1, 1))
        self.register_buffer("std", torch.tensor([0.2, 0.3, 0.25]).reshape(3, 1, 1))
        self.register_buffer("where", torch.tensor([4, 2, 0, 1, 3, 2, 1, 4]))
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.mix, self.head = nn.Conv2d(8, 8, 1), nn.Linear(8, 4)
        self.table = nn.Parameter(torch.arange(5.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mix(torch.relu(self.norm(self.stem((x - self.mean) / self.std))))
        return self.head(x.mean((2, 3)) + self.table[self.where])


def prepared() -> nn.Module:
    """As after a training: with statistics and weights of its own."""
    torch.manual_seed(5)
    module = Prepared()
    module.norm.running_mean.fill_(0.7)
    return module.eval()


def branched() -> Plan:
    halves = (Branch("cpu", width=4), Branch("dsp", width=4))
    return Plan(
        "prepared",
        INPUT,
        (Segment("input", "mix", halves), Segment("mix", "output", (Branch("cpu"),))),
    )


def state_at(module: nn.Module, name: str) -> list[torch.Tensor]:
    return [value for key, value in module.state_dict().items() if key.endswith(name)]


def check_constants(network: nn.Module, original: nn.Module) -> None:
    for name in ("mean", "std", "where"):
        tensors = [
            t for t in state_at(network, f".{name}") if t.shape == getattr(original, name).shape
        ]
        assert tensors
        assert all(torch.equal(tensor, getattr(original, name)) for tensor in tensors)
    for statistics in state_at(network, ".running_mean"):
        assert not statistics.any()
    width = original.stem.weight.shape[1:]
    for weight in state_at(network, ".stem.weight"):
        assert weight.shape[1:] == width
        assert not any(torch.equal(row, kept) for row in weight for kept in original.stem.weight)


def test_constants_are_the_originals_and_nothing_else_is() -> None:
    original = prepared()
    check_constants(stretch(original, branched(), inherit=False), original)


class Noted(dict[str, torch.Tensor]):
    """Weights that note which of them are read."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        super().__init__(weights)
        self.read: set[str] = set()

    def get(self, name: str, default: object = None) -> torch.Tensor | None:  # type: ignore[override]
        self.read.add(name)
        return super().get(name)


def test_weights_that_training_finds_are_not_even_sliced() -> None:
    captured = trace(prepared(), torch.rand(INPUT), "prepared")
    noted = Noted(captured.weights)
    build_module(lower(captured.graph, branched()), noted, inherit=False)
    assert {"mean", "std", "where"} <= noted.read
    assert noted.read.isdisjoint({"stem.weight", "norm.running_mean", "head.weight", "table"})


@pytest.mark.parametrize("start", ["own", "he"])
def test_a_training_that_inherits_nothing_has_them(start: str) -> None:
    original = prepared()
    recipe = replace(SMALL, branched=BranchedSettings(inherit="none"), start=start)  # type: ignore[arg-type]
    check_constants(branched_network(original, branched(), recipe), original)


def test_the_original_rebuilt_with_nothing_inherited_differs_in_what_is_trained_alone() -> None:
    """With its parameters and statistics loaded it computes what it did."""
    original = prepared()
    x = torch.rand(INPUT)
    plan = Plan("prepared", INPUT, (Segment("input", "output", (Branch("cpu"),)),))
    captured = trace(original, x, "prepared")
    network = build_module(lower(captured.graph, plan), captured.weights, inherit=False).eval()
    trained = {f"segments.0.branches.0.{k}": v for k, v in original.state_dict().items()}
    for name in ("mean", "std", "where"):
        del trained[f"segments.0.branches.0.{name}"]
    network.load_state_dict(trained, strict=False)
    with torch.no_grad():
        torch.testing.assert_close(network(x), original(x))


def test_networks_of_a_capacity_study_have_them(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        Path(__file__).read_text(encoding="utf-8").replace("def prepared", "def make")
    )
    model = f"{tmp_path / 'net.py'}:make"
    captured = capture_original(wanted_of(model, tmp_path / "out"))
    one = original_candidate(NetworkAnalysis(captured.graph), model)
    check_constants(make_candidate_module(one, 0, captured, inherit=False), load_model(model))
