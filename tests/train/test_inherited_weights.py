"""Networks and teachers that bring weights of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.trainings import (
    FACTORY,
    SMALL,
    branched_plan,
    net,
    same_weights,
    write,
)

from nnstretch.bundle.image_task import ImageTask
from nnstretch.capture import load_model
from nnstretch.cli import main as command
from nnstretch.cli.train import networks as train_verb
from nnstretch.errors import BadInput
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import write_plan
from nnstretch.stretch.weights.weights_file import save_weights
from nnstretch.train import load_recipe
from nnstretch.train.branched_start import has_pretrained_classifier, has_pretrained_weights
from nnstretch.train.data.dataset import IMAGENET_MEAN, IMAGENET_STD
from nnstretch.train.recipe import (
    BranchedSettings,
    LossSettings,
    Recipe,
)

RESIDUAL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
    def forward(self, x):
        return torch.relu(x + self.body(x))

def make():
    torch.manual_seed(5)
    stem = [nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), Block()]
    return nn.Sequential(*stem, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10))
"""
QUICK = ["--data.image_px", "16", "--trainer.max_epochs", "1", "--trainer.threads", "1", "--json"]


@pytest.mark.parametrize(
    ("model", "brings"),
    [
        ("torchvision:resnet18", False),
        ("torchvision:resnet18?weights=DEFAULT", True),
        ("torchvision:resnet18?num_classes=4&weights=None", False),
        ("timm:resnet18?pretrained=true", True),
        ("timm:resnet18?pretrained=False", False),
        ("timm:resnet18?checkpoint_path=mine.safetensors", True),
        ("net.onnx", True),
        ("net.pt2", True),
        ("net.onnx?input=1,3,8,8#head/scores", True),
        ("torchvision:resnet18?weights=None#0", False),
        ("net.py:make?weights=", False),
    ],
)
def test_a_model_brings_weights_by_its_own_word(model: str, brings: bool) -> None:
    assert has_pretrained_weights(model) == brings
    if brings:
        with pytest.raises(BadInput, match="brings its own weights, which would be lost; take own"):
            train_verb.started_or_loaded(Recipe(model=model, start="he"), None)


def test_a_head_of_another_size_is_nobodys_teacher(tmp_path: Path) -> None:
    """timm draws it anew."""
    assert has_pretrained_classifier("timm:resnet18?pretrained=true")
    assert not has_pretrained_classifier("timm:resnet18?pretrained=true&num_classes=10")
    assert not has_pretrained_classifier("timm:resnet18")


def test_a_teacher_of_other_classes_teaches_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "net.py", FACTORY)
    teacher = tmp_path / "teacher.safetensors"
    task = ImageTask(tuple("abcdefghij"), IMAGENET_MEAN, IMAGENET_STD)
    save_weights(load_model(f"{tmp_path / 'net.py'}:make"), teacher, task)
    words = ["--model", f"{tmp_path / 'net.py'}:make", "--loss.distill", "0.5", *QUICK]
    out = tmp_path / "trained"
    assert command(["train", "digits", *words, "--teacher", str(teacher), "--out", str(out)]) == 1
    said = capsys.readouterr().err
    assert (
        "the teacher was trained for other classes than the data set has, class a is gone" in said
    )
    assert not out.exists()


def test_a_factory_that_brings_weights_is_not_drawn_over_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        tmp_path / "net.py",
        FACTORY
        + "\ndef trained():\n    import torch\n    torch.manual_seed(5)\n    return make()\n",
    )
    train_verb.started_or_loaded(Recipe(model=f"{tmp_path / 'net.py'}:make", start="he"), None)
    assert capsys.readouterr().err == ""
    model = f"{tmp_path / 'net.py'}:trained"
    kept = train_verb.started_or_loaded(Recipe(model=model), None)
    drawn = train_verb.started_or_loaded(Recipe(model=model, start="he"), None)
    assert (
        capsys.readouterr().err
        == f"nnstretch: start he draws over 3 kernels that {model} brings, start own keeps them\n"
    )
    assert same_weights(kept, load_model(model))
    assert not same_weights(kept, drawn)


