"""Interrupted trainings: the saved state, what may change where one goes on, and what may not."""

from __future__ import annotations

import json
import random
import signal
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from support.stopped_training import Stopped, stop_in_epoch
from support.trainings import SMALL, picture, same_weights, small_net, write_images
from torch import nn

from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.train import fit, save_weights
from nnstretch.train.checkpoints import (
    SafeCheckpoint,
    check_same_scores,
    pack_state,
    probe_scores,
    unpack_state,
)
from nnstretch.train.classifier import Classifier
from nnstretch.train.data import InMemoryImages, open_dataset
from nnstretch.train.data.shard_writer import write_dataset
from nnstretch.train.optimizers import learning_rate_factor
from nnstretch.train.recipe import AverageSettings, DataSettings, LossSettings, OptimizerSettings

keys = st.one_of(st.integers(), st.text(max_size=3))


leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())


@settings_of_hypothesis(max_examples=40)
@given(
    st.recursive(
        leaves,
        lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(keys, inner),
        max_leaves=8,
    )
)
def test_training_state_survives_json(state: object) -> None:
    assert unpack_state(json.loads(json.dumps(pack_state(state, {}))), {}) == state


def test_a_training_state_is_never_a_pickle(tmp_path: Path) -> None:
    path = tmp_path / "resume.safetensors"
    torch.save({"state_dict": {}}, path)
    with pytest.raises(BrokenFile, match=r"resume\.safetensors"):
        SafeCheckpoint().load_checkpoint(path)
    save_weights(small_net(), path)
    with pytest.raises(BrokenFile, match="not one of an interrupted training"):
        SafeCheckpoint().load_checkpoint(path)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_resumed_training_ends_in_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    recipe = replace(
        SMALL,
        optimizer=OptimizerSettings(name=optimizer, lr=0.01),
        trainer=replace(SMALL.trainer, max_epochs=3),
    )
    whole, halves = small_net(dropout=0.2), small_net(dropout=0.2)
    uninterrupted = fit(whole, recipe, tmp_path / "whole", progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "training_step", stop_in_epoch(Classifier.training_step, epoch=1))
        with pytest.raises(Stopped):
            fit(halves, recipe, tmp_path / "halves", progress=False)
    halves = small_net(dropout=0.2, seed=9)
    resumed = fit(halves, recipe, tmp_path / "halves", resume=True, progress=False)
    assert same_weights(whole, halves)
    assert resumed.checkpoint.read_bytes() == uninterrupted.checkpoint.read_bytes()
    untimed = [
        [replace(e, seconds=0.0, images_per_s=0.0) for e in result.history]
        for result in (uninterrupted, resumed)
    ]
    assert untimed[0] == untimed[1]


def test_added_epochs_follow_the_longer_schedule_from_their_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, rates = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1)), []
    fit(small_net(), short, tmp_path, progress=False)
    step = Classifier.training_step

    def noted_step(self: Classifier, batch: object, number: int) -> torch.Tensor:
        rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        return step(self, batch, number)  # type: ignore[arg-type]

    monkeypatch.setattr(Classifier, "training_step", noted_step)
    fit(small_net(), SMALL, tmp_path, resume=True, progress=False)
    steps, warmup, peak = 2 * len(rates), SMALL.optimizer.warmup, SMALL.optimizer.lr
    expected = [peak * learning_rate_factor(n, steps, warmup) for n in range(len(rates), steps)]
    assert rates == pytest.approx(expected, rel=1e-9)


