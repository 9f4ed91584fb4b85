"""The trainings that are compared: networks, ways of retraining, and a journal of what is done."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import nn

from nnstretch.capture import load_model
from nnstretch.cli.loaded_model import load_model_argument
from nnstretch.files.journal import append_rows, resume_journal
from nnstretch.plan import Plan
from nnstretch.predict.load_soc import load_soc
from nnstretch.stretch import read_plan, write_plan
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.constraints import SegmentLimits
from nnstretch.stretch.search.search import search
from nnstretch.train import fit, load_recipe, load_weights, save_weights
from nnstretch.train.branched_start import branched_network, initialize_network
from nnstretch.train.recipe import Recipe

SMALL = Path(__file__).parents[1] / "support" / "small_networks.py"
NETWORKS = {
    "ResNet-18": "torchvision:resnet18",
    "RegNetX-400MF-like": f"{SMALL}:regnet",
    "EfficientNet-B0-like": f"{SMALL}:efficientnet",
}
TEAMS = (("cpu", "dsp"), ("cpu", "gpu", "dsp"))
CHANNELS_LAST = frozenset({"RegNetX-400MF-like", "EfficientNet-B0-like"})
"""Networks of grouped convolutions train 1.25 and 1.9 times as fast in this layout on a CPU."""
CLASSES = {"digits": 10, "shapes": 60}
MIN_MACS, MAX_MACS = 0.85, 1.0
COMMON = (
    *("data.image_px=32", "data.batch_images=32", "optimizer.name=adamw", "optimizer.lr=0.003"),
    *("optimizer.weight_decay=0.02", "trainer.precise_norm_images=1024"),
    *("trainer.tensorboard=false", "trainer.threads=1", "trainer.precision=fp32"),
    "start=zero_residual",
)
"""What every training shares, beyond the task's recipe.