def test_an_original_that_comes_trained_teaches(tmp_path: Path) -> None:
    original, model = net(seed=3).eval(), str(tmp_path / "net.pt2")
    torch.export.save(torch.export.export(original, (torch.zeros(1, 3, 16, 16),)), model)
    before, met, after = branched_plan(tmp_path).segments
    segments = (
        replace(before, end="relu"),
        replace(met, start="relu", end="relu_1"),
        replace(after, start="relu_1"),
    )
    write_plan(tmp_path / "plan.yaml", Plan(model, (1, 3, 16, 16), segments))
    recipe = replace(SMALL, model=model, loss=LossSettings(distill=0.5))
    module, teacher = train_verb.networks(recipe, str(tmp_path / "plan.yaml"), None)
    images = torch.rand(2, 3, 16, 16)
    assert teacher is not None
    assert torch.allclose(teacher.eval()(images), original(images), atol=1e-5)
    assert all(
        mine is not theirs for mine in module.parameters() for theirs in teacher.parameters()
    )


@pytest.mark.slow
def test_a_resumed_training_does_not_rescale_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(tmp_path / "plan.yaml", branched_plan(tmp_path))
    words = [
        "train",
        "digits",
        *QUICK,
        "--plan",
        str(tmp_path / "plan.yaml"),
        "--out",
        str(tmp_path / "out"),
    ]
    words += ["--branched.inherit", "rescaled", "--branched.calibration_images", "32"]
    assert command(words) == 0
    monkeypatch.setattr(
        "nnstretch.stretch.weights.reconstruction.reconstruct",
        lambda *_: pytest.fail("rescaled again"),
    )
    words[words.index("--trainer.max_epochs") + 1] = "2"
    assert command([*words, "--resume"]) == 0
    assert load_recipe(tmp_path / "out" / "recipe.yaml").branched == BranchedSettings(
        inherit="rescaled", calibration_images=32
    )


@pytest.mark.slow
@pytest.mark.parametrize("inherit", ["weights", "rescaled", "none"])
@pytest.mark.parametrize("start", ["he", "zero_residual"])
def test_a_resumed_training_compares_features_with_the_same_channels(
    start: str, inherit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They follow from the weights that the original starts with, where it has no others."""
    model = f"{write(tmp_path / 'net.py', RESIDUAL)}:make"
    halves = (Branch("cpu", width=4), Branch("dsp", width=4))
    segments = (Segment("input", "2", halves), Segment("2", "output", (Branch("cpu"),)))
    write_plan(tmp_path / "plan.yaml", Plan(model, (1, 3, 16, 16), segments))
    save_weights(load_model(model), tmp_path / "teacher.safetensors")
    words = ["train", "digits", *QUICK, "--start", start, "--loss.features", "1"]
    words += ["--branched.inherit", inherit, "--branched.calibration_images", "32"]
    for option in ("plan.yaml", "teacher.safetensors"):
        words += [f"--{option.partition('.')[0]}", str(tmp_path / option)]
    words += ["--out", str(tmp_path / "out")]
    assert command(words) == 0
    capsys.readouterr()
    words[words.index("--trainer.max_epochs") + 1] = "2"
    status, said = command([*words, "--resume"]), capsys.readouterr().err
    assert status == 0, said
    assert "draws over" not in said, "the first run has said it"


@pytest.mark.slow
def test_a_training_that_began_with_weights_goes_on_without_them(tmp_path: Path) -> None:
    """Whatever start its recipe names: none was drawn."""
    model = f"{write(tmp_path / 'net.py', FACTORY)}:make"
    save_weights(load_model(model), tmp_path / "kept.safetensors")
    recipe, out = write(tmp_path / "recipe.yaml", "start: zero_residual\n"), tmp_path / "out"
    words = ["train", str(recipe), "--model", model, "--data.name", "digits", "--out", str(out)]
    words += QUICK
    assert command([*words, "--weights", str(tmp_path / "kept.safetensors")]) == 0
    words[words.index("--trainer.max_epochs") + 1] = "2"
    assert command([*words, "--resume"]) == 0
