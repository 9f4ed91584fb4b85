"""What is refused before a training begins, and what is told while it runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.trainings import (
    FACTORY,
    SMALL,
    UNMOVED,
    branched_plan,
    pretend_slurm,
    small_net,
    write,
    write_images,
)
from torch import nn

from nnstretch.capture import load_model
from nnstretch.cli import main as command
from nnstretch.errors import BadInput, Diverged
from nnstretch.files import journal
from nnstretch.files.journal import only_writer
from nnstretch.stretch import stretch, write_plan
from nnstretch.train import fit
from nnstretch.train.callbacks import Records
from nnstretch.train.classifier import Classifier
from nnstretch.train.data import open_dataset
from nnstretch.train.preflight import is_same_model
from nnstretch.train.recipe import (
    DataSettings,
    TrainerSettings,
)
from nnstretch.train.trainer import make_trainer
from nnstretch.train.training_folder import RESULT_FILES

ONE_EPOCH = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))


QUICK = ["--data.image_px", "16", "--trainer.max_epochs", "1", "--trainer.threads", "1", "--json"]


@pytest.mark.parametrize("name", [*RESULT_FILES, "recipe.yaml"])
def test_files_that_no_training_left_are_not_replaced(name: str, tmp_path: Path) -> None:
    write(tmp_path / name, "somebody's")
    with pytest.raises(
        BadInput,
        match=(
            "holds an interrupted"
            if name == "resume.safetensors"
            else f"its {name} is of no training"
        ),
    ):
        fit(small_net(), ONE_EPOCH, tmp_path, progress=False)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "somebody's")]


def test_a_finished_training_is_replaced_only_when_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(small_net(), ONE_EPOCH, tmp_path, progress=False)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    words = ["train", "digits", "--model", "timm:no_such_network", *QUICK, "--out", str(tmp_path)]
    assert command(words) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "it holds a finished training (training.json)" in said
    assert "replace it with --overwrite" in said
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert command([*words, "--overwrite"]) == 1  # the next fault is the network's name
    assert "no_such_network" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_two_trainings_do_not_write_into_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "PATIENCE_S", 0.2)
    with only_writer(tmp_path), pytest.raises(BadInput, match="is written by another process"):
        fit(small_net(), ONE_EPOCH, tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []
    fit(small_net(), ONE_EPOCH, tmp_path, progress=False)


@pytest.mark.slow
def test_a_plan_gives_way_to_itself_only(tmp_path: Path) -> None:
    plan, other = branched_plan(tmp_path), branched_plan(tmp_path, ("cpu", "gpu"))
    (tmp_path / "out").mkdir()
    write_plan(tmp_path / "out" / "plan.yaml", plan)
    with pytest.raises(BadInput, match=r"its plan\.yaml is of no training"):
        fit(stretch(load_model(other.model), other), ONE_EPOCH, tmp_path / "out", progress=False)
    fit(stretch(load_model(plan.model), plan), ONE_EPOCH, tmp_path / "out", progress=False)
    fit(stretch(load_model(other.model), other), ONE_EPOCH, tmp_path / "out", progress=False)
    fit(small_net(), ONE_EPOCH, tmp_path / "out", progress=False)
    assert not (tmp_path / "out" / "plan.yaml").exists()


@pytest.mark.slow
def test_a_recipe_is_not_replaced_by_what_it_became(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "mine", str(tmp_path / "out")
    folder.mkdir()
    recipe = str(write(folder / "recipe.yaml", "# mine\nseed: 3\n"))
    quick = ["--model", f"{write(tmp_path / 'net.py', FACTORY)}:make", *QUICK]
    assert command(["train", recipe, *quick, "--out", str(folder)]) == 1
    assert "its recipe.yaml is of no training and would be replaced" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["recipe.yaml"]
    assert command(["train", recipe, *quick, "--out", out]) == 0
    again = ["train", f"{out}/recipe.yaml", "--optimizer.lr", "0.01", "--json", "--overwrite"]
    assert command([*again, "--out", out]) == 0


def test_each_process_needs_an_image_to_judge(tmp_path: Path) -> None:
    for part, count in (("train", 6), ("val", 1)):
        write_images(tmp_path / "images" / part, {"a": count, "b": count})
    data = DataSettings(name="folder", root=str(tmp_path / "images"), image_px=16, batch_images=6)
    recipe = replace(
        UNMOVED, data=data, trainer=replace(UNMOVED.trainer, devices=3, accelerator="cpu")
    )
    with pytest.raises(BadInput, match=r"2 held-out images for 3 processes, each needs one"):
        fit(small_net(2), recipe, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_a_cluster_that_started_other_processes_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_slurm(monkeypatch, NTASKS=4, NTASKS_PER_NODE=4)
    with pytest.raises(
        BadInput,
        match=(
            r"2 processes on each of 1 machines, this is not how they were started,"
            r" .*--ntasks-per-node=4"
        ),
    ):
        make_trainer(TrainerSettings(devices=2, accelerator="cpu"), logger=False)
    assert make_trainer(TrainerSettings(devices=4, accelerator="cpu"), logger=False).world_size == 4
    monkeypatch.setenv("SLURM_NTASKS", "8")
    with pytest.raises(BadInput, match=r"4 processes on each of 1 machines, 8 were started"):
        make_trainer(TrainerSettings(devices=4, accelerator="cpu"), logger=False)


def test_a_batch_norm_with_one_image_is_one_line(tmp_path: Path) -> None:
    module = nn.Sequential(
        nn.AdaptiveAvgPool2d(1),
        nn.Conv2d(3, 8, 1),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    recipe = replace(ONE_EPOCH, trainer=replace(ONE_EPOCH.trainer, micro_batches=64))
    with pytest.raises(BadInput, match=r"a batch norm has one image to go by, take larger batches"):
        fit(module, recipe, tmp_path, progress=False)


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ("a/net.py:make?n=3", "b/c/net.py:make?n=3", True),
        ("net.py:make?n=3", "net.py:make?n=4", False),
        ("net.py:make", "net.py:made", False),
        ("timm:efficientnet_lite4?act_layer=relu", "timm:efficientnet_lite4", False),
        ("torchvision:resnet18?weights=a/b", "torchvision:resnet34?weights=a/b", False),
        ("a/det.onnx#head/scores", "b/det.onnx#head/scores", True),
        ("a/det.onnx#head/scores", "a/other.onnx#head/scores", False),
    ],
)
def test_a_training_goes_on_with_the_network_it_began_with(
    before: str, now: str, same: bool, tmp_path: Path
) -> None:
    assert is_same_model(before, now) == is_same_model(now, before) == same
    if "net.py" in before and not same:
        fit(small_net(), replace(ONE_EPOCH, model=before), tmp_path, progress=False)
        with pytest.raises(
            BadInput, match=f"model was {re.escape(before)} and is now {re.escape(now)}"
        ):
            fit(small_net(), replace(ONE_EPOCH, model=now), tmp_path, resume=True, progress=False)


def test_an_epoch_that_diverged_names_the_step_before_anything_else(tmp_path: Path) -> None:
    def refuse(together: bool) -> None:
        assert together
        raise Diverged("training diverged, step 3")

    module = SimpleNamespace(
        refuse_diverged=refuse, taken_numbers=lambda: {"train_loss": 1.0, "val_loss": float("nan")}
    )
    records: Any = Records(tmp_path)
    records._trained_s = 1.0
    with pytest.raises(Diverged, match="step 3"):
        records.on_train_epoch_end(SimpleNamespace(current_epoch=0), module)


@pytest.mark.slow
# What is told
def test_without_a_terminal_a_line_tells_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(small_net(), SMALL, tmp_path / "short")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("nnstretch.train.progress_bar.SECONDS_BETWEEN_LINES", 0.0)
    result = fit(small_net(), SMALL, tmp_path / "long")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(result.history) == 2
    line = (
        r"nnstretch: epoch (\d)/2, held-out \d+\.\d\d%, loss \d\.\d{4}, \d+ images/s, \d:\d\d:\d\d"
        r" left"
    )
    assert [re.fullmatch(line, text)[1] for text in said] == ["1", "2"]  # type: ignore[index]
    assert said[-1].endswith(" 0:00:00 left")


def test_the_threads_that_are_asked_for_are_taken_within_lightning_too() -> None:
    """It sets others where it starts several processes."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        Classifier(small_net(), SMALL, open_dataset(SMALL.data)).on_fit_start()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_what_is_printed_needs_no_images_and_names_the_plans_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = branched_plan(tmp_path)
    write_plan(tmp_path / "plan.yaml", plan)
    assert (
        command(
            [
                "train",
                "imagenet_a3",
                "--plan",
                str(tmp_path / "plan.yaml"),
                "--print_config",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["recipe"]["model"] == plan.model
    assert command(["train", "imagenet_a3", "--out", str(tmp_path / "out"), "--json"]) == 1
    assert (
        "data.root is empty, data set folder, give the folder it is in" in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["digits", "shapes"])
def test_a_folder_is_not_silently_left_out(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--data.name", name, "--data.root", str(tmp_path)]
    assert command(["train", "digits", *where, "--out", str(tmp_path / "out"), "--json"]) == 1
    assert (
        f"data.root is {tmp_path}, data set {name}, it reads no folder" in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()
