"""`nnstretch quantize`: accuracy before and after, what is written, and what is refused.

Real digits, a tiny network.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("litert_torch")
pytest.importorskip("ai_edge_quantizer")

from nnstretch.bundle.image_task import ImageTask
from nnstretch.capture import load_model
from nnstretch.cli import parser_of, run_verb
from nnstretch.cli import quantize as verb
from nnstretch.export.litert import convert as litert
from nnstretch.export.litert.convert import to_int8, to_litert
from nnstretch.export.litert.runner import LiteRTRunner
from nnstretch.stretch import read_plan, stretch
from nnstretch.stretch.weights.weights_file import load_weights, save_weights
from nnstretch.train.data import open_dataset, prepare_images
from nnstretch.train.recipe import DataSettings
from nnstretch.train.recipe_loader import load_recipe, recipe_yaml

DIGITS = DataSettings(name="digits", image_px=16)
NETWORK = """
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.b = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        return (x + self.b(self.a(x))).relu()


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.body = nn.Sequential(Block(16), Block(16))
        self.head = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x):
        return self.head(nn.functional.max_pool2d(self.body(self.stem(x)), 2).flatten(1))


def make():
    return Tiny()
"""
PLAN = """
format: 1
model: {model}
input: [1, 3, 16, 16]
segments:
  - {{end: stem, processor: cpu}}
  - end: body
    branches:
      - {{processor: cpu, depth: 1, width: 16}}
      - {{processor: dsp, depth: 1, width: 8}}
  - {{end: output, processor: cpu}}
"""


def learned(module: nn.Module, steps: int) -> nn.Module:
    """Enough descent that accuracy means something."""
    dataset = open_dataset(DIGITS)
    images, labels = prepare_images(dataset, dataset.train, range(600), DIGITS)
    optimizer = torch.optim.Adam(module.parameters(), 0.01)
    module.train()
    for step in range(steps):
        part = slice(100 * (step % 6), 100 * (step % 6) + 100)
        optimizer.zero_grad()
        functional.cross_entropy(module(images[part]), labels[part]).backward()
        optimizer.step()
    return module.eval()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe, a plan, and trained weights of the original and the branched network."""
    folder = tmp_path_factory.mktemp("quantize")
    model = f"{folder}/tiny.py:make"
    (folder / "tiny.py").write_text(NETWORK)
    (folder / "plan.yaml").write_text(PLAN.format(model=model))
    (folder / "recipe.yaml").write_text(f"model: {model}\ndata: {{name: digits, image_px: 16}}\n")
    torch.manual_seed(0)
    original = learned(load_model(model), 60)
    save_weights(original, folder / "original.safetensors")
    save_weights(
        learned(stretch(original, read_plan(folder / "plan.yaml")), 30),
        folder / "branched.safetensors",
    )
    return folder


def quantize(place: Path, weights: str, out: Path, *more: str) -> int:
    return run_verb(
        "quantize",
        [str(place / "recipe.yaml"), "--weights", str(place / weights), "--out", str(out), *more],
    )


