"""The verb `train`: it trains, resumes, begins from weights, and ends in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.trainings import write

from nnstretch.capture import load_model
from nnstretch.cli import main as command
from nnstretch.train import save_weights

FACTORY = """
from torch import nn

def make():
    stem = [nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*stem, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10))
"""
QUICK = ["--data.image_px", "16", "--trainer.max_epochs", "1", "--trainer.threads", "1"]


@pytest.mark.slow
def test_the_verb_trains_resumes_and_starts_from_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"{write(tmp_path / 'net.py', FACTORY)}:make"
    words = ["train", "digits", "--model", model, *QUICK, "--json"]
    assert command([*words, "--out", str(tmp_path / "a")]) == 0
    first = json.loads(capsys.readouterr().out)
    assert {"checkpoint", "epochs", "val_accuracy", "images_per_s"} <= first.keys()
    longer = words.copy()
    longer[words.index("--trainer.max_epochs") + 1] = "2"
    assert command([*longer, "--out", str(tmp_path / "a"), "--resume"]) == 0
    assert json.loads(capsys.readouterr().out)["epochs"] == 2
    assert (
        command(
            [
                *words,
                "--out",
                str(tmp_path / "b"),
                "--weights",
                first["checkpoint"],
                "--optimizer.lr",
                "0",
            ]
        )
        == 0
    )
    again = json.loads(capsys.readouterr().out)
    assert again["history"][0]["train_loss"] < first["history"][0]["train_loss"]


@pytest.mark.parametrize("option", ["weights", "teacher"])
def test_a_training_does_not_take_the_place_of_what_it_begins_from(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = f"{write(tmp_path / 'net.py', FACTORY)}:make", tmp_path / "a"
    out.mkdir()
    kept = out / "weights.safetensors"
    save_weights(load_model(model), kept)
    before = kept.read_bytes()
    words = [
        "train",
        "digits",
        "--model",
        model,
        *QUICK,
        "--loss.distill",
        "0.5",
        "--out",
        str(out),
        "--teacher",
        str(kept),
    ]
    if option == "weights":
        save_weights(load_model(model), tmp_path / "teacher.safetensors")
        words = [
            *words[:-1],
            str(tmp_path / "teacher.safetensors"),
            "--weights",
            str(out / ".." / "a" / "weights.safetensors"),
        ]
    assert command(words) == 1
    assert f"cannot train into {out}, --{option} " in capsys.readouterr().err
    assert kept.read_bytes() == before
    assert [path.name for path in out.iterdir()] == ["weights.safetensors"]


def test_an_error_of_the_machine_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        command(
            [
                "train",
                "digits",
                *QUICK,
                "--weights",
                str(tmp_path / "no\nfile"),
                "--out",
                str(tmp_path / "a"),
            ]
        )
        == 1
    )
    assert (
        command(
            [
                "train",
                "digits",
                *QUICK,
                "--weights",
                str(tmp_path / ("x" * 300)),
                "--out",
                str(tmp_path / "a"),
            ]
        )
        == 1
    )
    found = capsys.readouterr().err
    assert len(found.splitlines()) == 2
    assert all(line.startswith("nnstretch: ") for line in found.splitlines())
    assert "File name too long" in found
