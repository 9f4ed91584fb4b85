"""The networks of the table: zoos, small ones of other kinds, published and searched plans."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from torch import nn

from nnstretch.bench.commands import run_verb
from nnstretch.capture import capture, load_model
from nnstretch.export.cpp.export import placement_of
from nnstretch.export.cpp.translate import Placement, nowhere
from nnstretch.files.plan_yaml import read_plan
from nnstretch.plan import Plan
from nnstretch.stretch import NetworkAnalysis, stretch
from nnstretch.stretch.lowering.two_branch_plan import two_branches
from nnstretch.stretch.published.anynet import check_config, import_plan, match_published_network
from nnstretch.stretch.published.configs_csv import config_from_rows, read_config_rows

SEED = 0
CONFIGS = Path(__file__).parents[2] / "tests/data/nn_stretch/configs.csv"
PUBLISHED = ("R-50-CG", "R-34-DG")
SEARCHED = "torchvision:resnet18"
BRANCHES = "small:branches"


@dataclass(frozen=True)
class Subject:
    """A network that is ready to be translated."""

    module: nn.Module
    example: torch.Tensor
    placement: Placement = nowhere


def lenet() -> tuple[nn.Module, torch.Tensor]:
    """LeNet-5 with 28x28 digits (LeCun et al., 1998)."""
    module = nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)),
    )
    return module, torch.randn(1, 1, 28, 28)


def speech() -> tuple[nn.Module, torch.Tensor]:
    """A 1-D network for words of a second at 8 kHz, after M5 (Dai et al., 2017)."""
    layers: list[nn.Module] = []
    for channels, out, kernel, stride in (
        (1, 32, 80, 4),
        (32, 32, 3, 1),
        (32, 64, 3, 1),
        (64, 64, 3, 1),
    ):
        layers += [nn.Conv1d(channels, out, kernel, stride), nn.BatchNorm1d(out), nn.ReLU()]
        layers += [nn.MaxPool1d(4)]
    head = (nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 35), nn.LogSoftmax(1))
    return nn.Sequential(*layers, *head), torch.randn(1, 1, 8000)


class UNet(nn.Module):
    """Three levels down and up, transposed convolutions, joins (after Ronneberger et al., 2015)."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        pairs = list(zip((3, *widths[:-1]), widths, strict=True))
        self.down = nn.ModuleList([self.block(*pair) for pair in pairs])
        self.up = nn.ModuleList([nn.ConvTranspose2d(out, into, 2, 2) for into, out in pairs[:0:-1]])
        self.join = nn.ModuleList([self.block(2 * into, into) for into, _ in pairs[:0:-1]])
        self.head = nn.Conv2d(widths[0], 2, 1)

    @staticmethod
    def block(into: int, out: int) -> nn.Module:
        """Return two convolutions with batch norm."""
        first = (nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU())
        return nn.Sequential(*first, nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the map of classes."""
        sides: list[torch.Tensor] = []
        for block in self.down:
            x = torch.relu(block(x if not sides else torch.max_pool2d(x, 2)))
            sides.append(x)
        for up, join, side in zip(self.up, self.join, sides[-2::-1], strict=True):
            x = torch.relu(join(torch.cat((up(x), side), 1)))
        return self.head(x)


def u_net() -> tuple[nn.Module, torch.Tensor]:
    """Return the U-Net and an image of 160 pixels."""
    return UNet(), torch.randn(1, 3, 160, 160)


SMALL: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "small:lenet": lenet,
    "small:speech": speech,
    "small:u_net": u_net,
}


def published_plan(name: str) -> tuple[nn.Module, Plan]:
    """Return a published configuration of NN-Stretch as a plan, and its original network."""
    config = config_from_rows(read_config_rows(CONFIGS)[name])
    family = match_published_network(config)
    check_config(config, family)
    module = load_model(family.model)
    graph = capture(module, torch.zeros(1, 3, 224, 224), family.model)
    return module, import_plan(config, NetworkAnalysis(graph), family)


def searched_plan(folder: Path) -> tuple[nn.Module, Plan]:
    """Return the plan that a search finds for the Mi 9's processors, and its original network."""
    path = folder / "plan.yaml"
    chip = ("--soc", "mi9", "--processors", "cpu,dsp")
    run_verb("search", SEARCHED, *chip, "--min-macs", "0.9x", "--out", path)
    return load_model(SEARCHED), read_plan(path)


def two_branch_plan(side: int) -> tuple[nn.Module, Plan]:
    """Return a plan of two branches a stage for ResNet-18 at small images, and its original."""
    module = load_model("torchvision:resnet18")
    graph = capture(module, torch.zeros(1, 3, side, side), "torchvision:resnet18")
    analysis = NetworkAnalysis(graph)
    return module, two_branches(analysis, "torchvision:resnet18", ("a", "b"), (1, 1), 0.5).plan


def planned(name: str, folder: Path) -> tuple[nn.Module, Plan]:
    """Return an original network and the plan of a name."""
    zoo, _, model = name.partition(":")
    if name == BRANCHES:
        return two_branch_plan(64)
    return published_plan(model) if zoo == "published" else searched_plan(folder)


def names(timm_count: int) -> list[str]:
    """Return all names, small networks and plans first."""
    plans = [*(f"published:{name}" for name in PUBLISHED), f"searched:{SEARCHED}"]
    stock = torchvision.models.list_models(module=torchvision.models)
    return [
        *SMALL,
        BRANCHES,
        *plans,
        *(f"torchvision:{name}" for name in stock),
        *timm_names(timm_count),
    ]


def work_gmacs(name: str) -> float:
    """Return roughly how much a network computes: what torchvision says, else by parameters."""
    zoo, _, model = name.partition(":")
    if zoo == "torchvision":
        return float(torchvision.models.get_model_weights(model).DEFAULT.meta["_ops"])
    if zoo != "timm":
        return 0.0
    with torch.device("meta"):
        module, (_, height, width) = stock(zoo, model)
    # Most parameters are used at a sixteenth of the image's height and width.
    return sum(p.numel() for p in module.parameters()) * height * width / 16**2 / 1e9


def timm_names(count: int) -> list[str]:
    """Return networks of timm, one a family, drawn by a seed."""
    families: dict[str, str] = {}
    for name in timm.list_models():
        families.setdefault(timm.models.model_entrypoint(name).__module__, name)
    drawn = random.Random(SEED).sample(sorted(families.values()), min(count, len(families)))
    return [f"timm:{name}" for name in sorted(drawn)]


def load(name: str, folder: Path) -> Subject:
    """Return a network with random weights and norm statistics; `folder` for what it writes."""
    torch.manual_seed(SEED)
    zoo, _, model = name.partition(":")
    if zoo in ("published", "searched") or name == BRANCHES:
        module, plan = planned(name, folder)
        branched = drawn(stretch(module.eval(), plan))
        return Subject(branched, torch.randn(*plan.input_shape), placement_of(plan))
    if name in SMALL:
        module, example = SMALL[name]()
        return Subject(drawn(module), example)
    module, side = stock(zoo, model)
    return Subject(drawn(module), torch.randn(1, *side))


def stock(zoo: str, model: str) -> tuple[nn.Module, tuple[int, ...]]:
    """Return a network of torchvision or timm, and the size of its images."""
    if zoo == "timm":
        module = timm.create_model(model, pretrained=False)
        return module, module.default_cfg.get("input_size", (3, 224, 224))
    options: dict[str, Any] = {"weights": None}
    if model in ("googlenet", "inception_v3"):
        options["init_weights"] = False
    side = 299 if model == "inception_v3" else 224
    return torchvision.models.get_model(model, **options), (3, side, side)


def drawn(module: nn.Module) -> nn.Module:
    """Return a module that computes with norm statistics of its own, and no heads of zeros."""
    for tensor in module.parameters():
        # Heads that start at zero would make every comparison true.
        if float(tensor.detach().abs().max()) == 0.0:
            nn.init.normal_(tensor, std=0.02)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            part.running_mean.uniform_(-0.3, 0.3)
            part.running_var.uniform_(0.5, 1.5)
    return module.eval()
