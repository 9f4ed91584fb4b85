"""The parts that recipes turn on: averages, mixing, losses, norms, patience, micro-batches, features, curves, compile."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from trainings import FACTORY, branched_plan, same_weights

from nnstretch.errors import BadInput, BrokenFile
from nnstretch.plan import Branch, Segment
from nnstretch.stretch import stretch
from nnstretch.train import evaluate, fit, load_weights, machine
from nnstretch.train.branching import branched_network
from nnstretch.train.classifier import Classifier, mixer_of
from nnstretch.train.data import InMemory, Pictures, open_data
from nnstretch.train.data.images import Dataset, Images, Unreadable
from nnstretch.train.data.loading import Batches, prepared
from nnstretch.train.data.order import Pick
from nnstretch.train.data.views import held_view, normalised, training_view
from nnstretch.train.descent import follow, make_optimizer
from nnstretch.train.losses import labels_loss
from nnstretch.train.recipe import Augment, Average, Branched, Data, Loss, Optimizer, Recipe, Trainer
from nnstretch.train.records import Epoch, Records, best_of

SMALL = Recipe(
    data=Data(image_px=16, batch_images=64),
    optimizer=Optimizer(lr=0.1),
    trainer=Trainer(max_epochs=2, precision="fp32", threads=1, tensorboard=False),
)


def net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        space: dict[str, object] = {}
        exec(FACTORY, space)
        return space["make"]()  # type: ignore[operator, no-any-return]


# Averages


@given(st.floats(0, 0.99), st.integers(1, 5))
def test_an_average_is_the_weighted_mean_of_all_that_it_followed(decay: float, steps: int) -> None:
    average, moving = nn.BatchNorm2d(2), nn.BatchNorm2d(2)
    expected = average.weight.detach().clone()
    for step in range(steps):
        nn.init.constant_(moving.weight, float(step + 2))
        moving.num_batches_tracked += 1  # type: ignore[operator]
        follow(average, moving, decay)
        expected = decay * expected + (1 - decay) * moving.weight.detach()
    assert torch.allclose(average.weight, expected, atol=1e-5)
    assert int(average.num_batches_tracked) == steps  # type: ignore[arg-type]


def test_what_is_kept_is_the_average_and_it_differs_from_the_weights_that_moved(tmp_path: Path) -> None:
    plain, averaged = net(), net()
    fit(plain, SMALL, tmp_path / "plain", progress=False)
    result = fit(averaged, replace(SMALL, average=Average(decay=0.99)), tmp_path / "averaged", progress=False)
    assert not same_weights(plain, averaged)
    assert result.val_accuracy == pytest.approx(evaluate(averaged, SMALL))
    fresh = net(seed=4)
    load_weights(fresh, result.checkpoint)
    assert same_weights(fresh, averaged)


def test_an_average_that_keeps_nothing_is_the_network(tmp_path: Path) -> None:
    plain, averaged = net(), net()
    fit(plain, SMALL, tmp_path / "plain", progress=False)
    fit(averaged, replace(SMALL, average=Average(decay=1e-12)), tmp_path / "averaged", progress=False)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain.state_dict().values(), averaged.state_dict().values(), strict=True))


# Losses and mixing


@given(st.floats(0, 0.9), st.sampled_from(["softmax", "binary"]))
def test_labels_as_shares_cost_what_labels_as_numbers_cost(smoothing: float, kind: str) -> None:
    scores, labels = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 4, 0])
    loss = Loss(kind=kind, label_smoothing=smoothing)  # type: ignore[arg-type]
    shares = nn.functional.one_hot(labels, 5).float()
    assert torch.allclose(labels_loss(scores, labels, loss), labels_loss(scores, shares, loss), atol=1e-6)


def test_binary_loss_is_zero_for_certain_and_right_scores() -> None:
    labels = torch.tensor([1, 0])
    right = 40 * (2 * nn.functional.one_hot(labels, 3).float() - 1)
    assert float(labels_loss(right, labels, Loss(kind="binary", label_smoothing=0.0))) < 1e-6
    assert float(labels_loss(-right, labels, Loss(kind="binary", label_smoothing=0.0))) > 10


@pytest.mark.parametrize(
    "augment", [Augment(mixup=1.0), Augment(cutmix=1.0), Augment(mixup=1.0, cutmix=1.0)], ids=["mixup", "cutmix", "both"]
)
def test_mixed_labels_are_shares_that_sum_to_one(augment: Augment) -> None:
    torch.manual_seed(0)
    images, labels = mixer_of(augment, 7)(torch.rand(8, 3, 16, 16), torch.arange(8) % 7)
    assert images.shape == (8, 3, 16, 16)
    assert torch.allclose(labels.sum(1), torch.ones(8))
    assert (labels > 0).sum(1).max() == 2


@pytest.mark.parametrize("name", ["sgd", "adamw", "lamb"])
def test_every_optimizer_lowers_the_loss_and_leaves_norms_undecayed(name: str, tmp_path: Path) -> None:
    recipe = replace(SMALL, optimizer=Optimizer(name=name, lr=0.01 if name != "sgd" else 0.1, clip_norm=5.0))  # type: ignore[arg-type]
    history = fit(net(), recipe, tmp_path, progress=False).history
    assert history[-1].train_loss < history[0].train_loss
    groups = make_optimizer(net(), recipe.optimizer).param_groups
    assert sorted(group["weight_decay"] for group in groups) == [0.0, 5e-4]
    assert all(p.ndim > 1 for group in groups if group["weight_decay"] for p in group["params"])
    assert len(make_optimizer(net(), replace(recipe.optimizer, decay_all=True)).param_groups) == 1


# Views


def test_training_views_depend_on_seed_epoch_and_image_and_on_no_neighbour() -> None:
    images = open_data(SMALL.data).train
    data, augment = replace(SMALL.data, image_px=12), Augment(crop_scale=0.5, flip=0.5, randaugment=2)
    batches = Batches(images, training_view(data, augment), 0, "refuse")
    before = torch.random.get_rng_state()
    whole = batches[Pick(1, 0, 0, 4, (5, 6, 7, 8))]
    assert torch.equal(before, torch.random.get_rng_state())
    assert whole.images.shape == (4, 3, 12, 12)
    assert whole.images.dtype == torch.uint8
    assert torch.equal(whole.images[2:], batches[Pick(1, 9, 0, 2, (7, 8))].images)
    assert not torch.equal(whole.images, batches[Pick(2, 0, 0, 4, (5, 6, 7, 8))].images)


def test_held_out_views_take_the_middle() -> None:
    image = torch.zeros(3, 40, 60, dtype=torch.uint8)
    image[:, 10:30, 20:40] = 200
    seen = held_view(Data(image_px=20, val_resize_px=40))(image)
    assert seen.shape == (3, 20, 20)
    assert int(seen.min()) == 200
    whole = held_view(Data(image_px=20))(image)
    assert whole.shape == (3, 20, 20)
    assert int(whole.min()) == 0


def test_normalised_training_images_have_mean_zero_and_deviation_one() -> None:
    dataset = open_data(SMALL.data)
    assert isinstance(dataset.train, InMemory)
    seen = normalised(dataset.train.images, dataset)
    assert abs(float(seen.mean())) < 1e-3
    assert abs(float(seen.std()) - 1) < 1e-3


class Torn:
    """Every third image cannot be read, or those that are named."""

    chunks: tuple[int, ...] = ()

    def __init__(self, images: Images, torn: Collection[int] | None = None) -> None:
        self.images = images
        self.torn = range(0, len(images), 3) if torn is None else torn

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index in self.torn:
            raise Unreadable(f"cannot decode image {index}, torn")
        return self.images[index]

    def digest(self) -> str:
        return self.images.digest()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("corrupt", ["refuse", "skip"])
def test_a_torn_image_ends_training_or_is_skipped_by_name(
    corrupt: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = open_data(SMALL.data)
    torn = Dataset(Torn(good.train), good.held, good.classes, good.mean, good.std)
    monkeypatch.setattr("nnstretch.train.data.loading.open_data", lambda _: torn)
    recipe = replace(
        SMALL, data=replace(SMALL.data, corrupt=corrupt, workers=workers, batch_images=512), trainer=replace(SMALL.trainer, max_epochs=1)
    )
    if corrupt == "refuse":
        with pytest.raises(BadInput, match=r"^cannot decode image \d+, torn$"):
            fit(net(), recipe, tmp_path, progress=False)
        assert "skipped" not in capsys.readouterr().err
        return
    assert fit(net(), recipe, tmp_path, progress=False).epochs == 1
    named = capsys.readouterr().err.splitlines()
    assert len(named) > 200
    assert all(line.startswith("nnstretch: skipped, cannot decode image ") for line in named)
    assert len({*named}) == len(named)


def test_held_out_images_none_of_which_can_be_read_together_are_skipped_and_none_at_all_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = open_data(SMALL.data)
    recipe = replace(SMALL, data=replace(SMALL.data, corrupt="skip"), trainer=replace(SMALL.trainer, max_epochs=1))
    monkeypatch.setattr("nnstretch.train.data.loading.VAL_BATCH_IMAGES", 2)  # 0 and 1; 2 and 3; 4 and 5; ...
    for torn_at, judged in ({0, 1}, len(good.held) - 2), ({*range(len(good.held))}, 0):
        torn = Dataset(good.train, Torn(good.held, torn_at), good.classes, good.mean, good.std)
        monkeypatch.setattr("nnstretch.train.data.loading.open_data", lambda _, torn=torn: torn)
        network = net()
        if not judged:
            with pytest.raises(BadInput, match="no held-out image can be read, data set digits"):
                fit(network, recipe, tmp_path / "none", progress=False)
            with pytest.raises(BadInput, match="no held-out image can be read, data set digits"):
                evaluate(network, recipe)
            continue
        accuracy = fit(network, recipe, tmp_path / "some", progress=False).val_accuracy
        assert accuracy * judged == pytest.approx(round(accuracy * judged), abs=1e-3)
        assert evaluate(network, recipe) == pytest.approx(accuracy)


def test_held_out_images_are_resized_also_where_they_are_stored_at_their_side() -> None:
    data = Data(image_px=16, val_resize_px=20)
    plain, seen = (prepared(good := open_data(d), good.held, range(4), d)[0] for d in (Data(image_px=16), data))
    assert seen.shape == plain.shape
    assert not torch.allclose(seen, plain)


def test_a_torn_held_out_image_is_named_once_and_counts_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = open_data(SMALL.data)
    torn = Dataset(good.train, Torn(good.held), good.classes, good.mean, good.std)
    monkeypatch.setattr("nnstretch.train.data.loading.open_data", lambda _: torn)
    recipe = replace(SMALL, data=replace(SMALL.data, corrupt="skip"))
    network = net()
    accuracy = fit(network, recipe, tmp_path, progress=False).val_accuracy
    assert len(capsys.readouterr().err.splitlines()) == len(range(0, len(good.held), 3))
    whole = [index for index in range(len(good.held)) if index % 3]
    images, labels = prepared(good, good.held, whole, SMALL.data)
    assert accuracy == pytest.approx(float((network(images).argmax(1) == labels).float().mean()))
    assert evaluate(network, recipe) == pytest.approx(accuracy)


def test_workers_deliver_what_the_training_process_would_have_made(tmp_path: Path) -> None:
    recipe = replace(SMALL, augment=Augment(crop_scale=0.5, flip=0.5, shift=0.1), trainer=replace(SMALL.trainer, max_epochs=1))
    alone, helped = net(), net()
    fit(alone, recipe, tmp_path / "alone", progress=False)
    fit(helped, replace(recipe, data=replace(recipe.data, workers=2)), tmp_path / "helped", progress=False)
    assert same_weights(alone, helped)


# The loop


def test_micro_batches_without_norms_take_the_same_steps(tmp_path: Path) -> None:
    def plain() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10))

    one, parts = plain(), plain()
    fit(one, SMALL, tmp_path / "one", progress=False)
    fit(parts, replace(SMALL, trainer=replace(SMALL.trainer, micro_batches=4)), tmp_path / "parts", progress=False)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(one.parameters(), parts.parameters(), strict=True))


def test_patience_ends_training_and_the_best_weights_are_kept_beside_the_last(tmp_path: Path) -> None:
    recipe = replace(SMALL, optimizer=Optimizer(lr=0.0), trainer=replace(SMALL.trainer, max_epochs=9, patience_epochs=2))
    result = fit(net(), recipe, tmp_path, progress=False)
    assert result.epochs < 9
    best = best_of(result.history)
    assert result.epochs - best.epoch == 2
    assert result.best_accuracy == best.val_accuracy
    fresh = net(seed=3)
    load_weights(fresh, result.best)
    assert evaluate(fresh, recipe) == pytest.approx(result.best_accuracy)
    assert fit(net(), recipe, tmp_path, resume=True, progress=False).epochs == result.epochs


def test_the_curve_is_a_table_and_tensorboard_has_it_where_asked(tmp_path: Path) -> None:
    result = fit(net(), replace(SMALL, trainer=replace(SMALL.trainer, tensorboard=True)), tmp_path, progress=False)
    rows = list(csv.DictReader((tmp_path / "curve.csv").open()))
    assert [float(row["val_accuracy"]) for row in rows] == [epoch.val_accuracy for epoch in result.history]
    assert all(float(row["val_top5"]) >= float(row["val_accuracy"]) for row in rows)
    assert list((tmp_path / "logs").glob("events.out.tfevents.*"))


def test_precise_norms_are_those_of_the_training_images(tmp_path: Path) -> None:
    """With a learning rate of zero nothing moves but the statistics: they must be the images' own."""
    recipe = replace(SMALL, optimizer=Optimizer(lr=0.0), trainer=replace(SMALL.trainer, max_epochs=1, precise_norm_images=1437))
    network = net()
    fit(network, recipe, tmp_path, progress=False)
    dataset = open_data(SMALL.data)
    assert isinstance(dataset.train, InMemory)
    with torch.no_grad():
        before = network[0](normalised(dataset.train.images, dataset))  # type: ignore[index]
    assert torch.allclose(network[1].running_mean, before.mean((0, 2, 3)), atol=1e-2)  # type: ignore[index]


