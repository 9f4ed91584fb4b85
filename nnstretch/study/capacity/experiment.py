"""The preliminary experiment of NN-Stretch on the user's data.

How shallow and how narrow may a branch be?

Variants of the network, two branches in every stage, are trained by one recipe, as is the original.
From scratch unless weights are given: the question is what a structure can learn, and inheritance
would favour the structures that lie nearest to the original; the published branched networks were
trained from scratch, too. Original and variants are built by the same code, so they start from the
same kind of initialisation; seed n means the same batches and augmentation for all.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from nnstretch.errors import BadInput, UnknownName
from nnstretch.study.capacity import bounds as rules
from nnstretch.study.capacity.journal import CapacityJournal, FinishedTraining, open_journal
from nnstretch.study.capacity.plans import CapacityCandidate, original_candidate, plan_candidates

if TYPE_CHECKING:
    from torch import nn

    from nnstretch.capture.torch_export import CapturedNetwork
    from nnstretch.train.recipe import Recipe

CapacityProgress = Callable[[float, float], object]
"""Told how many trainings are done, of how many."""


@dataclass(frozen=True)
class CapacityRequest:
    """What is asked."""

    model: str
    recipe: Recipe
    out: Path
    """Folder of the journal."""
    depths: tuple[float, ...] = rules.DEFAULT_DEPTHS
    widths: tuple[float, ...] = rules.DEFAULT_WIDTHS
    seeds: int = 2
    tolerance: float = 0.005
    """Share of images that a variant may lose, before the spread of seeds is added."""
    weights: Path | None = None
    """The original's, to start from; None starts everything from scratch."""

    def __post_init__(self) -> None:
        if not 1 <= self.seeds <= 1000:
            raise BadInput(f"seeds is {self.seeds}, capacity study, it must lie between 1 and 1000")
        if not 0 <= self.tolerance <= 1:
            raise BadInput(
                f"tolerance is {100 * self.tolerance:g} points, capacity study, it must lie between"
                " 0 and 100"
            )
        if self.recipe.loss.distill > 0:
            raise BadInput(
                f"loss.distill is {self.recipe.loss.distill}, capacity study, the original has no"
                " teacher, leave it at 0"
            )
        if self.recipe.branched.drop > 0:
            raise BadInput(
                f"branched.drop is {self.recipe.branched.drop}, capacity study, its trainings drop"
                " no branch, leave it at 0"
            )
        rules.branch_shapes(self.depths, self.widths)


@dataclass(frozen=True)
class CapacityRow:
    """A network and its trainings."""

    candidate: CapacityCandidate
    accuracies: tuple[float, ...]
    """Of every seed, from 0 to 1."""
    epochs: int
    """Of each training."""
    seconds: float
    """Of all trainings."""

    @property
    def accuracy(self) -> float:
        """Return the mean accuracy over seeds."""
        return fmean(self.accuracies)

    @property
    def spread(self) -> float:
        """Return the deviation over seeds."""
        return rules.seed_deviation(self.accuracies)


@dataclass(frozen=True)
class CapacityResult:
    """The table, and the bounds that it supports."""

    request: CapacityRequest
    original: CapacityRow
    rows: tuple[CapacityRow, ...]
    margin: float
    """How far below the original's accuracy a variant may be.

    Tolerance and seed spread, as a share of images.
    """
    bounds: rules.CapacityBounds
    reused: int
    """Trainings that were kept from before."""
    journal: Path

    def is_accurate(self, row: CapacityRow) -> bool:
        """Return whether a variant is within the margin of the original."""
        return rules.is_within_margin(row.accuracy, self.original.accuracy, self.margin)


def run_capacity_study(
    wanted: CapacityRequest, progress: CapacityProgress | None = None
) -> CapacityResult:
    """Train what is missing, and judge.

    Every finished training is kept at once in `wanted.out`/capacity.jsonl, an unfinished one by its
    epochs: the same call goes on where this one was interrupted. Raises NoPlan where nothing can be
    branched, BadInput where the folder keeps a study of another model or recipe.
    """
    from nnstretch.stretch import NetworkAnalysis

    captured = capture_original(wanted)
    analysis = NetworkAnalysis(captured.graph)
    shapes = rules.branch_shapes(wanted.depths, wanted.widths)
    wholes = (
        original_candidate(analysis, wanted.model),
        *plan_candidates(analysis, wanted.model, shapes),
    )
    journal = open_journal(Path(wanted.out), journal_header(wanted, captured))
    missing = [
        (whole, seed)
        for whole in wholes
        for seed in training_seeds(wanted)
        if (whole.key, seed) not in journal.trainings
    ]
    total = len(wholes) * wanted.seeds
    for number, (whole, seed) in enumerate(missing):
        if progress is not None:
            progress(total - len(missing) + number, total)
        journal.add(train_candidate(whole, seed, wanted, captured))
        shutil.rmtree(training_folder(whole, seed, wanted), ignore_errors=True)
    return summarize_trainings(wanted, wholes, journal, total - len(missing))


