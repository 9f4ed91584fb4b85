"""Every shipped recipe is read, and takes two steps on a small folder of images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from nnstretch.capture import load_model
from nnstretch.cli import main as command
from nnstretch.files.package_data import package_data
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import write_plan
from nnstretch.train import load_recipe, save_weights
from nnstretch.train.checkpoints import SafeCheckpoint

RECIPES = sorted(path.stem for path in package_data("recipes").glob("*.yaml"))
SMALL = [
    "--data.batch_images",
    "4",
    "--data.workers",
    "0",
    "--trainer.max_epochs",
    "1",
    "--trainer.devices",
    "1",
    "--trainer.threads",
    "1",
]
SMALL += ["--trainer.precise_norm_images", "8"]
PUBLISHED = {
    "imagenet_resnet34": ("torchvision:resnet34", 0.2, 256, 5e-5, 0.0, 224, 256),
    "imagenet_resnet50": ("torchvision:resnet50", 0.2, 256, 5e-5, 0.0, 224, 256),
    "imagenet_regnetx_1600mf": ("torchvision:regnet_x_1_6gf", 0.8, 1024, 5e-5, 0.05, 224, 256),
    "imagenet_regnetx_4000mf": ("timm:regnetx_040", 0.8, 1024, 5e-5, 0.05, 224, 256),
    "imagenet_efficientnet_lite4": (
        "timm:efficientnet_lite4?act_layer=relu",
        0.1,
        64,
        1e-5,
        0.0,
        300,
        342,
    ),
    "imagenet_efficientnet_b5": (
        "torchvision:efficientnet_b5?dropout=0&stochastic_depth_prob=0",
        0.1,
        64,
        1e-5,
        0.0,
        456,
        522,
    ),
}
"""model, learning rate, images in a batch, weight decay, warm-up as a share, side in training, side
before the middle is cut out.
"""
MOST_PARAMETERS = 15_000_000
"""Of networks that are trained here; states of larger ones are mostly written."""
NETWORK = """
from torch import nn

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x):
        return x + self.norm(self.conv(x))

def make(num_classes=2):
    stem = [nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*stem, Residual(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, num_classes))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train/ and val/ of two classes, four photographs each, of several sizes."""
    root = tmp_path_factory.mktemp("images")
    generator = torch.Generator().manual_seed(0)
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            (root / part / name).mkdir(parents=True)
            for number in range(4):
                pixels = torch.randint(
                    0, 256, (40 + 8 * number, 48, 3), dtype=torch.uint8, generator=generator
                )
                Image.fromarray(pixels.numpy()).save(root / part / name / f"{number}.jpg")
    return root


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_hyper_parameters(name: str) -> None:
    recipe = load_recipe(name, ["data.root=somewhere"])
    found = (
        recipe.model,
        recipe.optimizer.lr,
        recipe.data.batch_images,
        recipe.optimizer.weight_decay,
        recipe.optimizer.warmup,
    )
    assert (*found, recipe.data.image_px, recipe.data.val_resize_px) == PUBLISHED[name]
    assert (
        recipe.seed,
        recipe.trainer.max_epochs,
        recipe.optimizer.momentum,
        recipe.loss.label_smoothing,
    ) == (1, 100, 0.9, 0.0)
    assert (recipe.average.every_steps, recipe.start, recipe.branched.inherit) == (32, "he", "none")
    assert 1 - recipe.average.decay == pytest.approx(1e-5 * recipe.data.batch_images / 100 * 32)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RECIPES if name != "imagenet_distill"])
def test_a_recipe_takes_two_steps(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = load_recipe(name, ["data.root=somewhere"])
    words = ["train", name, *SMALL, "--out", str(tmp_path / "out"), "--json"]
    if recipe.data.name in ("folder", "cifar10"):
        network, _, options = recipe.model.partition("?")
        options = "&".join(
            [
                *(
                    option
                    for option in options.split("&")
                    if option and "num_classes" not in option
                ),
                "num_classes=2",
            ]
        )
        words += ["--data.name", "folder", "--data.root", str(folder)]
        if parameters_of(recipe.model) <= MOST_PARAMETERS:
            words += ["--model", f"{network}?{options}"]
        else:
            words += ["--model", write_network(tmp_path)]
        words += ["--data.image_px", "64", "--data.val_px", "64", "--data.val_resize_px", "72"]
    else:
        words += [
            "--data.held_out",
            "0.9",
            "--data.images_per_class",
            "2",
            "--data.image_px",
            "32",
        ]
        words[words.index("--data.batch_images") + 1] = "60"
    assert command(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epochs"] == 1
    assert (
        SafeCheckpoint().load_checkpoint(tmp_path / "out" / "resume.safetensors")["global_step"]
        >= 2
    )
    assert found["history"][0]["train_loss"] > 0
    kept = load_recipe(tmp_path / "out" / "recipe.yaml")
    assert (kept.optimizer, kept.augment, kept.loss) == (
        recipe.optimizer,
        recipe.augment,
        recipe.loss,
    )


def parameters_of(model: str) -> int:
    return sum(parameter.numel() for parameter in load_model(model).parameters())


def write_network(path: Path) -> str:
    """A small network and a branched plan of it, plan.yaml."""
    (path / "net.py").write_text(NETWORK)
    model = f"{path / 'net.py'}:make"
    halves = (Branch("cpu", width=4), Branch("dsp", width=4))
    plan = Plan(
        model,
        (1, 3, 32, 32),
        (
            Segment("input", "2", (Branch("cpu"),)),
            Segment("2", "5", halves),
            Segment("5", "output", (Branch("cpu"),)),
        ),
    )
    write_plan(path / "plan.yaml", plan)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["imagenet_resnet50", "imagenet_a3"])
def test_a_recipe_from_scratch_takes_two_steps_with_a_plan(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_network(tmp_path)
    words = [
        "train",
        name,
        *SMALL,
        "--data.root",
        str(folder),
        "--data.image_px",
        "32",
        "--data.val_px",
        "32",
        "--data.val_resize_px",
        "36",
    ]
    assert (
        command(
            [
                *words,
                "--plan",
                str(tmp_path / "plan.yaml"),
                "--out",
                str(tmp_path / "out"),
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["epochs"] == 1
    assert (
        SafeCheckpoint().load_checkpoint(tmp_path / "out" / "resume.safetensors")["global_step"]
        == 2
    )


def test_the_distillation_recipe_takes_two_steps_with_plan_and_teacher(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_network(tmp_path)
    save_weights(load_model(model), tmp_path / "original.safetensors")
    words = [
        "train",
        "imagenet_distill",
        *SMALL,
        "--data.root",
        str(folder),
        "--data.image_px",
        "32",
        "--data.val_resize_px",
        "36",
    ]
    words += [
        "--branched.calibration_images",
        "8",
        "--plan",
        str(tmp_path / "plan.yaml"),
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    assert command([*words, "--weights", str(tmp_path / "original.safetensors")]) == 0
    assert json.loads(capsys.readouterr().out)["epochs"] == 1
    words[words.index("--out") + 1] = str(tmp_path / "untaught")
    assert command(words) == 1
    assert "no teacher, give --weights of the original" in capsys.readouterr().err