Few steps want AdamW, and running statistics lag behind.
"""


@dataclass(frozen=True)
class Way:
    """How a branched network is trained."""

    name: str
    inherit: str = "rescaled"
    distill: float = 0.0
    features: float = 0.0
    drop: float = 0.0
    more: tuple[str, ...] = ()
    """Further keys of the recipe, as KEY=VALUE."""

    @property
    def keys(self) -> tuple[str, ...]:
        branched = (f"branched.inherit={self.inherit}", f"branched.drop={self.drop}")
        return (
            f"loss.distill={self.distill}",
            f"loss.features={self.features}",
            *branched,
            *self.more,
        )


SCRATCH = Way("from scratch", inherit="none")
BOTH = Way("inherited, distilled", distill=0.7, features=1.0)
PARTS = (
    SCRATCH,
    Way("inherited weights", inherit="weights"),
    Way("+ rescaled at the meeting points"),
    Way("+ distilled: logits", distill=0.7),
    BOTH,
    Way("+ branch drop-out 0.1", distill=0.7, features=1.0, drop=0.1),
)
"""One part after the other; the last but one is what the claims are made with."""


@dataclass(frozen=True)
class Run:
    """One training."""

    network: str
    team: str
    """Processors with `+` between them; empty for the original."""
    way: str
    epochs: int
    seed: int

    @property
    def key(self) -> str:
        return json.dumps([self.network, self.team, self.way, self.epochs, self.seed])


@dataclass
class Bench:
    """One task, and what has been measured."""

    task: str
    keys: tuple[str, ...]
    """What all trainings change of the task's recipe.

    With other keys, or another length of the original, runs are kept apart.
    """
    epochs: int
    original_epochs: int
    work: Path
    both: Way = BOTH
    first_split: int | None = None
    """Seed N then splits the images by `data.split_seed` = this + N; else all seeds share the
    recipe's split.
    """
    done: dict[str, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.recipe = load_recipe(self.task, self.keys)
        self.work.mkdir(parents=True, exist_ok=True)
        splits = () if self.first_split is None else (self.first_split,)
        settled = json.dumps([self.keys, self.original_epochs, *splits])
        self.label = f"{self.task}-{sha256(settled.encode()).hexdigest()[:8]}"
        self.journal = self.work / f"{self.label}.jsonl"
        for entry in resume_journal(self.journal):
            self.done[entry["key"]] = entry["numbers"]

    def measured(self, run: Run) -> dict[str, float]:
        """Return what a training reached, from the journal where it is done."""
        if run.key not in self.done:
            began = time.perf_counter()
            numbers = self.train(run) | {"seconds": round(time.perf_counter() - began, 1)}
            append_rows(self.journal, [{"key": run.key, "numbers": numbers}])
            self.done[run.key] = numbers
            print(self.task, run, {k: round(v, 4) for k, v in numbers.items()}, flush=True)
        return self.done[run.key]

    def recipe_of(self, run: Run) -> Recipe:
        way = next((way for way in (self.both, *PARTS) if way.name == run.way), None)
        keys = [*self.keys]
        if self.first_split is not None:
            keys.append(f"data.split_seed={self.first_split + run.seed}")
        recipe = load_recipe(self.task, (*keys, *(way.keys if way else ())))
        trainer = replace(
            recipe.trainer, max_epochs=run.epochs, channels_last=run.network in CHANNELS_LAST
        )
        return replace(
            recipe,
            model=f"{NETWORKS[run.network]}?num_classes={CLASSES[self.task]}",
            seed=run.seed,
            trainer=trainer,
        )

    def train(self, run: Run) -> dict[str, float]:
        recipe = self.recipe_of(run)
        original = load_model(recipe.model, run.seed)
        kept = self.work / f"{self.label}-{run.network}-{run.seed}.safetensors"
        if not run.team:
            accuracy = self.fitted(initialize_network(original, recipe), recipe)
            save_weights(original, kept)
            return {"accuracy": accuracy}
        self.measured(replace(run, team="", way="original", epochs=self.original_epochs))
        load_weights(original, kept)
        module = branched_network(original, self.plan(run.network, run.team), recipe)
        return {
            "accuracy": self.fitted(module, recipe, original if recipe.loss.has_teacher else None)
        }

    def fitted(self, module: nn.Module, recipe: Recipe, teacher: nn.Module | None = None) -> float:
        """Return the held-out accuracy after training, in a folder of its own: several networks may
        be trained at once.
        """
        with TemporaryDirectory(prefix="unfinished-", dir=self.work) as folder:
            return fit(module, recipe, Path(folder), teacher=teacher, progress=False).val_accuracy

    def plan(self, network: str, team: str) -> Plan:
        """Return the best plan at 224 px, for images of the task's size."""
        model = f"{NETWORKS[network]}?num_classes={CLASSES[self.task]}"
        path = self.work / f"{self.task}-{network}-{team}.yaml"
        if not path.exists():
            graph, soc = load_model_argument(model).graph, load_soc("mi9")
            bounds = {"min_macs": MIN_MACS * graph.macs, "max_macs": MAX_MACS * graph.macs}
            result = search(
                NetworkAnalysis(graph),
                soc,
                tuple(team.split("+")),
                SegmentLimits(),
                **bounds,
                merges=("concat",),
            )
            write_plan(path, result.plans[0].trial.plan)
        side = self.recipe.data.image_px
        return replace(read_plan(path), input_shape=(1, 3, side, side))


def trainings(
    bench: Bench, networks: Sequence[str], ablated: str, seeds: Sequence[int]
) -> Iterator[Run]:
    """Yield the trainings of the claims, seed by seed, then those of the parts."""
    third = bench.epochs // 3
    for seed, network in product(seeds, networks):
        yield Run(network, "", "original", bench.original_epochs, seed)
        for team in ("+".join(team) for team in TEAMS):
            yield Run(network, team, bench.both.name, third, seed)
            yield Run(network, team, SCRATCH.name, bench.epochs, seed)
    if ablated:
        for seed, way in product(seeds, PARTS):
            yield Run(ablated, "+".join(TEAMS[0]), way.name, third, seed)
