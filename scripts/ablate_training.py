"""Does a branched network get the original's accuracy back, and what does each part of branch-aware training buy?

For every network and seed: the original, trained from scratch; for every set of processors the best plan of the exact search (at 224 px,
trained at the task's size), trained from scratch for as many epochs; and the same plan inherited and distilled, for a third of them.
With --ablate, one network is retrained for that third with one part after the other. Trainings that are done are kept in --work,
so an interrupted run goes on where it was.

  OMP_NUM_THREADS=1 python scripts/ablate_training.py --task digits --out docs/training_digits.md
  OMP_NUM_THREADS=1 python scripts/ablate_training.py --task shapes --out docs/training_shapes.md
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import sqrt
from pathlib import Path
from statistics import mean, stdev, variance
from tempfile import TemporaryDirectory

import torch
from torch import nn

from nnstretch.capture import load_model, trace
from nnstretch.cli.subjects import load_subject
from nnstretch.files import object_in, whole_lines, write_text
from nnstretch.plan import Plan
from nnstretch.predict.load import load_soc
from nnstretch.stretch import read_plan, write_plan
from nnstretch.stretch.constraints import Limits
from nnstretch.stretch.lower import Stretcher, lower
from nnstretch.stretch.optimum import search
from nnstretch.train import fit, load_recipe, load_weights, save_weights
from nnstretch.train.branching import branched_network, started
from nnstretch.train.data import open_data
from nnstretch.train.recipe import Recipe

NETWORKS = {
    "ResNet-18": "torchvision:resnet18",
    "RegNetX-400MF-like": "scripts/small_networks.py:regnet",
    "EfficientNet-B0-like": "scripts/small_networks.py:efficientnet",
}
TEAMS = (("cpu", "dsp"), ("cpu", "gpu", "dsp"))
CHANNELS_LAST = frozenset({"RegNetX-400MF-like", "EfficientNet-B0-like"})
"""Networks of grouped convolutions, which train 1.25 and 1.9 times as fast in this layout on a CPU."""
CLASSES = {"digits": 10, "shapes": 60}
MIN_MACS, MAX_MACS = 0.85, 1.0
COMMON = (
    *("data.image_px=32", "data.batch_images=32", "optimizer.name=adamw", "optimizer.lr=0.003", "optimizer.weight_decay=0.02"),
    *("trainer.precise_norm_images=1024", "trainer.tensorboard=false", "trainer.threads=1", "trainer.precision=fp32", "start=he"),
)
"""What every training shares, beyond the task's recipe: few steps want AdamW, and running statistics lag behind."""


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
        return f"loss.distill={self.distill}", f"loss.features={self.features}", *branched, *self.more


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
    """What all trainings change of the task's recipe; with other keys, or another length of the original, runs are kept apart."""
    epochs: int
    original_epochs: int
    work: Path
    both: Way = BOTH
    done: dict[str, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.recipe = load_recipe(self.task, self.keys)
        self.work.mkdir(parents=True, exist_ok=True)
        settled = json.dumps([self.keys, self.original_epochs])
        self.label = f"{self.task}-{sha256(settled.encode()).hexdigest()[:8]}"
        self.journal = self.work / f"{self.label}.jsonl"
        for number, line in enumerate(whole_lines(self.journal), 1):
            entry = object_in(line, self.journal, number)
            self.done[entry["key"]] = entry["numbers"]

    def measured(self, run: Run) -> dict[str, float]:
        """Of an earlier run where there is one."""
        if run.key not in self.done:
            began = time.perf_counter()
            numbers = self.train(run) | {"seconds": round(time.perf_counter() - began, 1)}
            with self.journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": run.key, "numbers": numbers}) + "\n")
            self.done[run.key] = numbers
            print(self.task, run, {k: round(v, 4) for k, v in numbers.items()}, flush=True)
        return self.done[run.key]

    def train(self, run: Run) -> dict[str, float]:
        model = f"{NETWORKS[run.network]}?num_classes={CLASSES[self.task]}"
        way = next((way for way in (self.both, *PARTS) if way.name == run.way), None)
        recipe = load_recipe(self.task, (*self.keys, *(way.keys if way else ())))
        trainer = replace(recipe.trainer, max_epochs=run.epochs, channels_last=run.network in CHANNELS_LAST)
        recipe = replace(recipe, model=model, seed=run.seed, trainer=trainer)
        original, kept = load_model(model, run.seed), self.work / f"{self.label}-{run.network}-{run.seed}.safetensors"
        if way is None:
            accuracy = self.fitted(started(original, recipe), recipe)
            save_weights(original, kept)
            return {"accuracy": accuracy}
        self.measured(replace(run, team="", way="original", epochs=self.original_epochs))
        load_weights(original, kept)
        module = branched_network(original, self.plan(run.network, run.team), recipe)
        return {"accuracy": self.fitted(module, recipe, original if recipe.loss.has_teacher else None)}

    def fitted(self, module: nn.Module, recipe: Recipe, teacher: nn.Module | None = None) -> float:
        """Held-out accuracy after training in a folder that nobody else writes to: several networks may be trained at once."""
        with TemporaryDirectory(prefix="unfinished-", dir=self.work) as folder:
            return fit(module, recipe, Path(folder), teacher=teacher, progress=False).val_accuracy

    def plan(self, network: str, team: str) -> Plan:
        """The best plan at 224 px, for images of the task's size."""
        model = f"{NETWORKS[network]}?num_classes={CLASSES[self.task]}"
        path = self.work / f"{self.task}-{network}-{team}.yaml"
        if not path.exists():
            graph, soc = load_subject(model).graph, load_soc("mi9")
            bounds = {"min_macs": MIN_MACS * graph.macs, "max_macs": MAX_MACS * graph.macs}
            found = search(Stretcher(graph), soc, tuple(team.split("+")), Limits(), **bounds, merges=("concat",))
            write_plan(path, found.plans[0].trial.plan)
        side = self.recipe.data.image_px
        return replace(read_plan(path), input_shape=(1, 3, side, side))


def claims(bench: Bench, networks: Sequence[str], seeds: int) -> Iterator[str]:
    third = bench.epochs // 3
    trained = f"original, {bench.original_epochs} epochs | branched from scratch, {bench.epochs} | inherited, distilled, {third}"
    yield f"| network | processors | MACs | {trained} | against the original | against scratch |"
    yield "|" + "---|" * 8
    differences: list[list[float]] = []
    squares = [0.0, 0.0]  # of the standard error of the sum over rows
    for network in networks:
        squares[0] += len(TEAMS) ** 2 * squared_error([100 * run["accuracy"] for run in originals(bench, network, seeds)])
        for team in ("+".join(team) for team in TEAMS):
            rows = {
                "original": originals(bench, network, seeds),
                "scratch": [bench.measured(Run(network, team, SCRATCH.name, bench.epochs, seed)) for seed in range(seeds)],
                "both": [bench.measured(Run(network, team, bench.both.name, third, seed)) for seed in range(seeds)],
            }
            points = {name: [100 * numbers["accuracy"] for numbers in row] for name, row in rows.items()}
            against = [mean(points["both"]) - mean(points[name]) for name in ("original", "scratch")]
            cells = [network, team, f"{macs_share(bench, network, team):.3f}", *(spread(points[name]) for name in points)]
            errors = [standard_error(points["both"], points[name]) for name in ("original", "scratch")]
            cells += [f"{points:+.2f} ± {error:.2f}" for points, error in zip(against, errors, strict=True)]
            differences.append(against)
            alone = [squared_error(points[name]) for name in ("both", "scratch")]
            squares = [squares[0] + alone[0], squares[1] + sum(alone)]
            yield "| " + " | ".join(cells) + " |"
    yield ""
    means = [mean(against[way] for against in differences) for way in (0, 1)]
    original, scratch = (f"{points:+.2f} ± {sqrt(square) / len(differences):.2f}" for points, square in zip(means, squares, strict=True))
    yield f"Mean of the rows: {original} against the original (whose trainings rows share), {scratch} against scratch."


def originals(bench: Bench, network: str, seeds: int) -> list[dict[str, float]]:
    return [bench.measured(Run(network, "", "original", bench.original_epochs, seed)) for seed in range(seeds)]


def macs_share(bench: Bench, network: str, team: str) -> float:
    plan = bench.plan(network, team)
    graph = trace(load_model(plan.model), torch.zeros(plan.input_shape), plan.model).graph
    return lower(graph, plan).macs / graph.macs


def spread(points: Sequence[float]) -> str:
    return f"{mean(points):.2f} ± {stdev(points):.2f}" if len(points) > 1 else f"{points[0]:.2f}"


def squared_error(points: Sequence[float]) -> float:
    """Square of the standard error of a mean over seeds."""
    return variance(points) / len(points) if len(points) > 1 else 0.0


def standard_error(one: Sequence[float], other: Sequence[float]) -> float:
    """Of the difference between two means over seeds (Welch)."""
    return sqrt(squared_error(one) + squared_error(other))


def ablation(bench: Bench, network: str, team: str, seeds: int) -> Iterator[str]:
    third = bench.epochs // 3
    yield f"| {network}, {team}, {third} epochs | held-out accuracy | gained |"
    yield "|---|---|---|"
    before = None
    for way in PARTS:
        points = [100 * bench.measured(Run(network, team, way.name, third, seed))["accuracy"] for seed in range(seeds)]
        name = "+ distilled: features at the meeting points" if way is BOTH else way.name
        yield f"| {name} | {spread(points)} | {'' if before is None else f'{mean(points) - before:+.2f}'} |"
        before = mean(points)


def page(bench: Bench, args: argparse.Namespace, networks: Sequence[str]) -> str:
    recipe, images = bench.recipe, bench.recipe.data
    own = f"`{' '.join(bench.both.more)}`, " if bench.both.more else ""
    held = len(open_data(images).held)
    command = f"OMP_NUM_THREADS=1 python scripts/ablate_training.py {shlex.join(sys.argv[1:])}".strip()
    lines = [
        f"# Accuracy of branched networks: {bench.task}",
        "",
        f"Made by `{command}`.",
        f"{args.seeds} seeds, recipe `{args.task}` with `{' '.join(bench.keys)}`; accuracy on",
        f"{held} held-out images (one is {100 / held:.2f} points) after the last epoch in %, mean ± standard deviation over",
        f"seeds. Plans: the best of the exact search on mi9 at 224 px, between {MIN_MACS:g} and {MAX_MACS:g} of the original's MACs;",
        f"MACs in the table are shares at {images.image_px} px. From scratch, original and branched",
        "network start from the same distribution and have the same recipe. Inherited and distilled: weights inherited and rescaled at the",
        f"meeting points, distilled from the original's logits (weight {BOTH.distill:g}) and features at the meeting points (weight",
        f"{BOTH.features:g}), {own}with the same recipe otherwise. Differences are in points, ± their standard error over seeds.",
        f"Channels last in memory: {', '.join(sorted(CHANNELS_LAST))}.",
        "",
        *claims(bench, networks, args.seeds),
        "",
    ]
    if args.ablate:
        lines += ["## What each part buys", "", *ablation(bench, args.ablate, "+".join(TEAMS[0]), args.seeds), ""]
    minutes = sum(numbers["seconds"] for numbers in bench.done.values()) / 60
    took = f"{len(bench.done)} trainings took {minutes:.0f} minutes, one thread each. Peak learning rate {recipe.optimizer.lr:g}."
    return "\n".join([*lines, took, ""])


def first_trainings(bench: Bench, networks: Sequence[str], seeds: Sequence[int]) -> None:
    """From scratch first: what is inherited from must be there."""
    for seed in seeds:
        for network in networks:
            bench.measured(Run(network, "", "original", bench.original_epochs, seed))
            for team in ("+".join(team) for team in TEAMS):
                bench.measured(Run(network, team, bench.both.name, bench.epochs // 3, seed))
                bench.measured(Run(network, team, SCRATCH.name, bench.epochs, seed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=CLASSES, default="digits")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a recipe's key, beyond what all tasks share")
    parser.add_argument(
        "--inherited", action="append", default=[], metavar="KEY=VALUE", help="likewise, where inherited and distilled only"
    )
    parser.add_argument("--networks", default=",".join(NETWORKS), help="comma-separated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=18, help="of branched networks from scratch; inherited ones get a third")
    parser.add_argument("--original-epochs", type=int, default=0, help="of the original: what users bring is well trained (twice --epochs)")
    parser.add_argument("--ablate", default="ResNet-18", help="network that is retrained with one part after the other; '' for none")
    parser.add_argument("--train-only", action="store_true", help="train, write no page: several may share --work, with other networks or seeds")
    parser.add_argument("--only-seeds", default="", metavar="N[,N...]", help="with --train-only: these of the seeds")
    parser.add_argument("--work", type=Path, default=Path("runs/training"), help="where finished trainings are kept")
    parser.add_argument("--out", type=Path, default=Path("docs/training_digits.md"))
    args = parser.parse_args()
    both = replace(BOTH, name=" ".join((BOTH.name, *args.inherited)), more=tuple(args.inherited))
    original_epochs = args.original_epochs or 2 * args.epochs
    bench = Bench(args.task, (*COMMON, *args.set), args.epochs, original_epochs, args.work, both)
    only = [int(seed) for seed in args.only_seeds.split(",")] if args.train_only and args.only_seeds else range(args.seeds)
    first_trainings(bench, args.networks.split(","), only)
    if args.train_only:
        return 0
    write_text(args.out, page(bench, args, args.networks.split(",")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