def test_a_state_that_is_no_good_never_replaces_a_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of the second epoch is not a number; the state of the first one stays, and can be resumed."""
    recipe, losses = replace(SMALL, trainer=replace(SMALL.trainer, save_every_steps=1)), Classifier.loss
    with monkeypatch.context() as patch:
        patch.setattr(
            Classifier,
            "loss",
            lambda self, *batch: losses(self, *batch) * (float("nan") if self.current_epoch == 1 and self.global_step > 24 else 1),
        )
        with pytest.raises(BadInput, match=r"diverged, step 26 in epoch 2, the loss is not finite"):
            fit(net(), recipe, tmp_path, progress=False)
    network = net(seed=1)
    assert fit(network, recipe, tmp_path, resume=True, progress=False).epochs == 2
    straight = net()
    fit(straight, SMALL, tmp_path / "straight", progress=False)
    assert same_weights(network, straight)


def test_an_epoch_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenFile, match="its epochs are of another version"):
        Records(tmp_path).load_state_dict({"epochs": [{"number": 1}]})


def test_best_is_the_first_of_equals() -> None:
    epochs = [Epoch(n, 1, 1, accuracy, 1, 0, 1, 1) for n, accuracy in enumerate((0.5, 0.9, 0.9, 0.2), 1)]
    assert best_of(tuple(epochs)).epoch == 2


def test_a_compiled_network_trains_to_the_same_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured, but run by PyTorch itself: generating code takes a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    recipe = replace(SMALL, data=replace(SMALL.data, batch_images=512), trainer=replace(SMALL.trainer, max_epochs=1))
    plain = fit(net(), recipe, tmp_path / "plain", progress=False)
    compiled = fit(net(), replace(recipe, trainer=replace(recipe.trainer, compile=True)), tmp_path / "compiled", progress=False)
    assert compiled.history[0].train_loss == pytest.approx(plain.history[0].train_loss, abs=1e-3)


def test_a_compiled_network_is_what_a_teacher_teaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def compiled(network: nn.Module) -> nn.Module:
        def run(images: torch.Tensor) -> torch.Tensor:
            ran.append(len(images))
            return network(images)  # type: ignore[no-any-return]

        return run  # type: ignore[return-value]

    monkeypatch.setattr(torch, "compile", compiled)
    recipe = replace(SMALL, data=replace(SMALL.data, batch_images=512), trainer=replace(SMALL.trainer, max_epochs=1, compile=True))
    fit(net(), replace(recipe, loss=Loss(distill=0.5)), tmp_path, teacher=net(seed=1), progress=False)
    assert ran == [512, 512]
    with pytest.raises(BadInput, match=r"trainer\.compile is true and loss\.features 1\.0, a compiled network shows no meeting points"):
        replace(recipe, loss=Loss(features=1.0))


def test_an_image_is_cropped_in_one_way() -> None:
    with pytest.raises(BadInput, match=r"augment\.pad is 0\.1 and augment\.crop_scale 0\.5"):
        Augment(pad=0.1, crop_scale=0.5)


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_lamb_takes_the_steps_of_its_paper(clip_norm: float) -> None:
    """You et al. 2020, algorithm 2, one step of one weight: the trust ratio makes the step as long as the weight is, times the rate."""
    weight = nn.Parameter(torch.tensor([[3.0, 4.0]]))
    optimizer = make_optimizer(nn.ParameterList([weight]), Optimizer(name="lamb", lr=0.01, weight_decay=1e-9, clip_norm=clip_norm))
    weight.grad = torch.tensor([[30.0, -1e-5]])
    optimizer.step()
    # Adam's first step is the gradient's sign; eps 1e-6 shrinks that of 1e-5 to 10/11, and nobody clipped the gradient before.
    step = torch.tensor([[1.0, -10 / 11]])
    assert torch.allclose(weight.detach(), torch.tensor([[3.0, 4.0]]) - 0.01 * 5 * step / step.norm(), atol=1e-5)


@pytest.mark.parametrize(
    ("environment", "devices", "rank"),
    [
        ({}, 1, 0),
        ({"SLURM_PROCID": "3"}, 1, 0),
        ({"SLURM_PROCID": "3"}, 2, 3),
        ({"LOCAL_RANK": "1"}, 2, 1),
        ({"NODE_RANK": "1", "LOCAL_RANK": "0"}, 2, 1),
        ({"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4", "RANK": "3"}, 1, 3),
    ],
)
def test_one_of_the_processes_that_train_together_speaks(
    environment: dict[str, str], devices: int, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert machine.rank(Trainer(devices=devices, accelerator="cpu")) == rank


# Branches


def test_a_branched_network_learns_from_features_at_its_meeting_points(tmp_path: Path) -> None:
    original = net()
    fit(original, replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=4)), tmp_path / "original", progress=False)
    recipe = replace(SMALL, loss=Loss(distill=0.5, features=1.0), branched=Branched(inherit="rescaled", calibration_images=128, drop=0.1))
    network = branched_network(original, branched_plan(tmp_path), recipe)
    assert [segment.branch_drop for segment in network.segments] == [0.1] * 3
    before = {key: value.clone() for key, value in original.state_dict().items()}
    result = fit(network, recipe, tmp_path / "branched", teacher=original, progress=False)
    assert result.val_accuracy > 0.5
    assert all(torch.equal(before[key], value) for key, value in original.state_dict().items())
    written = json.loads((tmp_path / "branched" / "training.json").read_text())
    assert len(written["history"]) == 2


def test_how_a_branched_network_begins(tmp_path: Path) -> None:
    original, plan = net(), branched_plan(tmp_path)
    nn.init.constant_(original[8].bias, 7.0)  # type: ignore[index]
    heads = {
        inherit: branched_network(original, plan, replace(SMALL, branched=Branched(inherit=inherit, calibration_images=64))).state_dict()  # type: ignore[arg-type]
        for inherit in ("none", "weights")
    }
    of = {inherit: [float(v[0]) for key, v in state.items() if key.endswith("8.bias")] for inherit, state in heads.items()}
    assert of["weights"] == [7.0]
    assert of["none"] != [7.0]


def test_features_need_meeting_points(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"loss\.features is 1\.0, the network has no meeting points"):
        fit(net(), replace(SMALL, loss=Loss(features=1.0)), tmp_path, teacher=net(), progress=False)
    whole = replace(branched_plan(tmp_path), segments=(Segment("input", "output", (Branch("cpu"),)),))
    with pytest.raises(BadInput, match="no meeting points"):
        fit(stretch(net(), whole), replace(SMALL, loss=Loss(features=1.0)), tmp_path, teacher=net(), progress=False)


def test_a_data_module_hands_out_the_share_of_one_process() -> None:
    pictures = Pictures(SMALL)
    assert sum(len(batch) for batch in pictures.val_dataloader()) == 360
    assert {len(batch) for batch in pictures.train_dataloader()} == {64}
