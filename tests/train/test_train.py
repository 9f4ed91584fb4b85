"""Weights in safetensors, learning rates, teachers; training learns, or is refused."""

from __future__ import annotations

import json
import pickle
from collections import OrderedDict
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.trainings import SMALL, same_weights, small_net
from torch import nn

from nnstretch.cli import main as command
from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.train import evaluate, fit, load_held_out, load_recipe, load_weights, save_weights
from nnstretch.train.classifier import Classifier
from nnstretch.train.data import open_dataset
from nnstretch.train.losses import DistillationTeacher, training_loss
from nnstretch.train.optimizers import learning_rate_factor
from nnstretch.train.recipe import BranchedSettings, LossSettings, OptimizerSettings
from nnstretch.train.training_folder import EpochRecord


def without_bias() -> nn.Module:
    """Return the small network without the bias of its last layer."""
    *layers, last = small_net()
    return nn.Sequential(*layers, nn.Linear(last.in_features, last.out_features, bias=False))


def test_weights_come_back_exactly(tmp_path: Path) -> None:
    one, other = small_net(seed=0), small_net(seed=1)
    save_weights(one, tmp_path / "w.safetensors")
    assert not same_weights(one, other)
    load_weights(other, tmp_path / "w.safetensors")
    assert same_weights(one, other)


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (
            small_net(classes=7),
            r"8\.weight has shape 10x128, the network wants 7x128, as do 1 more",
        ),
        (
            nn.Sequential(*small_net(), nn.Linear(10, 10)),
            r"9\.weight is missing, as are 1 more of 12",
        ),
        (small_net()[:-1], r"8\.bias is unexpected, as are 1 more of 10"),
        (without_bias(), r"8\.bias is unexpected, 1 of 10$"),
        (
            nn.Sequential(OrderedDict(other=small_net())),
            r"other\.0\.weight is missing, as are 9 more of 10, of another network: it has"
            r" 0\.weight and 9 more",
        ),
    ],
    ids=["shape", "missing", "unexpected", "one unexpected", "other"],
)
def test_weights_that_do_not_fit_are_refused_by_key(
    tmp_path: Path, network: nn.Module, reason: str
) -> None:
    save_weights(small_net(), tmp_path / "w.safetensors")
    before = {key: value.clone() for key, value in network.state_dict().items()}
    with pytest.raises(BadInput, match=reason):
        load_weights(network, tmp_path / "w.safetensors")
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


def test_broken_weights_are_refused(tmp_path: Path) -> None:
    good = tmp_path / "w.safetensors"
    save_weights(small_net(), good)
    (tmp_path / "cut.safetensors").write_bytes(good.read_bytes()[:-100])
    (tmp_path / "pickle.safetensors").write_bytes(pickle.dumps({"a": 1}))
    for name in ("cut", "pickle"):
        with pytest.raises(BrokenFile, match=f"{name}.safetensors"):
            load_weights(small_net(), tmp_path / f"{name}.safetensors")
    with pytest.raises(UnknownName, match=r"none\.safetensors"):
        load_weights(small_net(), tmp_path / "none.safetensors")


@given(st.integers(1, 300), st.floats(0, 0.9))
def test_the_learning_rate_rises_to_its_peak_and_falls(steps: int, warmup: float) -> None:
    factors = [learning_rate_factor(step, steps, warmup) for step in range(steps)]
    peak = factors.index(max(factors))
    assert all(0 <= factor <= 1 for factor in factors)
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)


def test_a_teacher_who_agrees_adds_nothing() -> None:
    student, labels = torch.randn(4, 10), torch.tensor([1, 2, 3, 4])
    agreed = training_loss(student, labels, student.clone(), LossSettings(distill=0.5))
    assert float(agreed) == pytest.approx(
        0.5 * float(training_loss(student, labels, None, LossSettings())), rel=1e-5
    )


def test_distillation_moves_only_the_student() -> None:
    student, teacher = small_net(seed=0), small_net(seed=1)
    recipe = replace(SMALL, loss=LossSettings(distill=0.9))
    classifier = Classifier(
        student, recipe, open_dataset(SMALL.data), DistillationTeacher(teacher, student, recipe)
    )
    images, labels = load_held_out(SMALL.data)
    classifier.loss(images[:8], labels[:8]).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in student.parameters())
    assert all(p.grad is None for p in teacher.parameters())
    assert not any(key.startswith("_teacher") for key in classifier.state_dict())


@pytest.mark.slow
def test_training_learns_and_leaves_weights_history_and_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network, recipe = small_net(), replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=4))
    threads_before, random_before = torch.get_num_threads(), torch.random.get_rng_state()
    result = fit(network, recipe, tmp_path / "out", progress=False)
    assert result.epochs == len(result.history) == 4
    assert result.history[-1].train_loss < result.history[0].train_loss
    assert result.val_accuracy > 0.5
    assert result.val_accuracy == evaluate(network, recipe), "the same share, exactly"
    assert result.images_per_s > 0
    written = json.loads((tmp_path / "out" / "training.json").read_text())["history"]
    assert [EpochRecord(**row) for row in written] == list(result.history)
    assert set(written[0]) == {entry.name for entry in fields(EpochRecord)}
    assert [row["epoch"] for row in written] == [1, 2, 3, 4]
    assert load_recipe(tmp_path / "out" / "recipe.yaml") == recipe
    fresh = small_net(seed=5)
    load_weights(fresh, result.checkpoint)
    assert same_weights(fresh, network)
    assert capsys.readouterr() == ("", "")
    assert torch.get_num_threads() == threads_before
    assert torch.equal(torch.random.get_rng_state(), random_before)


