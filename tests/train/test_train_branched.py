"""Branched networks in training.

What they inherit, what they are compared with, and what is lost.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.trainings import FACTORY, SMALL, UNMOVED, branched_plan, net, same_weights, write
from torch import nn

from nnstretch.capture import load_model
from nnstretch.cli.train import networks as train_verb
from nnstretch.errors import BadInput
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import stretch, write_plan
from nnstretch.stretch.weights.feature_matching import meeting_points
from nnstretch.train import fit, save_weights
from nnstretch.train.branched_start import branched_network, uncaptured_random_modules
from nnstretch.train.recipe import BranchedSettings, LossSettings

STOCHASTIC = """
import torch
from torch import nn
from torch.nn import functional
from torchvision.ops import StochasticDepth

class Called(nn.Module):
    def forward(self, x):
        return functional.dropout(x, 0.1, self.training)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), DROP)
        self.fade = StochasticDepth(CHANCE, "row")
    def forward(self, x):
        return torch.relu(x + self.fade(self.body(x)))

def make():
    stem = [nn.Conv2d(3, 8, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*stem, Block(), Block(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 10))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "drop", ["nn.Dropout(0.1)", "nn.Dropout(0.0)", "nn.Dropout2d(0.1)", "Called()"]
)
@pytest.mark.parametrize("chance", [0.0, 0.3])
def test_what_acts_in_training_only_and_is_lost_in_branches_is_said(
    chance: float, drop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"{write(tmp_path / 'net.py', STOCHASTIC.replace('CHANCE', str(chance)).replace('DROP', drop))}:make"
    halves = (Branch("cpu", width=4), Branch("dsp", width=4))
    whole = (Branch("cpu"),)
    plan = Plan(
        model,
        (1, 3, 16, 16),
        (Segment("input", "2", whole), Segment("2", "3", halves), Segment("3", "output", whole)),
    )
    write_plan(tmp_path / "plan.yaml", plan)
    drawn, original = torch.get_rng_state(), load_model(model)
    before = {key: value.clone() for key, value in original.state_dict().items()}
    module = branched_network(original, plan, replace(SMALL, model=model))
    lost = uncaptured_random_modules(original, module)
    assert lost == (("2.fade", "3.fade") if chance else ())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(value, original.state_dict()[key]) for key, value in before.items())
    train_verb.networks(replace(SMALL, model=model), str(tmp_path / "plan.yaml"), None, aloud=True)
    said = capsys.readouterr().err.splitlines()
    assert (
        said[0] == f"nnstretch: no --weights, branches inherit the weights that {model} starts with"
    )
    assert [
        line.endswith(f" of {model} act in training only and are not in the branched network")
        for line in said[1:]
    ] == [True] * bool(chance)
    module.train()
    assert sum(
        isinstance(layer, (nn.Dropout, nn.Dropout2d)) and layer.p > 0 for layer in module.modules()
    ) == (1 if "0.0" in drop else 4)


def test_drop_out_that_leaves_no_operator_is_said_to_be_lost() -> None:
    layers = nn.Conv2d(3, 4, 1), nn.FeatureAlphaDropout(0.2), nn.Dropout(0.2), nn.Flatten()
    original = nn.Sequential(*layers, nn.Linear(256, 10))
    whole = Segment("input", "output", (Branch("cpu"),))
    module = stretch(original, Plan("net", (1, 3, 8, 8), (whole,)))
    assert uncaptured_random_modules(original, module) == ("1",)