def capture_original(wanted: CapacityRequest) -> CapturedNetwork:
    """Capture the original at the recipe's image size, with the weights to start from."""
    import torch

    from nnstretch.capture import load_model, trace
    from nnstretch.train import load_weights

    module = load_model(wanted.model)
    if wanted.weights is not None:
        load_weights(module, wanted.weights)
    side = wanted.recipe.data.image_px
    return trace(module, torch.zeros(1, 3, side, side), wanted.model)


def journal_header(wanted: CapacityRequest, captured: CapturedNetwork) -> dict[str, Any]:
    """Return what must be the same for trainings to belong together.

    Threads change how long they take, not what they show.
    """
    from nnstretch.train.recipe_loader import flatten_keys

    elsewhere = ("model", "start", "trainer.threads")
    recipe = {
        f"recipe.{key}": value
        for key, value in flatten_keys(asdict(wanted.recipe)).items()
        if key not in elsewhere
    }
    size = {"macs": captured.graph.macs, "params": captured.graph.params}
    return (
        {"model": wanted.model, "start": describe_start(wanted.weights, wanted.recipe.start)}
        | size
        | recipe
    )


def describe_start(weights: Path | None, way: str) -> str:
    """Return what trainings start from, weights by hash.

    Raises BadInput when they cannot be read.
    """
    if weights is None:
        return "scratch" if way == "own" else f"scratch, {way}"
    try:
        return f"weights {hashlib.sha256(weights.read_bytes()).hexdigest()}"
    except OSError as error:
        raise UnknownName(f"no weights {weights}, {error.strerror}") from None


def training_seeds(wanted: CapacityRequest) -> range:
    """Return the seeds of each variant."""
    return range(wanted.recipe.seed, wanted.recipe.seed + wanted.seeds)


def training_folder(candidate: CapacityCandidate, seed: int, wanted: CapacityRequest) -> Path:
    """Return where the epochs of one training are kept until it is finished."""
    return (
        Path(wanted.out)
        / "unfinished"
        / f"{hashlib.sha256(candidate.key.encode()).hexdigest()[:16]}-{seed}"
    )


def train_candidate(
    candidate: CapacityCandidate, seed: int, wanted: CapacityRequest, captured: CapturedNetwork
) -> FinishedTraining:
    """Train one variant with one seed."""
    from nnstretch.train import fit
    from nnstretch.train.branched_start import initialize_network
    from nnstretch.train.training_folder import STATE_FILE

    folder = training_folder(candidate, seed, wanted)
    # One process: others would each go through the whole study.
    recipe = replace(
        wanted.recipe,
        seed=seed,
        trainer=replace(wanted.recipe.trainer, tensorboard=False, devices=1, nodes=1),
    )
    module = make_candidate_module(
        candidate, seed, captured if wanted.weights is not None else None
    )
    if wanted.weights is None:
        initialize_network(module, recipe)
    resume = (folder / STATE_FILE).is_file()
    result = fit(module, recipe, folder, resume=resume, progress=False)
    seconds = sum(epoch.seconds for epoch in result.history)
    return FinishedTraining(
        candidate.key, seed, result.val_accuracy, result.epochs, round(seconds, 3)
    )


def make_candidate_module(
    candidate: CapacityCandidate, seed: int, start: CapturedNetwork | None
) -> nn.Module:
    """Return the network, from weights or from the random initialisation that belongs to the
    seed.
    """
    import torch

    from nnstretch.stretch.weights.branched_module import build_module

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_module(candidate.stretched, start.weights if start is not None else None)


def summarize_trainings(
    wanted: CapacityRequest,
    wholes: Sequence[CapacityCandidate],
    journal: CapacityJournal,
    reused: int,
) -> CapacityResult:
    """Return rows, margin and bounds from what the journal holds."""
    seeds = training_seeds(wanted)
    first, *others = [
        make_capacity_row(whole, [journal.trainings[whole.key, seed] for seed in seeds])
        for whole in wholes
    ]
    allowed = rules.accuracy_margin(
        wanted.tolerance, [row.spread for row in (first, *others)], wanted.seeds
    )
    shaped = [
        (row.candidate.shape, rules.is_within_margin(row.accuracy, first.accuracy, allowed))
        for row in others
    ]
    points = [
        rules.CapacityPoint(shape.depth, shape.width, rows_held)
        for shape, rows_held in shaped
        if shape is not None
    ]
    return CapacityResult(
        wanted, first, tuple(others), allowed, rules.lower_bounds(points), reused, journal.path
    )


def make_capacity_row(
    candidate: CapacityCandidate, runs: Sequence[FinishedTraining]
) -> CapacityRow:
    """Return the row of a variant over its trainings."""
    return CapacityRow(
        candidate,
        tuple(run.accuracy for run in runs),
        runs[0].epochs,
        sum(run.seconds for run in runs),
    )
