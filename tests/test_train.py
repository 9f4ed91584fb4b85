"""Recipes, the digits, weights in safetensors, and that training learns, resumes and distils."""

from __future__ import annotations

import json
import pickle
import signal
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from torch import nn

from nnstretch.capture import load_model
from nnstretch.cli import main as command
from nnstretch.cli import train as train_verb
from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import write_plan
from nnstretch.train import evaluate, fit, held_out, load_recipe, load_weights, recipe_yaml, save_weights
from nnstretch.train.classifier import Classifier
from nnstretch.train.data import Pictures, open_data
from nnstretch.train.data.images import InMemory
from nnstretch.train.data.order import Order, Pick, Share, order_of
from nnstretch.train.data.views import for_training, moved, moves_of
from nnstretch.train.descent import learning_rate_factor
from nnstretch.train.losses import training_loss
from nnstretch.train.reading import meanings, settings
from nnstretch.train.recipe import Augment, Average, Branched, Data, Loss, Optimizer, Recipe, Trainer
from nnstretch.train.records import Epoch
from nnstretch.train.teacher import Teacher
from nnstretch.train.weights import SafeCheckpoint, packed, unpacked

SMALL = Recipe(
    data=Data(image_px=16, batch_images=64),
    augment=Augment(shift=0.06, rotate_deg=10.0, scale=0.1),
    optimizer=Optimizer(lr=0.1),
    trainer=Trainer(max_epochs=2, precision="fp32", threads=1, tensorboard=False),
)


def small_net(classes: int = 10, dropout: float = 0.0, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(128, classes),
        )


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# Recipes


@given(
    st.builds(
        Recipe,
        seed=st.integers(0, 2**32 - 1),
        data=st.builds(Data, image_px=st.integers(8, 1024), workers=st.integers(0, 256)),
        augment=st.builds(Augment, shift=st.floats(0, 1), mixup=st.floats(0, 100)),
        optimizer=st.builds(Optimizer, name=st.sampled_from(["sgd", "adamw", "lamb"]), lr=st.floats(0, 1e3)),
        trainer=st.builds(Trainer, precision=st.sampled_from(["auto", "fp32", "bf16", "fp16"])),
    )
)
def test_a_recipe_reads_back_equal(recipe: Recipe) -> None:
    tree = yaml.safe_load(recipe_yaml(recipe))
    kinds = {"data": Data, "augment": Augment, "optimizer": Optimizer, "loss": Loss, "branched": Branched, "average": Average}
    parts = {name: kind(**tree[name]) for name, kind in (kinds | {"trainer": Trainer}).items()}
    assert recipe == Recipe(tree["model"], tree["seed"], **parts)


def test_a_saved_recipe_loads_equal(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.yaml", recipe_yaml(SMALL))
    assert load_recipe(path) == SMALL


def test_overrides_win_and_the_rest_stays() -> None:
    changed = load_recipe("digits", ["--trainer.max_epochs", "2", "optimizer.lr=1e-2"])
    plain = load_recipe("digits")
    assert changed == replace(plain, trainer=replace(plain.trainer, max_epochs=2), optimizer=replace(plain.optimizer, lr=0.01))


def test_an_empty_file_is_the_default_recipe(tmp_path: Path) -> None:
    assert load_recipe(write(tmp_path / "empty.yaml", "")) == Recipe()


@pytest.mark.parametrize(
    ("text", "error", "culprit"),
    [
        ("optimizer: {learning_rate: 1}", BadInput, "learning_rate"),
        ("speed: 1", BadInput, "speed"),
        ("optimizer: {lr: fast}", BadInput, "optimizer.lr"),
        ("seed: 1.5", BadInput, "seed"),
        ("data: 3", BadInput, "data is 3"),
        ("data:", BadInput, "data is None"),
        ("data: {name: imagenet}", BadInput, "data.name"),
        ("data: {image_px: 2}", BadInput, "data.image_px is 2"),
        ("trainer: {max_epochs: 0}", BadInput, "trainer.max_epochs is 0"),
        ("model: null", BadInput, "model is None"),
        ("optimizer: {lr: .nan}", BadInput, "optimizer.lr is nan"),
        ("seed: [1", BrokenFile, "not YAML"),
        ("- a list", BrokenFile, "list"),
    ],
)
def test_a_bad_recipe_is_one_line_that_names_key_and_file(tmp_path: Path, text: str, error: type[Exception], culprit: str) -> None:
    path = write(tmp_path / "bad.yaml", text)
    with pytest.raises(error) as refusal:
        load_recipe(path)
    assert culprit in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("words", [["--trainer.epochs", "2"], ["--trainer.max_epochs", "many"], ["trainer.max_epochs=0"]])
def test_a_bad_override_is_refused_by_its_key(words: list[str]) -> None:
    with pytest.raises(BadInput, match=words[0].removeprefix("--").partition("=")[0]):
        load_recipe("digits", words)


def test_an_unknown_recipe_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match=r"no recipe no_such.*digits"):
        load_recipe("no_such")


