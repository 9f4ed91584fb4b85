"""What a factory draws and no weights file keeps is the same wherever its weights are loaded."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from support.capacity_study import wanted_of
from support.trainings import SMALL, write
from torch import nn

from nnstretch.capture import load_model
from nnstretch.capture.rebuild_module import build
from nnstretch.cli import main as command
from nnstretch.cli.loaded_model import load_model_argument
from nnstretch.cli.partition.partition import load as load_partitioned
from nnstretch.cli.quantize import load_trained
from nnstretch.cli.train.networks import networks
from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import lower, single_processor_plan, write_plan
from nnstretch.stretch.weights.weights_file import (
    load_weights,
    pack_tensors,
    read_tensors,
    save_weights,
    seed_of_weights,
    write_tensors,
)
from nnstretch.study.capacity.experiment import capture_original
from nnstretch.train.recipe import LossSettings, Recipe

FACTORY = """
import torch
from torch import nn

class Projected(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.mix = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(16, 10)
        self.register_buffer("projection", torch.randn(8, 16), persistent=False)

    def forward(self, x):
        x = self.mix(self.stem(x).relu()).relu().mean((2, 3))
        return self.head(torch.cos(x @ self.projection))

def make():
    return Projected()
"""
SEED = 5
IMAGES = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
Loader = Callable[[str, str, Path], nn.Module]


def recipe_of(model: str) -> Recipe:
    return replace(SMALL, model=model)


def as_teacher(model: str, weights: str, folder: Path) -> nn.Module:
    recipe = replace(recipe_of(model), loss=LossSettings(distill=0.5))
    module, teacher = networks(recipe, None, None, weights)
    assert teacher is not None
    assert not same_scores(module, teacher)
    return teacher


def in_a_study(model: str, weights: str, folder: Path) -> nn.Module:
    request = wanted_of(model, folder / "study", weights=Path(weights))
    captured = capture_original(request)
    return build(captured.graph, captured.weights)


def exported(model: str, weights: str, folder: Path) -> nn.Module:
    subject = load_model_argument(model, weights=weights)
    plan = single_processor_plan(subject.graph, subject.graph.name, "cpu")
    return subject.build_stretched(lower(subject.analysis, plan), weights)


def partitioned(model: str, weights: str, folder: Path) -> nn.Module:
    args = Namespace(model=model, weights=weights, input=(), outputs=())
    return load_partitioned(args)[0]


LOADERS: dict[str, Loader] = {
    "quantize": lambda model, weights, _: load_trained(recipe_of(model), None, model, weights),
    "train": lambda model, weights, _: networks(recipe_of(model), None, weights)[0],
    "teacher": as_teacher,
    "export": exported,
    "partition": partitioned,
    "study capacity": in_a_study,
}

SLOW = ("export", "study capacity")


def same_scores(first: nn.Module, second: nn.Module) -> bool:
    with torch.no_grad():
        return torch.allclose(first.eval()(IMAGES), second.eval()(IMAGES), atol=1e-5)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return f"{write(tmp_path / 'net.py', FACTORY)}:make"


def save_trained(model: str, path: Path, seed: int = SEED) -> nn.Module:
    """Weights that no seed draws, beside constants that one does."""
    network = load_model(model, seed)
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(1.5)
    save_weights(network, path)
    return network


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in LOADERS],
)
def test_a_loader_of_weights_builds_the_network_that_they_were_trained_in(
    name: str, model: str, tmp_path: Path
) -> None:
    weights = tmp_path / "w.safetensors"
    trained = save_trained(model, weights)
    assert same_scores(LOADERS[name](model, str(weights), tmp_path), trained)


def branched_plan(model: str) -> Plan:
    halves = (Branch("cpu", width=4), Branch("dsp", width=4))
    segments = (Segment("input", "relu_1", halves), Segment("relu_1", "output", (Branch("cpu"),)))
    return Plan(model, (1, 3, 16, 16), segments)


def projection_of(network: nn.Module) -> torch.Tensor:
    buffers = {name.rpartition(".")[2]: buffer for name, buffer in network.named_buffers()}
    return buffers["projection"]


@pytest.mark.slow
@pytest.mark.parametrize("inherit", ["weights", "none"])
def test_a_branched_network_and_its_teacher_have_the_constants_of_the_original(
    model: str, inherit: str, tmp_path: Path
) -> None:
    weights, plan = tmp_path / "w.safetensors", tmp_path / "plan.yaml"
    trained = save_trained(model, weights)
    write_plan(plan, branched_plan(model))
    recipe = replace(
        recipe_of(model),
        loss=LossSettings(distill=0.5),
        branched=replace(SMALL.branched, inherit=inherit),
    )
    module, teacher = networks(recipe, str(plan), str(weights))
    assert teacher is not None
    assert same_scores(teacher, trained)
    assert torch.equal(projection_of(module), trained.projection)
    save_weights(module, tmp_path / "branched.safetensors")
    assert seed_of_weights(tmp_path / "branched.safetensors") == SEED
    again, taught_by = networks(
        recipe, str(plan), str(tmp_path / "branched.safetensors"), str(weights)
    )
    assert taught_by is not None
    assert same_scores(again, module)
    assert same_scores(taught_by, trained)


def test_a_file_that_does_not_say_its_seed_loads_as_it_did(model: str, tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    trained = load_model(model)
    write_tensors(trained.state_dict(), weights)
    assert same_scores(LOADERS["quantize"](model, str(weights), tmp_path), trained)
    assert seed_of_weights(weights, 7) == 7
    assert seed_of_weights(None, 3) == 3


def test_a_network_of_no_factory_names_no_seed(tmp_path: Path) -> None:
    save_weights(nn.Linear(2, 2), tmp_path / "w.safetensors")
    with safe_open(tmp_path / "w.safetensors", framework="pt") as file:
        assert not file.metadata()


@pytest.mark.parametrize("text", ["", "five", "1.5", "٣", "9" * 20, "9" * 5000])
def test_a_header_whose_seed_is_none_is_refused(text: str, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "w.safetensors", {"built_by_seed": text})
    with pytest.raises(BrokenFile, match=r"weights .*w\.safetensors, built_by_seed is .* a seed"):
        seed_of_weights(tmp_path / "w.safetensors")


def test_a_missing_teacher_is_refused_before_anything_is_inherited(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(tmp_path / "plan.yaml", branched_plan(model))
    monkeypatch.setattr(
        "nnstretch.train.branched_start.branched_network",
        lambda *_: pytest.fail("the teacher is not there"),
    )
    recipe = replace(recipe_of(model), loss=LossSettings(distill=0.5))
    absent = tmp_path / "absent.safetensors"
    with pytest.raises(UnknownName, match=r"absent\.safetensors"):
        networks(recipe, str(tmp_path / "plan.yaml"), None, str(absent))
    save_weights(nn.Linear(2, 2), absent)
    with pytest.raises(BadInput, match=r"absent\.safetensors do not fit the network"):
        networks(recipe, str(tmp_path / "plan.yaml"), None, str(absent))


@pytest.mark.slow
def test_a_training_says_in_its_weights_by_which_seed_its_network_was_built(
    model: str, tmp_path: Path
) -> None:
    words = ["train", "digits", "--model", model, "--data.image_px", "16", "--json"]
    words += ["--trainer.max_epochs", "1", "--trainer.threads", "1"]
    assert command([*words, "--seed", "3", "--out", str(tmp_path / "a")]) == 0
    weights = tmp_path / "a" / "weights.safetensors"
    later = [*words, "--average.decay", "0.9", "--weights", str(weights)]
    assert command([*later, "--seed", "4", "--out", str(tmp_path / "b")]) == 0
    for folder in ("a", "b"):
        for file in ("weights.safetensors", "best.safetensors"):
            assert seed_of_weights(tmp_path / folder / file) == 3
    network = load_model(model, 3)
    load_weights(network, weights)
    assert same_scores(LOADERS["quantize"](model, str(weights), tmp_path), network)


def test_equal_weights_are_equal_files(tmp_path: Path) -> None:
    """Whatever the order in which texts of a header come."""
    texts = {f"text {n}": 'ä\n"' * n for n in range(8)}
    tensors = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}
    files = {pack_tensors(tensors, dict(sorted(texts.items(), reverse=n % 2))) for n in range(6)}
    assert len(files) == 1
    path = tmp_path / "w.safetensors"
    path.write_bytes(files.pop())
    read, read_texts = read_tensors(path)
    assert read_texts == texts
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