@pytest.mark.parametrize("inherit", ["none", "weights"])
def test_frozen_weights_of_the_original_are_trained_in_branches_and_that_is_said(
    inherit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = branched_plan(tmp_path)
    freeze = "    for layer in stem[:2]:\n        layer.requires_grad_(False)\n    return"
    (tmp_path / "net.py").write_text(FACTORY.replace("    return", freeze))
    write_plan(tmp_path / "plan.yaml", plan)
    recipe = replace(SMALL, model=plan.model, branched=BranchedSettings(inherit=inherit))
    module, _ = train_verb.networks(recipe, str(tmp_path / "plan.yaml"), None, aloud=True)
    assert all(weight.requires_grad for weight in module.parameters())
    told = (
        f"nnstretch: 0.weight and 3 more of {plan.model} take no gradient there, in the branched"
        " network all weights are trained"
    )
    assert (told in capsys.readouterr().err.splitlines()) == (inherit == "weights")


@pytest.mark.slow
def test_branches_inherit_from_the_weights_that_fit_the_original(tmp_path: Path) -> None:
    model = f"{write(tmp_path / 'net.py', FACTORY)}:make"
    halves = (Branch("cpu", width=4), Branch("dsp", width=4))
    plan = tmp_path / "plan.yaml"
    write_plan(
        plan,
        Plan(
            model,
            (1, 3, 16, 16),
            (Segment("input", "2", halves), Segment("2", "output", (Branch("cpu"),))),
        ),
    )
    original = load_model(model)
    with torch.no_grad():
        original[0].weight.add_(1)
    save_weights(original, tmp_path / "original.safetensors")
    distilling = replace(SMALL, model=model, loss=LossSettings(distill=0.5))

    module, teacher = train_verb.networks(
        distilling, str(plan), str(tmp_path / "original.safetensors")
    )
    assert teacher is not None
    assert same_weights(teacher, original)
    assert any(p.ndim == 4 and float(p.detach().mean()) > 0.5 for p in module.parameters()), (
        "a kernel of the original, moved by 1"
    )
    assert all(
        mine is not theirs for mine in module.parameters() for theirs in teacher.parameters()
    )

    save_weights(module, tmp_path / "branched.safetensors")
    again, teacher = train_verb.networks(
        replace(SMALL, model=model), str(plan), str(tmp_path / "branched.safetensors")
    )
    assert teacher is None
    assert same_weights(again, module)
    with pytest.raises(BadInput, match=r"no teacher, give --weights of the original"):
        train_verb.networks(distilling, str(plan), str(tmp_path / "branched.safetensors"))
    anew = replace(SMALL, model=model, branched=BranchedSettings(inherit="none"))
    with pytest.raises(
        BadInput, match=r"original\.safetensors would not be used, branched\.inherit is none"
    ):
        train_verb.networks(anew, str(plan), str(tmp_path / "original.safetensors"))
    assert same_weights(
        train_verb.networks(anew, str(plan), str(tmp_path / "branched.safetensors"))[0], module
    )


@pytest.mark.slow
def test_features_are_compared_with_the_channels_that_were_inherited(tmp_path: Path) -> None:
    """Which channels are the original's most important ones follows from its weights.

    Those of --teacher, where --weights are the heir's.
    """
    model = f"{write(tmp_path / 'net.py', FACTORY)}:make"
    halves, plan, kept = (
        (Branch("cpu", width=4), Branch("dsp", width=4)),
        str(tmp_path / "plan.yaml"),
        str(tmp_path / "original.safetensors"),
    )
    write_plan(
        Path(plan),
        Plan(
            model,
            (1, 3, 16, 16),
            (Segment("input", "2", halves), Segment("2", "output", (Branch("cpu"),))),
        ),
    )
    original = load_model(model)
    with torch.no_grad():
        original[0].weight.mul_(torch.tensor([1.0, 9, 2, 8, 3, 7, 4, 6]).view(-1, 1, 1, 1))
    save_weights(original, kept)
    recipe = replace(
        SMALL,
        model=model,
        loss=LossSettings(features=1.0),
        branched=BranchedSettings(inherit="rescaled", calibration_images=64),
    )
    heir, _ = train_verb.networks(recipe, plan, kept)
    save_weights(heir, tmp_path / "heir.safetensors")
    again, _ = train_verb.networks(recipe, plan, str(tmp_path / "heir.safetensors"), kept)
    other, teacher = train_verb.networks(recipe, plan, None, kept)
    channels = [
        [point.stands_for.tolist() for point in meeting_points(network)]
        for network in (heir, again, other)
    ]  # type: ignore[arg-type]
    assert channels[0] == channels[1]
    assert same_weights(again, heir)
    assert channels[2] != channels[0], "or the next lines show nothing"

    whole = replace(recipe, trainer=replace(recipe.trainer, max_epochs=1))
    fit(heir, whole, tmp_path / "out", teacher=teacher, progress=False)
    with pytest.raises(
        BadInput,
        match="compared with other channels of the original than before, give the same --weights",
    ):
        fit(
            other,
            replace(recipe, trainer=replace(recipe.trainer, max_epochs=2)),
            tmp_path / "out",
            teacher=teacher,
            resume=True,
            progress=False,
        )


@pytest.mark.slow
def test_a_branched_network_learns_from_features_at_its_meeting_points(tmp_path: Path) -> None:
    original = net()
    fit(
        original,
        replace(UNMOVED, trainer=replace(UNMOVED.trainer, max_epochs=4)),
        tmp_path / "original",
        progress=False,
    )
    recipe = replace(
        UNMOVED,
        loss=LossSettings(distill=0.5, features=1.0),
        branched=BranchedSettings(inherit="rescaled", calibration_images=128, drop=0.1),
    )
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
        inherit: branched_network(
            original,
            plan,
            replace(UNMOVED, branched=BranchedSettings(inherit=inherit, calibration_images=64)),
        ).state_dict()  # type: ignore[arg-type]
        for inherit in ("none", "weights")
    }
    of = {
        inherit: [float(v[0]) for key, v in state.items() if key.endswith("8.bias")]
        for inherit, state in heads.items()
    }
    assert of["weights"] == [7.0]
    assert of["none"] != [7.0]


def test_features_need_meeting_points(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"loss\.features is 1\.0, the network has no meeting points"
    ):
        fit(
            net(),
            replace(UNMOVED, loss=LossSettings(features=1.0)),
            tmp_path,
            teacher=net(),
            progress=False,
        )
    whole = replace(
        branched_plan(tmp_path), segments=(Segment("input", "output", (Branch("cpu"),)),)
    )
    with pytest.raises(BadInput, match="no meeting points"):
        fit(
            stretch(net(), whole),
            replace(UNMOVED, loss=LossSettings(features=1.0)),
            tmp_path,
            teacher=net(),
            progress=False,
        )


def test_fit_drops_branches_as_the_recipe_says(tmp_path: Path) -> None:
    plan = branched_plan(tmp_path)
    trained = []
    for drop in (0.0, 0.9):
        network = stretch(load_model(plan.model, seed=0), plan)
        recipe = replace(UNMOVED, branched=BranchedSettings(drop=drop))
        torch.manual_seed(0)
        fit(network, recipe, tmp_path / str(drop), progress=False)
        trained.append(network)
    assert [segment.branch_drop for segment in trained[1].segments] == [0.9] * 3
    assert not same_weights(*trained)