def test_every_setting_has_a_dotted_key_and_a_meaning() -> None:
    assert set(meanings()) == {key for key, _ in settings()}
    assert {"seed", "data.image_px", "optimizer.lr", "loss.distill", "trainer.max_epochs"} <= {key for key, _ in settings()}


# Data


def digits() -> tuple[InMemory, InMemory]:
    dataset = open_data(SMALL.data)
    assert isinstance(dataset.train, InMemory)
    assert isinstance(dataset.held, InMemory)
    return dataset.train, dataset.held


def test_the_split_holds_out_a_fifth_of_every_class_and_shares_nothing() -> None:
    train, held = digits()
    assert (len(train), len(held)) == (1437, 360)
    share = torch.bincount(held.labels) / (torch.bincount(held.labels) + torch.bincount(train.labels))
    assert share.min() > 0.19
    assert share.max() < 0.21


def test_held_out_images_are_what_a_network_takes() -> None:
    images, labels = held_out(SMALL.data)
    assert images.shape == (360, 3, 16, 16)
    assert abs(float(images.mean())) < 0.05
    assert abs(float(images.std()) - 1) < 0.05
    assert set(labels.tolist()) == set(range(10))


def seen(augment: Augment, seed: int = 0, epoch: int = 0, first: int = 0, count: int = 8) -> torch.Tensor:
    images = open_data(SMALL.data).train.images[first : first + count]  # type: ignore[attr-defined]
    return for_training(images, Pick(epoch, 3, first, 8, tuple(range(first, first + count))), seed, augment, open_data(SMALL.data))


def test_augmentation_of_zero_changes_nothing() -> None:
    images = digits()[0].images[:8].float() / 255
    still = moved(images, moves_of(Pick(0, 0, 0, 8, tuple(range(8))), 0, Augment()))
    assert torch.allclose(still, images, atol=1e-5)


def test_augmentation_depends_on_seed_and_epoch_and_not_on_how_a_batch_is_shared_out() -> None:
    whole = seen(SMALL.augment)
    assert torch.equal(whole, seen(SMALL.augment))
    assert torch.equal(whole, torch.cat([seen(SMALL.augment, first=0, count=4), seen(SMALL.augment, first=4, count=4)]))
    assert not torch.equal(whole, seen(SMALL.augment, seed=1))
    assert not torch.equal(whole, seen(SMALL.augment, epoch=1))


def picks(images: int, batch_images: int, epoch: int, share: Share, start: tuple[int, int] = (-1, 0)) -> list[Pick]:
    order = Order(images, (), batch_images, 3, share)
    order.set_epoch(epoch)
    order.start = start
    return list(order)


@given(st.integers(1, 200), st.integers(1, 50), st.integers(0, 5))
def test_batches_are_full_and_hold_every_image_at_most_once(images: int, batch_images: int, epoch: int) -> None:
    batches = [pick.indices for pick in picks(images, batch_images, epoch, Share())]
    seen = [index for batch in batches for index in batch]
    assert len(batches) == len(Order(images, (), batch_images, 3, Share())) == images // batch_images
    assert len(seen) == len(set(seen)) == len(batches) * batch_images