def test_images_of_other_classes_than_the_weights_are_refused(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = ImageTask(tuple("abcdefghij"), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    save_weights(load_model(f"{place}/tiny.py:make"), tmp_path / "others.safetensors", others)
    assert quantize(place, str(tmp_path / "others.safetensors"), tmp_path / "net.tflite") == 1
    assert "others.safetensors was trained for other classes" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.tflite"))


def test_a_recipe_or_plan_whose_network_is_not_in_this_folder_is_named(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, plan = tmp_path / "recipe.yaml", tmp_path / "plan.yaml"
    recipe.write_text("model: absent.py:make\ndata: {name: digits, image_px: 16}\n")
    plan.write_text(PLAN.format(model="absent.py:make"))
    words = ["--weights", str(place / "original.safetensors"), "--out", str(tmp_path / "a.tflite")]
    for more, holder in (((), f"recipe {recipe}"), (("--plan", str(plan)), f"plan {plan}")):
        assert run_verb("quantize", [str(recipe), *words, *more]) == 1
        assert f"no model file absent.py, {holder}, the file " in capsys.readouterr().err


@pytest.fixture(scope="module")
def branched(place: Path) -> dict[str, Any]:
    """What the verb returns for the branched network; its files are in the folder `done`."""
    (place / "done").mkdir()
    options = (
        "--plan",
        str(place / "plan.yaml"),
        "--weights",
        str(place / "branched.safetensors"),
        "--calibration",
        "50",
    )
    argv = [str(place / "recipe.yaml"), *options, "--out", str(place / "done" / "net.tflite")]
    return verb.main(parser_of("quantize").parse_args(argv))


@pytest.mark.slow
def test_a_branched_network_becomes_int8_and_keeps_its_accuracy(branched: dict[str, Any]) -> None:
    assert branched["images"] == len(open_dataset(DIGITS).held)
    assert branched["calibration_images"] == 50
    assert branched["torch_accuracy"] == branched["float_accuracy"] > 0.85
    assert branched["int8_accuracy"] > branched["float_accuracy"] - 0.01
    assert branched["agreement"] > 0.97
    assert 0 < branched["max_abs_error"] < 1e-3
    assert branched["float_operators"] == []


def test_the_files_are_there_and_are_as_good_as_reported(
    branched: dict[str, Any], place: Path
) -> None:
    small, plain = (place / "done" / name for name in ("net.tflite", "net.float.tflite"))
    assert (branched["file"], branched["float_file"]) == (str(small), str(plain))
    assert (branched["size_bytes"], branched["float_size_bytes"]) == (
        small.stat().st_size,
        plain.stat().st_size,
    )
    assert accuracy(small.read_bytes()) == pytest.approx(branched["int8_accuracy"])
    assert accuracy(plain.read_bytes()) == pytest.approx(branched["float_accuracy"])
    assert set((place / "done").iterdir()) == {small, plain}


def accuracy(model: bytes) -> float:
    """Of a file, by its own interpreter."""
    dataset = open_dataset(DIGITS)
    images, labels = prepare_images(dataset, dataset.held, range(len(dataset.held)), DIGITS)
    runner = LiteRTRunner(model, "net")
    return float(
        np.mean(
            [
                runner.run(image.numpy()).argmax() == int(label)
                for image, label in zip(images.split(1), labels, strict=True)
            ]
        )
    )


@pytest.fixture(scope="module")
def original(place: Path) -> bytes:
    """Its float32 file, converted once."""
    module = load_model(f"{place}/tiny.py:make")
    load_weights(module, place / "original.safetensors")
    return to_litert(module, (torch.zeros(1, 3, 16, 16),), "tiny")


def test_the_original_needs_no_plan_and_its_file_is_the_same_twice(
    place: Path,
    original: bytes,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(litert, "to_litert", lambda *_: original)
    printed = []
    for name, more in (("a", ("--json",)), ("b", ())):
        assert (
            quantize(
                place,
                "original.safetensors",
                tmp_path / f"{name}.tflite",
                "--images",
                "40",
                "--calibration",
                "16",
                *more,
            )
            == 0
        )
        printed.append(capfd.readouterr().out)
    assert json.loads(printed[0])["images"] == 40
    assert "40 held-out images" in " ".join(printed[1].split())
    assert (tmp_path / "a.tflite").read_bytes() == (tmp_path / "b.tflite").read_bytes()


@pytest.mark.slow
def test_images_drawn_otherwise_than_by_the_training_beside_the_weights_are_told(
    place: Path,
    original: bytes,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(litert, "to_litert", lambda *_: original)
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes((place / "original.safetensors").read_bytes())
    few = ("--images", "40", "--calibration", "16", "--max-drop", "100")
    said = []
    for recipe in (None, load_recipe(place / "recipe.yaml")):
        if recipe is not None:
            (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe))
        for seed in ("0", "1"):
            more = (*few, "--data.split_seed", seed)
            assert quantize(place, str(weights), tmp_path / "net.tflite", *more) == 0
            said.append([line for line in capfd.readouterr().err.splitlines() if "note" in line])
    note = f"nnstretch: note: data.split_seed is 1 and was 0 in {tmp_path}/recipe.yaml, held-out "
    assert said[:3] == [[], [], []]
    assert [line.startswith(note) for line in said[3]] == [True]


def test_int8_that_loses_accuracy_is_refused_and_nothing_is_written(
    place: Path,
    original: bytes,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(litert, "to_litert", lambda *_: original)
    dark = [(torch.full((1, 3, 16, 16), 0.01),)]
    monkeypatch.setattr(litert, "to_int8", lambda *_: to_int8(original, dark, "tiny"))
    check_refused(place, tmp_path, capfd, " points of accuracy, 40 held-out images (")


def test_a_float_file_that_computes_something_else_is_refused(
    branched: dict[str, Any],
    place: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = Path(branched["float_file"]).read_bytes()
    monkeypatch.setattr(litert, "to_litert", lambda *_: wrong)
    check_refused(place, tmp_path, capfd, "differs from PyTorch by ")


def check_refused(place: Path, folder: Path, capfd: pytest.CaptureFixture[str], said: str) -> None:
    """One line, and the file that was there before is as it was."""
    (folder / "net.tflite").write_bytes(b"older")
    assert (
        quantize(
            place,
            "original.safetensors",
            folder / "net.tflite",
            "--images",
            "40",
            "--calibration",
            "4",
            "--json",
        )
        == 1
    )
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("nnstretch: ")
    assert said in err
    assert err.count("\n") == 1
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [
        ("net.tflite", b"older")
    ]


@pytest.mark.parametrize(
    ("weights", "out", "more", "said"),
    [
        ("none.safetensors", "net.tflite", (), "none.safetensors, the file does not exist"),
        ("recipe.yaml", "net.tflite", (), "recipe.yaml, not a safetensors file"),
        (
            "branched.safetensors",
            "net.tflite",
            (),
            "branched.safetensors do not fit the network, stem.0.weight is missing",
        ),
        ("original.safetensors", "net.bin", (), "name a FILE.tflite"),
        ("original.safetensors", "nowhere/net.tflite", (), "nowhere, create it first"),
        (
            "original.safetensors",
            "net.tflite",
            ("--calibration", "0"),
            "calibration images are 0, quantize, at least 1",
        ),
        ("original.safetensors", "net.tflite", ("--images", "-3"), "held-out images are -3, quant"),
        (
            "original.safetensors",
            "net.tflite",
            ("--max-drop", "nan"),
            "--max-drop is nan, command line",
        ),
        (
            "original.safetensors",
            "net.tflite",
            ("--data.image_px", "24"),
            "refuses an image of (1, 3, 24, 24)",
        ),
    ],
)
def test_what_cannot_work_is_one_line_and_leaves_nothing(
    weights: str,
    out: str,
    more: tuple[str, ...],
    said: str,
    place: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert quantize(place, weights, tmp_path / out, *more) == 1
    printed, err = capfd.readouterr()
    assert printed == ""
    assert err.startswith("nnstretch: ")
    assert said in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
