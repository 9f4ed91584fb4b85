"""The parts that recipes turn on.

Micro-batches, patience, norms, curves, compile.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from support.trainings import UNMOVED, net, same_weights
from torch import nn

from nnstretch.errors import BadInput, BrokenFile
from nnstretch.train import evaluate, fit, load_weights
from nnstretch.train import hardware as machine
from nnstretch.train.callbacks import Records
from nnstretch.train.classifier import Classifier
from nnstretch.train.data import InMemoryImages, Pictures, open_dataset
from nnstretch.train.data.transforms import normalize_images
from nnstretch.train.optimizers import make_optimizer
from nnstretch.train.recipe import (
    AugmentSettings,
    LossSettings,
    OptimizerSettings,
    TrainerSettings,
)
from nnstretch.train.training_folder import EpochRecord, best_epoch


@pytest.mark.slow
def test_micro_batches_without_norms_take_the_same_steps(tmp_path: Path) -> None:
    def plain() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 10),
        )

    one, parts = plain(), plain()
    fit(one, UNMOVED, tmp_path / "one", progress=False)
    fit(
        parts,
        replace(UNMOVED, trainer=replace(UNMOVED.trainer, micro_batches=4)),
        tmp_path / "parts",
        progress=False,
    )
    assert all(
        torch.allclose(a, b, atol=1e-5)
        for a, b in zip(one.parameters(), parts.parameters(), strict=True)
    )


@pytest.mark.slow
def test_patience_ends_training_and_the_best_weights_are_kept_beside_the_last(
    tmp_path: Path,
) -> None:
    recipe = replace(
        UNMOVED,
        optimizer=OptimizerSettings(lr=0.0),
        trainer=replace(UNMOVED.trainer, max_epochs=9, patience_epochs=2),
    )
    result = fit(net(), recipe, tmp_path, progress=False)
    assert result.epochs < 9
    best = best_epoch(result.history)
    assert result.epochs - best.epoch == 2
    assert result.best_accuracy == best.val_accuracy
    fresh = net(seed=3)
    load_weights(fresh, result.best)
    assert evaluate(fresh, recipe) == pytest.approx(result.best_accuracy)
    assert fit(net(), recipe, tmp_path, resume=True, progress=False).epochs == result.epochs


def test_the_curve_is_a_table_and_tensorboard_has_it_where_asked(tmp_path: Path) -> None:
    result = fit(
        net(),
        replace(UNMOVED, trainer=replace(UNMOVED.trainer, tensorboard=True)),
        tmp_path,
        progress=False,
    )
    rows = list(csv.DictReader((tmp_path / "curve.csv").open()))
    assert [float(row["val_accuracy"]) for row in rows] == [
        epoch.val_accuracy for epoch in result.history
    ]
    assert all(float(row["val_top5"]) >= float(row["val_accuracy"]) for row in rows)
    assert list((tmp_path / "logs").glob("events.out.tfevents.*"))


@pytest.mark.slow
def test_the_loss_of_a_step_is_logged_once_and_whole_however_it_is_divided(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = replace(UNMOVED.trainer, max_epochs=3, micro_batches=4, tensorboard=True)
    result = fit(net(), replace(UNMOVED, trainer=trainer), tmp_path, progress=False)
    logs = EventAccumulator(str(tmp_path / "logs"))
    logs.Reload()
    (logged,) = logs.Scalars("step_loss")
    assert logged.step == 50
    assert 0.5 < logged.value / result.history[2].train_loss < 2


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_gradients_that_are_scaled_and_clipped_are_unscaled_before_the_step(name: str) -> None:
    """Lightning refuses to clip for an optimiser that unscales by itself."""

    def unscales(precision: str, clip_norm: float) -> bool:
        made = make_optimizer(net(), OptimizerSettings(name=name, clip_norm=clip_norm), precision)  # type: ignore[arg-type]
        return getattr(made, "_step_supports_amp_scaling", False)

    assert not any(unscales(precision, 1.0) for precision in ("fp16", "bf16"))
    assert all(unscales(precision, 0.0) for precision in ("fp16", "bf16", "fp32"))
    assert unscales("fp32", 1.0)


def test_precise_norms_are_those_of_the_training_images(tmp_path: Path) -> None:
    """With a learning rate of zero nothing moves but the statistics.

    They must be the images' own.
    """
    recipe = replace(
        UNMOVED,
        optimizer=OptimizerSettings(lr=0.0),
        trainer=replace(UNMOVED.trainer, max_epochs=1, precise_norm_images=1437),
    )
    network = net()
    fit(network, recipe, tmp_path, progress=False)
    dataset = open_dataset(UNMOVED.data)
    assert isinstance(dataset.train, InMemoryImages)
    with torch.no_grad():
        before = network[0](normalize_images(dataset.train.images, dataset))  # type: ignore[index]
    assert torch.allclose(network[1].running_mean, before.mean((0, 2, 3)), atol=1e-2)  # type: ignore[index]


@pytest.mark.slow
def test_a_state_that_is_no_good_never_replaces_a_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of the second epoch is not a number.

    The state of the first one stays, and can be resumed.
    """
    recipe, losses = (
        replace(UNMOVED, trainer=replace(UNMOVED.trainer, save_every_steps=1)),
        Classifier.loss,
    )
    with monkeypatch.context() as patch:
        patch.setattr(
            Classifier,
            "loss",
            lambda self, *batch: (
                losses(self, *batch)
                * (float("nan") if self.current_epoch == 1 and self.global_step > 24 else 1)
            ),
        )
        with pytest.raises(BadInput, match=r"diverged, step 26 in epoch 2, the loss is not finite"):
            fit(net(), recipe, tmp_path, progress=False)
    network = net(seed=1)
    assert fit(network, recipe, tmp_path, resume=True, progress=False).epochs == 2
    straight = net()
    fit(straight, UNMOVED, tmp_path / "straight", progress=False)
    assert same_weights(network, straight)