@given(st.integers(1, 200), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.integers(0, 9))
def test_processes_and_micro_batches_share_out_the_same_batches(
    images: int, own: int, processes: int, micro: int, epoch: int, done: int
) -> None:
    batch_images = own * processes * micro
    whole = picks(images, batch_images, epoch, Share())
    shares = [picks(images, batch_images, epoch, Share(rank, processes, micro)) for rank in range(processes)]
    assert len({len(share) for share in shares}) == 1
    for pick in whole:
        parts = sorted((p for share in shares for p in share if p.step == pick.step), key=lambda p: p.first)
        assert sum((p.indices for p in parts), ()) == pick.indices
        assert [p.first for p in parts] == list(range(0, batch_images, own))
    resumed = picks(images, batch_images, epoch, Share(0, processes, micro), start=(epoch, done))
    assert resumed == shares[0][done:]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(0, 3))
def test_images_in_chunks_are_all_seen_and_few_chunks_are_open_at_once(chunks: list[int], epoch: int) -> None:
    order = order_of(sum(chunks), chunks, 0, epoch).tolist()
    assert sorted(order) == list(range(sum(chunks)))
    owner = [number for number, size in enumerate(chunks) for _ in range(size)]
    last = {owner[image]: at for at, image in enumerate(order)}
    first = {chunk: order_at for order_at, chunk in reversed([(at, owner[image]) for at, image in enumerate(order)])}
    assert max(sum(first[c] <= at <= last[c] for c in first) for at in range(len(order))) <= 8


def test_a_batch_that_cannot_be_shared_out_is_refused() -> None:
    with pytest.raises(BadInput, match=r"data\.batch_images is 10, 4 processes of 1 micro-batches, it must be a multiple of 4"):
        Share(0, 4).images_of(10)


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(BadInput, match=r"batch_images is 1000.*179 images"):
        Pictures(Recipe(data=Data(image_px=8, batch_images=1000, held_out=0.9)))


# Weights


def test_weights_come_back_exactly(tmp_path: Path) -> None:
    one, other = small_net(seed=0), small_net(seed=1)
    save_weights(one, tmp_path / "w.safetensors")
    assert not same_weights(one, other)
    load_weights(other, tmp_path / "w.safetensors")
    assert same_weights(one, other)


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (small_net(classes=7), r"8\.weight has shape 10x128, the network wants 7x128, as do 1 more"),
        (nn.Sequential(*small_net(), nn.Linear(10, 10)), r"9\.weight is missing, as are 1 more of 12"),
        (small_net()[:-1], r"8\.bias is unexpected, as are 1 more of 10"),
    ],
    ids=["shape", "missing", "unexpected"],
)
def test_weights_that_do_not_fit_are_refused_by_key(tmp_path: Path, network: nn.Module, reason: str) -> None:
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


keys = st.one_of(st.integers(), st.text(max_size=3))
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())


@settings_of_hypothesis(max_examples=40)
@given(st.recursive(leaves, lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(keys, inner), max_leaves=8))
def test_training_state_survives_json(state: object) -> None:
    assert unpacked(json.loads(json.dumps(packed(state, {}))), {}) == state


def test_a_training_state_is_never_a_pickle(tmp_path: Path) -> None:
    path = tmp_path / "resume.safetensors"
    torch.save({"state_dict": {}}, path)
    with pytest.raises(BrokenFile, match=r"resume\.safetensors"):
        SafeCheckpoint().load_checkpoint(path)
    save_weights(small_net(), path)
    with pytest.raises(BrokenFile, match="not one of an interrupted training"):
        SafeCheckpoint().load_checkpoint(path)


# Learning rate and loss


@given(st.integers(1, 300), st.floats(0, 0.9))
def test_the_learning_rate_rises_to_its_peak_and_falls(steps: int, warmup: float) -> None:
    factors = [learning_rate_factor(step, steps, warmup) for step in range(steps)]
    peak = factors.index(max(factors))
    assert all(0 <= factor <= 1 for factor in factors)
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)