class Noisy(nn.Module):
    """Draws on generators that are not PyTorch's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_net()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        noise = random.random() + float(np.random.rand()) if self.training else 1.0
        scores: torch.Tensor = self.inner(images) * noise
        return scores


@pytest.mark.slow
def test_draws_on_the_generators_of_python_and_numpy_are_seeded_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, halves = Noisy(), Noisy()
    before = random.getstate(), np.random.get_state()[1].tolist()
    fit(whole, SMALL, tmp_path / "whole", progress=False)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    random.random()
    np.random.rand()
    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "training_step", stop_in_epoch(Classifier.training_step, epoch=1))
        with pytest.raises(Stopped):
            fit(halves, SMALL, tmp_path / "halves", progress=False)
    fit(halves, SMALL, tmp_path / "halves", resume=True, progress=False)
    assert same_weights(whole, halves)


@pytest.mark.slow
@pytest.mark.parametrize(("epoch", "save_every_steps"), [(1, 0), (2, 0), (2, 2)])
def test_loading_processes_go_on_with_the_images_that_come_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: int, save_every_steps: int
) -> None:
    """They fetch ahead, before the loop has said which epoch it is."""
    trainer = replace(SMALL.trainer, max_epochs=3, save_every_steps=save_every_steps)
    recipe = replace(SMALL, trainer=trainer, data=replace(SMALL.data, workers=2))
    whole, halves = small_net(), small_net()
    fit(whole, replace(recipe, data=SMALL.data), tmp_path / "whole", progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "training_step", stop_in_epoch(Classifier.training_step, epoch))
        with pytest.raises(Stopped):
            fit(halves, recipe, tmp_path / "halves", progress=False)
    fit(halves, recipe, tmp_path / "halves", resume=True, progress=False)
    assert same_weights(whole, halves)


@pytest.mark.slow
def test_a_training_from_shards_goes_on_within_a_step_of_several_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images in chunks, saves within an epoch, micro-batches, an average and patience, all at once.

    And loading processes beside none.
    """
    digits = open_dataset(DataSettings(image_px=16))
    few = InMemoryImages(digits.train.images[:600], digits.train.labels[:600])  # type: ignore[attr-defined]
    write_dataset(replace(digits, train=few), tmp_path / "shards", 20_000)
    data = DataSettings(name="shards", root=str(tmp_path / "shards"), image_px=16, batch_images=60)
    trainer = replace(SMALL.trainer, micro_batches=2, save_every_steps=2, patience_epochs=5)
    recipe = replace(
        SMALL, data=data, trainer=trainer, average=AverageSettings(decay=0.9, every_steps=3)
    )
    assert len(open_dataset(data).train.chunks) > 3
    whole, halves = small_net(dropout=0.2), small_net(dropout=0.2)
    history = fit(whole, recipe, tmp_path / "whole", progress=False).history
    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "training_step", stop_in_epoch(Classifier.training_step, epoch=1))
        with pytest.raises(Stopped):
            fit(halves, recipe, tmp_path / "halves", progress=False)
    fetching = replace(recipe, data=replace(data, workers=2))
    assert (
        fit(halves, fetching, tmp_path / "halves", resume=True, progress=False)
        .history[1]
        .train_loss
        == history[1].train_loss
    )
    assert same_weights(whole, halves)


def test_a_curve_that_a_kill_left_short_is_whole_again(tmp_path: Path) -> None:
    network = small_net()
    fit(network, SMALL, tmp_path, progress=False)
    curve = tmp_path / "curve.csv"
    whole = curve.read_text()
    curve.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    (tmp_path / "training.json").unlink()
    fit(network, SMALL, tmp_path, resume=True, progress=False)
    assert curve.read_text() == whole


def test_an_epoch_that_is_resumed_is_timed_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1, save_every_steps=2))
    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "training_step", stop_in_epoch(Classifier.training_step, epoch=0))
        with pytest.raises(Stopped):
            fit(small_net(), recipe, tmp_path, progress=False)
    began_s = perf_counter()
    (epoch,) = fit(small_net(), recipe, tmp_path, resume=True, progress=False).history
    took_s = perf_counter() - began_s
    assert 0 < epoch.seconds < took_s
    assert epoch.images_per_s > 64 / took_s


def test_a_finished_training_resumes_to_itself_and_a_different_one_is_refused(
    tmp_path: Path,
) -> None:
    recipe = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))
    with pytest.raises(UnknownName, match="nothing to resume"):
        fit(small_net(), recipe, tmp_path, resume=True, progress=False)
    first = fit(small_net(), recipe, tmp_path, progress=False)
    weights = first.checkpoint.read_bytes()
    assert fit(small_net(seed=3), recipe, tmp_path, resume=True, progress=False) == first
    assert first.checkpoint.read_bytes() == weights
    with pytest.raises(BadInput, match=r"optimizer\.lr was 0\.1 and is now 0\.2"):
        fit(
            small_net(),
            replace(recipe, optimizer=OptimizerSettings(lr=0.2)),
            tmp_path,
            resume=True,
            progress=False,
        )
    wide = nn.Sequential(nn.Conv2d(3, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(BadInput, match=r"another network, 0\.bias is missing"):
        fit(wide, recipe, tmp_path, resume=True, progress=False)


def test_a_training_goes_on_with_the_images_it_began_with(tmp_path: Path) -> None:
    write_images(tmp_path / "images", {"ant": 6, "bee": 6})
    data = DataSettings(name="folder", root=str(tmp_path / "images"), image_px=16, batch_images=4)
    recipe = replace(SMALL, data=data, trainer=replace(SMALL.trainer, max_epochs=1))
    out = tmp_path / "out"
    fit(small_net(2), recipe, out, progress=False)
    before = (out / "weights.safetensors").read_bytes()

    (tmp_path / "images").rename(tmp_path / "moved")
    moved = replace(recipe, data=replace(data, root=str(tmp_path / "moved")))
    fit(small_net(2), moved, out, resume=True, progress=False)  # another place is no other data
    assert (out / "weights.safetensors").read_bytes() == before

    image = tmp_path / "moved" / "ant" / "0.png"
    pixels = image.read_bytes()
    picture(seed=9, side_px=12).save(image)
    with pytest.raises(BadInput, match=r"the images called (train|held) are others than before"):
        fit(small_net(2), moved, out, resume=True, progress=False)
    image.write_bytes(pixels)
    fit(small_net(2), moved, out, resume=True, progress=False)  # newer, but no other image

    (tmp_path / "moved" / "bee").rename(tmp_path / "moved" / "wasp")
    with pytest.raises(
        BadInput,
        match=r"cannot resume, data set folder, it has 2 classes and had 2, class bee is gone",
    ):
        fit(small_net(2), moved, out, resume=True, progress=False)
    (tmp_path / "moved" / "wasp").rename(tmp_path / "moved" / "bee")
    write_images(tmp_path / "moved", {"bee": 8})
    with pytest.raises(
        BadInput, match=r"cannot resume, data set folder, train_images were 10 and are now \d+"
    ):
        fit(small_net(2), moved, out, resume=True, progress=False)
    assert (out / "weights.safetensors").read_bytes() == before


def test_fewer_epochs_than_are_done_and_a_best_that_is_gone_are_refused(tmp_path: Path) -> None:
    fit(small_net(), SMALL, tmp_path, progress=False)
    less = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))
    with pytest.raises(
        BadInput, match=r"2 epochs are done, trainer\.max_epochs is 1, ask for as many or more"
    ):
        fit(small_net(), less, tmp_path, resume=True, progress=False)
    (tmp_path / "best.safetensors").unlink()
    with pytest.raises(BadInput, match=r"best\.safetensors of epoch [12] is gone, put it back"):
        fit(small_net(), SMALL, tmp_path, resume=True, progress=False)