def test_the_same_recipe_gives_the_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    recipe = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))
    networks = [small_net(), small_net(), small_net()]
    for number, seed in enumerate((0, 0, 1)):
        fit(networks[number], replace(recipe, seed=seed), tmp_path / str(number), progress=False)
    assert same_weights(networks[0], networks[1])
    assert not same_weights(networks[0], networks[2])


def test_a_network_that_was_judged_before_is_trained_like_any_other(tmp_path: Path) -> None:
    """Judging leaves it in evaluation mode, in which batch norms learn no statistics."""
    fresh, judged = small_net(dropout=0.2), small_net(dropout=0.2)
    evaluate(judged, SMALL)
    for name, network in (("fresh", fresh), ("judged", judged)):
        fit(
            network,
            replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1)),
            tmp_path / name,
            progress=False,
        )
    assert same_weights(fresh, judged)


@pytest.mark.parametrize(
    ("precision", "trained_in"), [("bf16", torch.bfloat16), ("fp32", torch.float32)]
)
def test_steps_are_taken_in_the_asked_precision_and_images_judged_in_fp32(
    precision: str, trained_in: torch.dtype, tmp_path: Path
) -> None:
    network, seen = small_net(), set()
    network[0].register_forward_hook(lambda conv, _, made: seen.add((conv.training, made.dtype)))
    recipe = replace(
        SMALL,
        loss=LossSettings(distill=0.5),
        trainer=replace(SMALL.trainer, max_epochs=1, precision=precision),
    )
    fit(network, recipe, tmp_path, teacher=small_net(seed=1), progress=False)
    assert seen == {(True, trained_in), (False, torch.float32)}
    assert all(p.dtype == torch.float32 and torch.isfinite(p).all() for p in network.parameters())


class ScoresInDict(nn.Linear):
    def __init__(self) -> None:
        super().__init__(768, 10)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {"scores": super().forward(images.flatten(1))}


def test_an_impossible_training_is_refused_with_its_numbers(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gives 1x1000 for one image, data set digits needs 1x10"):
        fit(small_net(classes=1000), SMALL, tmp_path, progress=False)
    with pytest.raises(BadInput, match=r"gives a dict, data set digits needs a tensor"):
        fit(ScoresInDict(), SMALL, tmp_path, progress=False)
    with pytest.raises(BadInput, match=r"refuses an image of 3x16x16"):
        fit(nn.Conv2d(4, 10, 1), SMALL, tmp_path, progress=False)
    with pytest.raises(BadInput, match=r"loss\.distill is 0\.5 .*there is no teacher"):
        fit(small_net(), replace(SMALL, loss=LossSettings(distill=0.5)), tmp_path, progress=False)
    with pytest.raises(
        BadInput,
        match=r"diverged, step \d+ in epoch 1, the loss is not finite, .* 1000\.0 and begin anew",
    ):
        fit(
            small_net(),
            replace(SMALL, optimizer=OptimizerSettings(lr=1e3, weight_decay=10.0, warmup=0.0)),
            tmp_path,
            progress=False,
        )
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot train into"):
        fit(small_net(), SMALL, tmp_path / "file" / "out", progress=False)
    assert not (tmp_path / "weights.safetensors").exists()


def test_a_setting_without_effect_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadInput, match=r"branched\.drop is 0\.2, the network has no branches"):
        fit(
            small_net(),
            replace(SMALL, branched=BranchedSettings(drop=0.2)),
            tmp_path / "out",
            progress=False,
        )
    with pytest.raises(BadInput, match=r"nothing to train, .* no weight that takes a gradient"):
        fit(small_net().requires_grad_(False), SMALL, tmp_path / "out", progress=False)
    words = ["train", "digits", "--out", str(tmp_path / "out")]
    assert command([*words, "--teacher", str(tmp_path / "t.safetensors")]) == 1
    assert "t.safetensors would not be asked, loss.distill is 0.0" in capsys.readouterr().err
    assert command([*words, "--weights", str(tmp_path)]) == 1
    assert "it is a folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_refused_training_leaves_what_was_there(tmp_path: Path) -> None:
    recipe = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))
    fit(small_net(), recipe, tmp_path, progress=False)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    refused = [
        (small_net(), replace(recipe, trainer=replace(recipe.trainer, precision="fp16")), False),
        (
            small_net(),
            replace(
                recipe,
                data=replace(recipe.data, val_px=12, val_resize_px=14),
                optimizer=OptimizerSettings(lr=0.2),
            ),
            True,
        ),
        (nn.Sequential(nn.Conv2d(3, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()), recipe, True),
    ]
    for network, changed, resume in refused:
        with pytest.raises(BadInput):
            fit(network, changed, tmp_path, resume=resume, progress=False)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_held_out_images_must_suit_the_network_and_have_a_loss(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"refuses an image of 3x24x24, data\.val_px 24"):
        fit(
            nn.Sequential(nn.Flatten(), nn.Linear(768, 10)),
            replace(SMALL, data=replace(SMALL.data, val_px=24)),
            tmp_path,
            progress=False,
        )

    class Blind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_net()

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(images)
            if len(images) == 360 % 128:
                out[0] *= float("nan")  # one image of the last batch is enough
            return out

    with pytest.raises(BadInput, match="diverged, epoch 1, the loss on held-out images is nan"):
        fit(Blind(), SMALL, tmp_path, progress=False)
    assert not (tmp_path / "resume.safetensors").exists()