def test_a_teacher_who_agrees_adds_nothing() -> None:
    student, labels = torch.randn(4, 10), torch.tensor([1, 2, 3, 4])
    agreed = training_loss(student, labels, student.clone(), Loss(distill=0.5))
    assert float(agreed) == pytest.approx(0.5 * float(training_loss(student, labels, None, Loss())), rel=1e-5)


def test_distillation_moves_only_the_student() -> None:
    student, teacher = small_net(seed=0), small_net(seed=1)
    recipe = replace(SMALL, loss=Loss(distill=0.9))
    classifier = Classifier(student, recipe, open_data(SMALL.data), Teacher(teacher, student, recipe))
    images, labels = held_out(SMALL.data)
    classifier.loss(images[:8], labels[:8]).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in student.parameters())
    assert all(p.grad is None for p in teacher.parameters())
    assert not any(key.startswith("_teacher") for key in classifier.state_dict())


# Fit


def test_training_learns_and_leaves_weights_history_and_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network, recipe = small_net(), replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=4))
    threads_before, random_before = torch.get_num_threads(), torch.random.get_rng_state()
    result = fit(network, recipe, tmp_path / "out", progress=False)
    assert result.epochs == len(result.history) == 4
    assert result.history[-1].train_loss < result.history[0].train_loss
    assert result.val_accuracy > 0.5
    assert result.val_accuracy == pytest.approx(evaluate(network, recipe))
    assert result.images_per_s > 0
    written = json.loads((tmp_path / "out" / "training.json").read_text())["history"]
    assert [Epoch(**row) for row in written] == list(result.history)
    assert set(written[0]) == {entry.name for entry in fields(Epoch)}
    assert [row["epoch"] for row in written] == [1, 2, 3, 4]
    assert load_recipe(tmp_path / "out" / "recipe.yaml") == recipe
    fresh = small_net(seed=5)
    load_weights(fresh, result.checkpoint)
    assert same_weights(fresh, network)
    assert capsys.readouterr() == ("", "")
    assert torch.get_num_threads() == threads_before
    assert torch.equal(torch.random.get_rng_state(), random_before)


class Stopped(Exception):
    pass


def stop_in_epoch(classifier_step: object, epoch: int) -> object:
    def step(self: Classifier, batch: tuple[torch.Tensor, torch.Tensor], batch_number: int) -> torch.Tensor:
        if self.current_epoch == epoch and batch_number == 5:
            raise Stopped
        return classifier_step(self, batch, batch_number)  # type: ignore[operator]

    return step


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_resumed_training_ends_in_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str) -> None:
    recipe = replace(SMALL, optimizer=Optimizer(name=optimizer, lr=0.01), trainer=replace(SMALL.trainer, max_epochs=3))
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
    untimed = [[replace(e, seconds=0.0, images_per_s=0.0) for e in result.history] for result in (uninterrupted, resumed)]
    assert untimed[0] == untimed[1]


def test_a_finished_training_resumes_to_itself_and_a_different_one_is_refused(tmp_path: Path) -> None:
    recipe = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))
    with pytest.raises(UnknownName, match="nothing to resume"):
        fit(small_net(), recipe, tmp_path, resume=True, progress=False)
    first = fit(small_net(), recipe, tmp_path, progress=False)
    weights = first.checkpoint.read_bytes()
    assert fit(small_net(seed=3), recipe, tmp_path, resume=True, progress=False) == first
    assert first.checkpoint.read_bytes() == weights
    with pytest.raises(BadInput, match=r"optimizer\.lr was 0\.1 and is now 0\.2"):
        fit(small_net(), replace(recipe, optimizer=Optimizer(lr=0.2)), tmp_path, resume=True, progress=False)
    wide = nn.Sequential(nn.Conv2d(3, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(BadInput, match=r"another network, 0\.bias is missing"):
        fit(wide, recipe, tmp_path, resume=True, progress=False)


def test_the_same_recipe_gives_the_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    recipe = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))
    networks = [small_net(), small_net(), small_net()]
    for number, seed in enumerate((0, 0, 1)):
        fit(networks[number], replace(recipe, seed=seed), tmp_path / str(number), progress=False)
    assert same_weights(networks[0], networks[1])
    assert not same_weights(networks[0], networks[2])