def test_an_epoch_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenFile, match="its epochs are of another version"):
        Records(tmp_path).load_state_dict({"epochs": [{"number": 1}]})


def test_best_is_the_first_of_equals() -> None:
    epochs = [
        EpochRecord(n, 1, 1, accuracy, 1, 0, 1, 1)
        for n, accuracy in enumerate((0.5, 0.9, 0.9, 0.2), 1)
    ]
    assert best_epoch(tuple(epochs)).epoch == 2


@pytest.mark.slow
def test_a_compiled_network_trains_to_the_same_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured, but run by PyTorch itself: generating code takes a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    recipe = replace(
        UNMOVED,
        data=replace(UNMOVED.data, batch_images=512),
        trainer=replace(UNMOVED.trainer, max_epochs=1),
    )
    plain = fit(net(), recipe, tmp_path / "plain", progress=False)
    compiled = fit(
        net(),
        replace(recipe, trainer=replace(recipe.trainer, compile=True)),
        tmp_path / "compiled",
        progress=False,
    )
    assert compiled.history[0].train_loss == pytest.approx(plain.history[0].train_loss, abs=1e-3)


def test_a_compiled_network_is_what_a_teacher_teaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    def compiled(network: nn.Module) -> nn.Module:
        def run(images: torch.Tensor) -> torch.Tensor:
            ran.append(len(images))
            return network(images)  # type: ignore[no-any-return]

        return run  # type: ignore[return-value]

    monkeypatch.setattr(torch, "compile", compiled)
    recipe = replace(
        UNMOVED,
        data=replace(UNMOVED.data, batch_images=512),
        trainer=replace(UNMOVED.trainer, max_epochs=1, compile=True),
    )
    fit(
        net(),
        replace(recipe, loss=LossSettings(distill=0.5)),
        tmp_path,
        teacher=net(seed=1),
        progress=False,
    )
    assert ran == [512, 512]
    with pytest.raises(
        BadInput,
        match=(
            r"trainer\.compile is true and loss\.features 1\.0, a compiled network shows no meeting"
            r" points"
        ),
    ):
        replace(recipe, loss=LossSettings(features=1.0))


def test_an_image_is_cropped_in_one_way() -> None:
    with pytest.raises(BadInput, match=r"augment\.pad is 0\.1 and augment\.crop_scale 0\.5"):
        AugmentSettings(pad=0.1, crop_scale=0.5)


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_lamb_takes_the_steps_of_its_paper(clip_norm: float) -> None:
    """You et al. 2020, algorithm 2, one step of one weight.

    The trust ratio makes the step as long as the weight is, times the rate.
    """
    weight = nn.Parameter(torch.tensor([[3.0, 4.0]]))
    optimizer = make_optimizer(
        nn.ParameterList([weight]),
        OptimizerSettings(name="lamb", lr=0.01, weight_decay=1e-9, clip_norm=clip_norm),
    )
    weight.grad = torch.tensor([[30.0, -1e-5]])
    optimizer.step()
    # Adam's first step is the gradient's sign; eps 1e-6 shrinks that of 1e-5 to 10/11, and nobody
    # clipped the gradient before.
    step = torch.tensor([[1.0, -10 / 11]])
    assert torch.allclose(
        weight.detach(), torch.tensor([[3.0, 4.0]]) - 0.01 * 5 * step / step.norm(), atol=1e-5
    )


@pytest.mark.parametrize(
    ("environment", "devices", "rank"),
    [
        ({}, 1, 0),
        ({"SLURM_PROCID": "3"}, 1, 0),
        ({"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "x", "SLURM_PROCID": "3"}, 2, 3),
        (
            {"SLURM_PROCID": "0", "NODE_RANK": "0", "LOCAL_RANK": "1"},
            2,
            1,
        ),  # a job without srun: Lightning starts the others
        ({"LOCAL_RANK": "1"}, 2, 1),
        ({"NODE_RANK": "1", "LOCAL_RANK": "0"}, 2, 1),
        (
            {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4", "RANK": "3"},
            1,
            3,
        ),
    ],
)
def test_one_of_the_processes_that_train_together_speaks(
    environment: dict[str, str], devices: int, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "RANK",
        "LOCAL_RANK",
        "NODE_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "TORCHELASTIC_RUN_ID",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("PROCID", "NTASKS", "JOB_NAME"):
        monkeypatch.delenv(f"SLURM_{name}", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert machine.process_rank(TrainerSettings(devices=devices, accelerator="cpu")) == rank


def test_a_data_module_hands_out_the_share_of_one_process() -> None:
    pictures = Pictures(UNMOVED)
    assert sum(len(batch) for batch in pictures.val_dataloader()) == 360
    assert {len(batch) for batch in pictures.train_dataloader()} == {64}
