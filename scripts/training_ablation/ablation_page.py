"""The page of the ablation: what is subtracted from what, and what each part buys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import sqrt
from statistics import mean, stdev

import torch
from ablation_runs import (
    BOTH,
    CHANNELS_LAST,
    MAX_MACS,
    MIN_MACS,
    PARTS,
    SCRATCH,
    TEAMS,
    Bench,
    Run,
    trainings,
)

from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_table
from nnstretch.capture import load_model, trace
from nnstretch.stretch.lowering.lower import lower
from nnstretch.train.data import open_dataset


def claims(bench: Bench, networks: Sequence[str], seeds: int) -> list[str]:
    third = bench.epochs // 3
    heads = (
        *("network", "processors", "MACs", f"original, {bench.original_epochs} epochs"),
        *(f"branched from scratch, {bench.epochs}", f"inherited, distilled, {third}"),
        *("against the original", "against scratch"),
    )
    rows = []
    differences: list[list[list[float]]] = []
    """By row, by what is compared (original, scratch), by seed; points."""
    for network, processors in product(networks, TEAMS):
        team = "+".join(processors)
        original = points(bench, seeds, network, "", "original", bench.original_epochs)
        scratch = points(bench, seeds, network, team, SCRATCH.name, bench.epochs)
        both = points(bench, seeds, network, team, bench.both.name, third)
        against = [subtract(both, original), subtract(both, scratch)]
        differences.append(against)
        accuracies = map(spread, (original, scratch, both))
        share = f"{macs_share(bench, network, team):.3f}"
        rows.append([network, team, share, *accuracies, *map(with_error, against)])
    means = []
    for which in (0, 1):
        by_seed = zip(*(row[which] for row in differences), strict=True)
        means.append(with_error([mean(seed) for seed in by_seed]))
    last = f"Mean of the rows: {means[0]} against the original, {means[1]} against scratch."
    return [*markdown_table(heads, rows), "", last]


def points(bench: Bench, seeds: int, network: str, team: str, way: str, epochs: int) -> list[float]:
    """Return the held-out accuracy of each seed, %."""
    runs = [Run(network, team, way, epochs, seed) for seed in range(seeds)]
    return [100 * bench.measured(run)["accuracy"] for run in runs]


def subtract(after: Sequence[float], before: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(after, before, strict=True)]


def macs_share(bench: Bench, network: str, team: str) -> float:
    plan = bench.plan(network, team)
    graph = trace(load_model(plan.model), torch.zeros(plan.input_shape), plan.model).graph
    return lower(graph, plan).macs / graph.macs


def spread(points: Sequence[float]) -> str:
    return f"{mean(points):.2f} ± {stdev(points):.2f}" if len(points) > 1 else f"{points[0]:.2f}"


def with_error(differences: Sequence[float]) -> str:
    """Return the mean of differences by seed and its standard error.

    A seed's trainings share their images, and often their errors.
    """
    mean_points = f"{round(mean(differences), 2) + 0.0:+.2f}"  # no minus before zero
    if len(differences) < 2:
        return mean_points
    return f"{mean_points} ± {stdev(differences) / sqrt(len(differences)):.2f}"


def ablation(bench: Bench, network: str, seeds: int) -> list[str]:
    third = bench.epochs // 3
    heads = (f"{network}, {'+'.join(TEAMS[0])}, {third} epochs", "held-out accuracy", "gained")
    rows = []
    before = None
    for way in PARTS:
        reached = points(bench, seeds, network, "+".join(TEAMS[0]), way.name, third)
        name = "+ distilled: features at the meeting points" if way == BOTH else way.name
        gained = "" if before is None else f"{mean(reached) - before:+.2f}"
        rows.append((name, spread(reached), gained))
        before = mean(reached)
    return markdown_table(heads, rows)


def every_training(bench: Bench, networks: Sequence[str], seeds: int) -> list[str]:
    """Return the accuracy of every training of the claims, for other means or errors."""
    ways = ((SCRATCH.name, bench.epochs), (bench.both.name, bench.epochs // 3))
    branched = [("+".join(team), *way) for team, way in product(TEAMS, ways)]
    cases = [("", "original", bench.original_epochs), *branched]
    rows = []
    for network, (team, way, epochs) in product(networks, cases):
        accuracies = points(bench, seeds, network, team, way, epochs)
        shown = (f"{accuracy:.2f}" for accuracy in accuracies)
        rows.append((network, team, f"{way}, {epochs} epochs", *shown))
    numbers = (f"seed {seed}" for seed in range(seeds))
    return markdown_table(("network", "processors", "training", *numbers), rows)


def page(bench: Bench, networks: Sequence[str], ablated: str, seeds: int) -> str:
    recipe, images = bench.recipe, bench.recipe.data
    more = f"`{' '.join(bench.both.more)}`, " if bench.both.more else ""
    held_out = len(open_dataset(images).held)
    title, split = "", "All seeds share one split."
    if bench.first_split is not None:
        title = ", every seed with a split of its own"
        split = (
            "Every seed has its own split of the images: seed N that of"
            f" `data.split_seed={bench.first_split}+N`."
        )
    head = f"""# Accuracy of branched networks: {bench.task}{title}

Made by `OMP_NUM_THREADS=1 {command_line()}`.
{seeds} seeds, recipe `{bench.task}` with `{" ".join(bench.keys)}`; accuracy on
{held_out} held-out images (one is {100 / held_out:.2f} points) after the last epoch in %, mean ± standard deviation over
seeds. Plans: the best of the exact search on mi9 at 224 px, between {MIN_MACS:g} and {MAX_MACS:g} of the original's MACs;
MACs in the table are shares at {images.image_px} px. From scratch, original and branched
network start from the same distribution and have the same recipe. Inherited and distilled: weights inherited and rescaled at the
meeting points, distilled from the original's logits (weight {BOTH.distill:g}) and features at the meeting points (weight
{BOTH.features:g}), {more}with the same recipe otherwise. Differences are in points, seed by seed, mean ± standard error (as if
seeds shared no images).
Channels last in memory: {", ".join(sorted(CHANNELS_LAST))}. {split}
"""
    lines = [head, *claims(bench, networks, seeds), ""]
    if ablated:
        lines += ["## What each part buys", "", *ablation(bench, ablated, seeds), ""]
    lines += ["## Every training", "", *every_training(bench, networks, seeds), ""]
    told = set(trainings(bench, networks, ablated, range(seeds)))
    minutes = sum(bench.measured(run)["seconds"] for run in told) / 60
    rate = f"Peak learning rate {recipe.optimizer.lr:g}."
    lines.append(f"{len(told)} trainings took {minutes:.0f} minutes, one thread each. {rate}")
    return "\n".join([*lines, ""])