def test_bf16_trains_fp32_weights(tmp_path: Path) -> None:
    network = small_net()
    recipe = replace(SMALL, loss=Loss(distill=0.5), trainer=replace(SMALL.trainer, max_epochs=1, precision="bf16"))
    fit(network, recipe, tmp_path, teacher=small_net(seed=1), progress=False)
    assert all(p.dtype == torch.float32 and torch.isfinite(p).all() for p in network.parameters())


def test_what_cannot_be_trained_is_refused_with_its_numbers(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gives 1x1000 for one image, data set digits needs 1x10"):
        fit(small_net(classes=1000), SMALL, tmp_path, progress=False)
    with pytest.raises(BadInput, match=r"refuses an image of 3x16x16"):
        fit(nn.Conv2d(4, 10, 1), SMALL, tmp_path, progress=False)
    with pytest.raises(BadInput, match=r"loss\.distill is 0\.5 .*there is no teacher"):
        fit(small_net(), replace(SMALL, loss=Loss(distill=0.5)), tmp_path, progress=False)
    with pytest.raises(BadInput, match=r"diverged, step \d+ in epoch 1, the loss is not finite"):
        fit(small_net(), replace(SMALL, optimizer=Optimizer(lr=1e3, weight_decay=10.0, warmup=0.0)), tmp_path, progress=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot train into"):
        fit(small_net(), SMALL, tmp_path / "file" / "out", progress=False)
    assert not (tmp_path / "weights.safetensors").exists()


def test_a_refused_training_leaves_what_was_there(tmp_path: Path) -> None:
    recipe = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))
    fit(small_net(), recipe, tmp_path, progress=False)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    refused = [
        (small_net(), replace(recipe, trainer=replace(recipe.trainer, precision="fp16")), False),
        (small_net(), replace(recipe, data=replace(recipe.data, val_px=12, val_resize_px=14), optimizer=Optimizer(lr=0.2)), True),
        (nn.Sequential(nn.Conv2d(3, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()), recipe, True),
    ]
    for network, changed, resume in refused:
        with pytest.raises(BadInput):
            fit(network, changed, tmp_path, resume=resume, progress=False)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_interrupted_training_is_not_begun_anew_by_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "training_step", stop_in_epoch(Classifier.training_step, epoch=1))
        with pytest.raises(Stopped):
            fit(small_net(), SMALL, tmp_path, progress=False)
    with pytest.raises(BadInput, match="holds an interrupted training, --resume goes on with it"):
        fit(small_net(), SMALL, tmp_path, progress=False)
    assert fit(small_net(), SMALL, tmp_path, resume=True, progress=False).epochs == 2
    assert fit(small_net(), SMALL, tmp_path, progress=False).epochs == 2


def test_held_out_images_must_suit_the_network_and_have_a_loss(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"refuses an image of 3x24x24, data\.val_px 24"):
        fit(nn.Sequential(nn.Flatten(), nn.Linear(768, 10)), replace(SMALL, data=replace(SMALL.data, val_px=24)), tmp_path, progress=False)

    class Blind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_net()

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(images)
            return out if self.training else out * float("nan")

    with pytest.raises(BadInput, match="diverged, epoch 1, the loss on held-out images is nan"):
        fit(Blind(), SMALL, tmp_path, progress=False)
    assert not (tmp_path / "resume.safetensors").exists()


@pytest.mark.parametrize("text", ["[" * 3000, "seed: " + "9" * 5000], ids=["deep", "long"])
def test_a_hostile_recipe_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(BrokenFile, match=r"bad\.yaml, not YAML"):
        load_recipe(write(tmp_path / "bad.yaml", text))


