"""Does a branched network get the original's accuracy back, and what does each part of branch-aware
training buy?

For every network and seed: the original, trained from scratch; for every set of processors the best
plan of the exact search (at 224 px, trained at the task's size), trained from scratch for as many
epochs; and the same plan inherited and distilled, for a third of them. With --ablate, one network
is retrained for that third with one part after the other. Trainings that are done are kept in
--work, so an interrupted run goes on where it was.

  OMP_NUM_THREADS=1 python scripts/ablate_training.py --task digits --set data.held_out=0.5
  --first-split 10 \\
    --epochs 36 --original-epochs 36 --seeds 5 --ablate ''
  OMP_NUM_THREADS=1 python scripts/ablate_training.py --task shapes
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

import torch
from ablate_runs import (
    BOTH,
    CHANNELS_LAST,
    CLASSES,
    COMMON,
    MAX_MACS,
    MIN_MACS,
    NETWORKS,
    PARTS,
    SCRATCH,
    TEAMS,
    Bench,
    Run,
)

from nnstretch.capture import load_model, trace
from nnstretch.files.atomic import write_text
from nnstretch.stretch.lowering.lower import lower
from nnstretch.train.data import open_dataset


def claims(bench: Bench, networks: Sequence[str], seeds: int) -> Iterator[str]:
    third = bench.epochs // 3
    trained = (
        f"original, {bench.original_epochs} epochs | branched from scratch, {bench.epochs} |"
        f" inherited, distilled, {third}"
    )
    yield f"| network | processors | MACs | {trained} | against the original | against scratch |"
    yield "|" + "---|" * 8
    rows: list[list[list[float]]] = []  # differences by seed: against the original, against scratch
    for network in networks:
        for team in ("+".join(team) for team in TEAMS):
            runs = {
                "original": [
                    Run(network, "", "original", bench.original_epochs, seed)
                    for seed in range(seeds)
                ],
                "scratch": [
                    Run(network, team, SCRATCH.name, bench.epochs, seed) for seed in range(seeds)
                ],
                "both": [Run(network, team, bench.both.name, third, seed) for seed in range(seeds)],
            }
            points = {
                name: [100 * bench.measured(run)["accuracy"] for run in row]
                for name, row in runs.items()
            }
            pairs = [
                zip(points["both"], points[name], strict=True) for name in ("original", "scratch")
            ]
            rows.append(against := [[both - other for both, other in pair] for pair in pairs])
            cells = [
                network,
                team,
                f"{macs_share(bench, network, team):.3f}",
                *(spread(points[name]) for name in points),
            ]
            yield "| " + " | ".join([*cells, *map(with_error, against)]) + " |"
    yield ""
    original, scratch = (
        with_error([mean(row[way][seed] for row in rows) for seed in range(seeds)])
        for way in (0, 1)
    )
    yield f"Mean of the rows: {original} against the original, {scratch} against scratch."


def macs_share(bench: Bench, network: str, team: str) -> float:
    plan = bench.plan(network, team)
    graph = trace(load_model(plan.model), torch.zeros(plan.input_shape), plan.model).graph
    return lower(graph, plan).macs / graph.macs


def spread(points: Sequence[float]) -> str:
    return f"{mean(points):.2f} ± {stdev(points):.2f}" if len(points) > 1 else f"{points[0]:.2f}"


def with_error(differences: Sequence[float]) -> str:
    """Mean of differences by seed, and its standard error.

    A seed's trainings share their images, and often their errors.
    """
    mean_points = f"{round(mean(differences), 2) + 0.0:+.2f}"  # no minus before zero
    return (
        f"{mean_points} ± {stdev(differences) / sqrt(len(differences)):.2f}"
        if len(differences) > 1
        else mean_points
    )


def ablation(bench: Bench, network: str, seeds: int) -> Iterator[str]:
    yield (
        f"| {network}, {'+'.join(TEAMS[0])}, {bench.epochs // 3} epochs | held-out accuracy |"
        " gained |"
    )
    yield "|---|---|---|"
    before = None
    for runs in zip(*(parts(bench, network, seed) for seed in range(seeds)), strict=True):
        points = [100 * bench.measured(run)["accuracy"] for run in runs]
        name = (
            "+ distilled: features at the meeting points"
            if runs[0].way == BOTH.name
            else runs[0].way
        )
        yield (
            f"| {name} | {spread(points)} |"
            f" {'' if before is None else f'{mean(points) - before:+.2f}'} |"
        )
        before = mean(points)


def by_seed(bench: Bench, networks: Sequence[str], seeds: int) -> Iterator[str]:
    """Held-out accuracy of every training of the claims, for whoever wants other means or
    errors.
    """
    yield (
        "| network | processors | training |"
        f" {' | '.join(f'seed {seed}' for seed in range(seeds))} |"
    )
    yield "|" + "---|" * (3 + seeds)
    for network in networks:
        branched = [
            ("+".join(team), way)
            for team in TEAMS
            for way in ((SCRATCH.name, bench.epochs), (bench.both.name, bench.epochs // 3))
        ]
        for team, (way, epochs) in [("", ("original", bench.original_epochs)), *branched]:
            points = [
                100 * bench.measured(Run(network, team, way, epochs, seed))["accuracy"]
                for seed in range(seeds)
            ]
            yield (
                f"| {network} | {team} | {way}, {epochs} epochs |"
                f" {' | '.join(f'{point:.2f}' for point in points)} |"
            )


def page(bench: Bench, args: argparse.Namespace, networks: Sequence[str]) -> str:
    recipe, images = bench.recipe, bench.recipe.data
    own = f"`{' '.join(bench.both.more)}`, " if bench.both.more else ""
    held = len(open_dataset(images).held)
    first = bench.first_split
    own_split = (
        f"Every seed has its own split of the images: seed N that of `data.split_seed={first}+N`."
    )
    split = "All seeds share one split." if first is None else own_split
    command = (
        f"OMP_NUM_THREADS=1 python scripts/ablate_training.py {shlex.join(sys.argv[1:])}".strip()
    )
    lines = [
        (
            "# Accuracy of branched networks:"
            f" {bench.task}{'' if first is None else ', every seed with a split of its own'}"
        ),
        "",
        f"Made by `{command}`.",
        f"{args.seeds} seeds, recipe `{args.task}` with `{' '.join(bench.keys)}`; accuracy on",
        (
            f"{held} held-out images (one is {100 / held:.2f} points) after the last epoch in %,"
            " mean ± standard deviation over"
        ),
        (
            f"seeds. Plans: the best of the exact search on mi9 at 224 px, between {MIN_MACS:g} and"
            f" {MAX_MACS:g} of the original's MACs;"
        ),
        (
            f"MACs in the table are shares at {images.image_px} px. From scratch, original and"
            " branched"
        ),
        (
            "network start from the same distribution and have the same recipe. Inherited and"
            " distilled: weights inherited and rescaled at the"
        ),
        (
            f"meeting points, distilled from the original's logits (weight {BOTH.distill:g}) and"
            " features at the meeting points (weight"
        ),
        (
            f"{BOTH.features:g}), {own}with the same recipe otherwise. Differences are in points,"
            " seed by seed, mean ± standard error (as if"
        ),
        "seeds shared no images).",
        f"Channels last in memory: {', '.join(sorted(CHANNELS_LAST))}. {split}",
        "",
        *claims(bench, networks, args.seeds),
        "",
    ]
    if args.ablate:
        lines += ["## What each part buys", "", *ablation(bench, args.ablate, args.seeds), ""]
    lines += ["## Every training", "", *by_seed(bench, networks, args.seeds), ""]
    told = set(trainings(bench, networks, args.ablate, range(args.seeds)))
    minutes = sum(bench.measured(run)["seconds"] for run in told) / 60
    took = (
        f"{len(told)} trainings took {minutes:.0f} minutes, one thread each. Peak learning rate"
        f" {recipe.optimizer.lr:g}."
    )
    return "\n".join([*lines, took, ""])


def trainings(
    bench: Bench, networks: Sequence[str], ablated: str, seeds: Sequence[int]
) -> Iterator[Run]:
    """Those of the claims, seed by seed, then those of the parts."""
    for seed in seeds:
        for network in networks:
            yield Run(network, "", "original", bench.original_epochs, seed)
            for team in ("+".join(team) for team in TEAMS):
                yield Run(network, team, bench.both.name, bench.epochs // 3, seed)
                yield Run(network, team, SCRATCH.name, bench.epochs, seed)
    yield from (run for seed in seeds for run in parts(bench, ablated, seed))


def parts(bench: Bench, network: str, seed: int) -> Iterator[Run]:
    """One part of branch-aware training after the other; none without a network."""
    if network:
        yield from (
            Run(network, "+".join(TEAMS[0]), way.name, bench.epochs // 3, seed) for way in PARTS
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=CLASSES, default="digits")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a recipe's key, beyond what all tasks share",
    )
    parser.add_argument(
        "--inherited",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="likewise, where inherited and distilled only",
    )
    parser.add_argument("--networks", default=",".join(NETWORKS), help="comma-separated")
    parser.add_argument("--seeds", type=int, default=3)
    own_split = "seed N splits the images by data.split_seed K+N (all seeds share a split)"
    parser.add_argument("--first-split", type=int, metavar="K", help=own_split)
    parser.add_argument(
        "--epochs",
        type=int,
        default=18,
        help="of branched networks from scratch; inherited ones get a third",
    )
    parser.add_argument(
        "--original-epochs",
        type=int,
        default=0,
        help="of the original: what users bring is well trained (twice --epochs)",
    )
    parser.add_argument(
        "--ablate",
        default="ResNet-18",
        help="network that is retrained with one part after the other; '' for none",
    )
    parser.add_argument(
        "--train-only",
        action="store_true",
        help="train, write no page: several may share --work, with other networks or seeds",
    )
    parser.add_argument(
        "--only-seeds", default="", metavar="N[,N...]", help="with --train-only: these of the seeds"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("runs/training"), help="where finished trainings are kept"
    )
    parser.add_argument("--out", type=Path, help="page to write (docs/training_TASK.md)")
    args = parser.parse_args()
    if args.first_split is not None and any(
        key.startswith("data.split_seed=") for key in (*args.set, *args.inherited)
    ):
        parser.error("--first-split and data.split_seed both say how images are split: give one")
    both = replace(BOTH, name=" ".join((BOTH.name, *args.inherited)), more=tuple(args.inherited))
    original_epochs = args.original_epochs or 2 * args.epochs
    bench = Bench(
        args.task,
        (*COMMON, *args.set),
        args.epochs,
        original_epochs,
        args.work,
        both,
        args.first_split,
    )
    only = (
        [int(seed) for seed in args.only_seeds.split(",")]
        if args.train_only and args.only_seeds
        else range(args.seeds)
    )
    for run in trainings(bench, args.networks.split(","), args.ablate, only):
        bench.measured(run)
    if args.train_only:
        return 0
    write_text(
        args.out or Path(f"docs/training_{args.task}.md"),
        page(bench, args, args.networks.split(",")),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