def test_a_training_goes_on_with_the_teacher_it_began_with(tmp_path: Path) -> None:
    recipe = replace(
        SMALL, loss=LossSettings(distill=0.5), trainer=replace(SMALL.trainer, max_epochs=1)
    )
    fit(small_net(), recipe, tmp_path, teacher=small_net(seed=1), progress=False)
    fit(small_net(), recipe, tmp_path, teacher=small_net(seed=1), resume=True, progress=False)
    with pytest.raises(
        BadInput, match="cannot resume, the weights to distil from are others than before"
    ):
        fit(small_net(), recipe, tmp_path, teacher=small_net(seed=2), resume=True, progress=False)


class Rectified(nn.Module):
    """Rectifies scores, or squashes them: other code around equal weights."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.inner, self.last = small_net(), last

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self.inner(images))
        return scores


def test_a_training_goes_on_with_the_code_it_began_with(tmp_path: Path) -> None:
    recipe = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))
    fit(Rectified(nn.ReLU()), recipe, tmp_path, progress=False)
    before = (tmp_path / "resume.safetensors").read_bytes()
    with pytest.raises(BadInput, match="an image other scores than before, its code has changed"):
        fit(Rectified(nn.Sigmoid()), recipe, tmp_path, resume=True, progress=False)
    assert (tmp_path / "resume.safetensors").read_bytes() == before
    fit(Rectified(nn.ReLU()), recipe, tmp_path, resume=True, progress=False)


def test_the_image_that_tells_code_apart_moves_nothing() -> None:
    network = small_net(dropout=0.5)
    network[1].eval()
    state, modes = torch.random.get_rng_state(), [m.training for m in network.modules()]
    scores = probe_scores(network, 16)
    assert probe_scores(network, 16) == scores
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [m.training for m in network.modules()] == modes
    check_same_scores(scores, [1.01 * score for score in scores])  # another device, or precision
    check_same_scores([*scores[:-1], float("nan")], [0.0] * len(scores))
    with pytest.raises(BadInput, match="its code has changed"):
        check_same_scores(scores, scores[:-1])


def test_the_place_within_an_epoch_is_counted_in_micro_batches(tmp_path: Path) -> None:
    fit(small_net(), SMALL, tmp_path, progress=False)
    halves = replace(SMALL, trainer=replace(SMALL.trainer, micro_batches=2))
    with pytest.raises(BadInput, match=r"trainer\.micro_batches was 1 and is now 2"):
        fit(small_net(), halves, tmp_path, resume=True, progress=False)


def test_a_run_goes_on_with_another_number_of_threads(tmp_path: Path) -> None:
    fit(small_net(), SMALL, tmp_path, progress=False)
    threads = SMALL.trainer.threads + 1
    longer = replace(SMALL.trainer, threads=threads, max_epochs=SMALL.trainer.max_epochs + 1)
    resumed = replace(SMALL, trainer=longer)
    history = fit(small_net(), resumed, tmp_path, resume=True, progress=False).history
    assert len(history) == longer.max_epochs


def test_ctrl_c_stays_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Classifier, "training_step", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(small_net(), SMALL, tmp_path, progress=True)
    assert signal.getsignal(signal.SIGINT) is before