@pytest.mark.parametrize("key", ["optimizer_states", "callbacks", "loops", "pytorch-lightning_version"])
def test_a_state_that_lacks_a_part_is_refused(tmp_path: Path, key: str) -> None:
    recipe = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))
    fit(small_net(), recipe, tmp_path, progress=False)
    state = SafeCheckpoint().load_checkpoint(tmp_path / "resume.safetensors")
    SafeCheckpoint().save_checkpoint({k: v for k, v in state.items() if k != key}, tmp_path / "resume.safetensors")
    with pytest.raises(BrokenFile, match=f"not one of an interrupted training, it holds no {key}"):
        fit(small_net(), recipe, tmp_path, resume=True, progress=False)


def test_ctrl_c_stays_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Classifier, "training_step", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(small_net(), SMALL, tmp_path, progress=True)
    assert signal.getsignal(signal.SIGINT) is before


# The verb


def test_print_config_shows_the_resolved_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command(["train", "digits", "--print_config", "--trainer.max_epochs", "2", "--data.image_px=32"]) == 0
    path = write(tmp_path / "printed.yaml", capsys.readouterr().out)
    assert load_recipe(path) == load_recipe("digits", ["trainer.max_epochs=2", "data.image_px=32"])


def test_the_verb_refuses_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["train", "digits", "--optimizer.lr", "fast", "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("nnstretch: recipe")
    assert "optimizer.lr" in captured.err
    assert captured.err.count("\n") == 1


FACTORY = """
from torch import nn

def make():
    stem = [nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*stem, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10))
"""
QUICK = ["--data.image_px", "16", "--trainer.max_epochs", "1", "--trainer.threads", "1"]


def test_the_verb_trains_resumes_and_starts_from_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = f"{write(tmp_path / 'net.py', FACTORY)}:make"
    words = ["train", "digits", "--model", model, *QUICK, "--json"]
    assert command([*words, "--out", str(tmp_path / "a")]) == 0
    first = json.loads(capsys.readouterr().out)
    assert {"checkpoint", "epochs", "val_accuracy", "images_per_s"} <= first.keys()
    assert command([*words, "--out", str(tmp_path / "a"), "--resume", "--trainer.max_epochs", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["epochs"] == 2
    assert command([*words, "--out", str(tmp_path / "b"), "--weights", first["checkpoint"], "--optimizer.lr", "0"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["history"][0]["train_loss"] < first["history"][0]["train_loss"]


def test_branches_inherit_from_the_weights_that_fit_the_original(tmp_path: Path) -> None:
    model = f"{write(tmp_path / 'net.py', FACTORY)}:make"
    halves = (Branch("cpu", width=4), Branch("dsp", width=4))
    plan = tmp_path / "plan.yaml"
    write_plan(plan, Plan(model, (1, 3, 16, 16), (Segment("input", "2", halves), Segment("2", "output", (Branch("cpu"),)))))
    original = load_model(model)
    with torch.no_grad():
        original[0].weight.add_(1)
    save_weights(original, tmp_path / "original.safetensors")
    distilling = replace(SMALL, loss=Loss(distill=0.5))

    module, teacher = train_verb.networks(distilling, str(plan), None, str(tmp_path / "original.safetensors"))
    assert teacher is not None
    assert same_weights(teacher, original)
    assert any(p.ndim == 4 and float(p.detach().mean()) > 0.5 for p in module.parameters()), "a kernel of the original, moved by 1"
    assert all(mine is not theirs for mine in module.parameters() for theirs in teacher.parameters())

    save_weights(module, tmp_path / "branched.safetensors")
    again, teacher = train_verb.networks(SMALL, str(plan), None, str(tmp_path / "branched.safetensors"))
    assert teacher is None
    assert same_weights(again, module)
    with pytest.raises(BadInput, match=r"no teacher, give --weights of the original"):
        train_verb.networks(distilling, str(plan), None, str(tmp_path / "branched.safetensors"))
