"""The trainings of the exchange experiment, and the journal of what is done."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from equal_latency import ForkSearch
from exchange_networks import narrow
from similarity import branch_similarity
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from nnstretch.capture import load_model
from nnstretch.files.journal import append_rows, decode_row, read_journal, resume_journal
from nnstretch.stretch import read_plan, stretch, write_plan
from nnstretch.stretch.weights.branched_module import StretchedNetwork
from nnstretch.train import fit, initialize_network, load_held_out, load_recipe
from nnstretch.train.recipe import Recipe

HERE = Path(__file__).parent
FORKS = {"resnet": (0, 1, 2, 4, 7), "regnet": (0, 1, 2, 4, 8)}
"""Forks by network; 0 is the original. ResNet-18's limits leave seven at most."""
TITLES = {"resnet": "ResNet-18-like", "regnet": "RegNetX-3.2GF-like"}
DIVISOR = 4
SIMILARITY_IMAGES = 512
IMAGE_PX = 32
KEYS = (
    *("data.name=folder", f"data.image_px={IMAGE_PX}", "data.batch_images=64"),
    *("augment.shift=0.06", "augment.rotate_deg=8.0", "augment.scale=0.1"),
    *("optimizer.name=adamw", "optimizer.lr=0.004", "optimizer.weight_decay=0.02"),
    *("optimizer.warmup=0.2", "loss.label_smoothing=0.1", "trainer.precise_norm_images=1024"),
    *("trainer.tensorboard=false", "trainer.threads=1", "trainer.precision=fp32"),
    *("trainer.channels_last=true", "start=he"),
)
"""The recipe, on top of `shapes`."""


@dataclass(frozen=True)
class Training:
    """What one training reached: a line of the journal."""

    network: str
    forks: int
    seed: int
    epochs: int
    accuracy: float
    """Share of held-out images classified rightly after the last epoch."""
    macs: int
    params: int
    """Of the narrow network at 32 px."""
    seconds: float
    similarity: tuple[float, ...] = ()
    """Of the branches' outputs at each fork."""
    classes: int = 500
    """Characters that are told apart."""


@dataclass(frozen=True)
class Exchange:
    """One experiment: its images, its length, and where its files are."""

    images: Path
    work: Path
    journal: Path
    epochs: int
    classes: int

    def done(self) -> list[Training]:
        """Return the trainings of this length and number of classes in the journal."""
        rows = enumerate(read_journal(self.journal), 1)
        trainings = [decode_row(Training, row, self.journal, number) for number, row in rows]
        asked = self.epochs, self.classes
        return [each for each in trainings if (each.epochs, each.classes) == asked]

    def untrained(self, networks: Sequence[str], seeds: int) -> Iterator[tuple[str, int, int]]:
        """Yield network, forks and seed of what is still to be trained, seed by seed."""
        finished = {(row.network, row.forks, row.seed) for row in self.done()}
        for seed in range(1, seeds + 1):
            for place in range(max(map(len, FORKS.values()))):
                for network in networks:
                    count = FORKS[network][place]
                    if (network, count, seed) not in finished:
                        yield network, count, seed

    def train_missing(self, networks: Sequence[str], seeds: int) -> None:
        """Train what the journal lacks; each training is a line of it as soon as it is done."""
        resume_journal(self.journal)
        for network, count, seed in list(self.untrained(networks, seeds)):
            training = self.train(network, count, seed)
            append_rows(self.journal, [asdict(training)])
            print(training, flush=True)

    def train(self, network: str, count: int, seed: int) -> Training:
        """Train a network from scratch."""
        began = time.perf_counter()
        recipe = self.recipe(network, seed)
        module = initialize_network(self.module(network, count), recipe)
        with TemporaryDirectory(prefix="unfinished-", dir=self.work) as folder:
            accuracy = fit(module, recipe, Path(folder), progress=False).val_accuracy
        similarity: list[float] = []
        if isinstance(module, StretchedNetwork):
            held_out, _ = load_held_out(recipe.data)
            step = max(1, len(held_out) // SIMILARITY_IMAGES)
            similarity = branch_similarity(module, held_out[::step][:SIMILARITY_IMAGES])
        macs, params = work_of(module)
        seconds = round(time.perf_counter() - began, 1)
        return Training(
            network,
            count,
            seed,
            self.epochs,
            accuracy,
            macs,
            params,
            seconds,
            tuple(round(value, 4) for value in similarity),
            self.classes,
        )

    def recipe(self, network: str, seed: int) -> Recipe:
        """Return the recipe of a training."""
        keys = (f"data.root={self.images}", f"seed={seed}", f"trainer.max_epochs={self.epochs}")
        return load_recipe("shapes", (*KEYS, *keys, f"model={self.model(network)}"))

    def model(self, network: str) -> str:
        """Return how the command line names a network."""
        return f"{HERE / 'exchange_networks.py'}:{network}?num_classes={self.classes}"

    def module(self, network: str, count: int) -> nn.Module:
        """Return a narrow network, untrained: the original, or the one of its plan."""
        wide = load_model(self.model(network))
        if count:
            wide = stretch(wide, read_plan(self.plan_path(network, count)), inherit=False)
        return narrow(wide, DIVISOR)

    def plan_path(self, network: str, count: int) -> Path:
        """Return the file of a plan; all of a network are searched together."""
        path = self.work / f"{network}-{count}.yaml"
        if not path.exists():
            counts = [number for number in FORKS[network] if number]
            trials = ForkSearch(self.model(network)).at_equal_latency(counts)
            for number, trial in trials.items():
                write_plan(self.work / f"{network}-{number}.yaml", trial.plan)
        return path


def work_of(module: nn.Module) -> tuple[int, int]:
    """Return MACs of one image and parameters."""
    module.eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.zeros(1, 3, IMAGE_PX, IMAGE_PX))
    params = sum(parameter.numel() for parameter in module.parameters())
    return counter.get_total_flops() // 2, params
