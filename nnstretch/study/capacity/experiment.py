"""The capacity experiment of NN-Stretch on the user's data: least depth and width of branches.

The original and variants with two branches in every stage are trained by one recipe, from scratch
unless weights are given, as the published networks were: inherited weights would favor structures
near the original. All are built by the same code, and a seed means the same batches for all.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from nnstretch.errors import BadInput
from nnstretch.files.journal import only_writer
from nnstretch.files.read import file_sha256
from nnstretch.study.capacity import bounds as rules
from nnstretch.study.capacity.journal import (
    CapacityJournal,
    FinishedTraining,
    make_folder,
    open_journal,
)
from nnstretch.study.capacity.plans import CapacityCandidate, original_candidate, plan_candidates

if TYPE_CHECKING:
    from torch import nn

    from nnstretch.capture.torch_export import CapturedNetwork
    from nnstretch.train.recipe import Recipe

CapacityProgress = Callable[[float, float], object]
"""Called with the number of finished trainings, and of all."""


@dataclass(frozen=True)
class CapacityRequest:
    """A network, a recipe, and the branches to try."""

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
    """The original's weights to start from; None starts everything from scratch."""

    def __post_init__(self) -> None:
        if not 1 <= self.seeds <= 1000:
            raise BadInput(f"seeds is {self.seeds}, capacity study, it must lie between 1 and 1000")
        if not 0 <= self.tolerance <= 1:
            raise BadInput(
                f"tolerance is {100 * self.tolerance:g} points, capacity study, it must lie between"
                " 0 and 100"
            )
        for key in ("distill", "features"):
            if (share := getattr(self.recipe.loss, key)) > 0:
                raise BadInput(
                    f"loss.{key} is {share}, capacity study, the original has no teacher, leave it"
                    " at 0"
                )
        if self.weights is not None and self.recipe.branched.inherit != "weights":
            raise BadInput(
                f"branched.inherit is {self.recipe.branched.inherit}, capacity study, variants take"
                " the weights as they are, leave it at weights, or leave the weights out"
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
    """Share of held-out images for every seed, from 0 to 1."""
    epochs: int
    """Epochs of each training."""
    seconds: float
    """Time of all trainings."""

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
    """Largest loss of accuracy, of tolerance and seed spread, as a share of images."""
    bounds: rules.CapacityBounds
    reused: int
    """Trainings that an earlier run had finished."""
    journal: Path

    def is_accurate(self, row: CapacityRow) -> bool:
        """Return whether a variant is within the margin of the original."""
        return rules.is_within_margin(row.accuracy, self.original.accuracy, self.margin)


def run_capacity_study(
    request: CapacityRequest, progress: CapacityProgress | None = None
) -> CapacityResult:
    """Train the variants that no earlier call has trained, and derive the bounds.

    Finished trainings are kept in `request.out`/capacity.jsonl, an unfinished one by its epochs.
    Raises NoPlan where nothing can be branched, BadInput where the folder keeps another study.
    """
    from nnstretch.stretch import NetworkAnalysis

    captured = capture_original(request)
    analysis = NetworkAnalysis(captured.graph)
    shapes = rules.branch_shapes(request.depths, request.widths)
    original = original_candidate(analysis, request.model)
    candidates = (original, *plan_candidates(analysis, request.model, shapes))
    header = journal_header(request, captured)
    folder = make_folder(Path(request.out))
    with only_writer(folder):
        journal = open_journal(folder, header)
        reused = train_missing(request, captured, candidates, journal, progress)
    return summarize_trainings(request, candidates, journal, reused)


def train_missing(
    request: CapacityRequest,
    captured: CapturedNetwork,
    candidates: Sequence[CapacityCandidate],
    journal: CapacityJournal,
    progress: CapacityProgress | None,
) -> int:
    """Train what the journal lacks; return how many trainings it had."""
    trainings = list(product(candidates, training_seeds(request)))
    missing = [(c, seed) for c, seed in trainings if (c.key, seed) not in journal.trainings]
    reused = len(trainings) - len(missing)
    for number, (candidate, seed) in enumerate(missing):
        if progress is not None:
            progress(reused + number, len(trainings))
        journal.add(train_candidate(candidate, seed, request, captured))
        shutil.rmtree(training_folder(candidate, seed, request), ignore_errors=True)
    return reused


def capture_original(request: CapacityRequest) -> CapturedNetwork:
    """Capture the original at the recipe's image size, with the weights to start from."""
    import torch

    from nnstretch.capture import load_model, trace
    from nnstretch.stretch.weights.weights_file import load_weights, seed_of_weights

    module = load_model(request.model, seed_of_weights(request.weights))
    if request.weights is not None:
        load_weights(module, request.weights)
    side = request.recipe.data.image_px
    return trace(module, torch.zeros(1, 3, side, side), request.model)


def journal_header(request: CapacityRequest, captured: CapturedNetwork) -> dict[str, Any]:
    """Return what trainings must have in common to be compared."""
    from nnstretch.files.plan_prediction import graph_sha256
    from nnstretch.stretch.weights.inheritance import RULE
    from nnstretch.train.recipe_loader import flatten_keys

    header: dict[str, Any] = {
        "model": request.model,
        "start": describe_start(request.weights, request.recipe.start),
        "macs": captured.graph.macs,
        "params": captured.graph.params,
        "network_sha256": graph_sha256(captured.graph),
        "images_sha256": images_sha256(request.recipe),
    }
    if request.weights is not None:
        header["inheritance"] = RULE
    for key, value in flatten_keys(asdict(request.recipe)).items():
        # The number of threads changes times only.
        if key not in ("model", "start", "trainer.threads"):
            header[f"recipe.{key}"] = value
    return header


def images_sha256(recipe: Recipe) -> str:
    """Return the hash of what `train --resume` compares of a recipe's images."""
    from nnstretch.train.data.datamodule import Pictures

    identity = json.dumps(Pictures(recipe).dataset_identity, sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()


def describe_start(weights: Path | None, start: str) -> str:
    """Return in words what trainings start from. Raises UnknownName for unreadable weights."""
    if weights is None:
        return "scratch" if start == "own" else f"scratch, {start}"
    return f"weights {file_sha256(weights, 'weights')}"


def training_seeds(request: CapacityRequest) -> range:
    """Return the seeds of each variant."""
    return range(request.recipe.seed, request.recipe.seed + request.seeds)


def training_folder(candidate: CapacityCandidate, seed: int, request: CapacityRequest) -> Path:
    """Return where the epochs of one training are kept until it is finished."""
    digest = hashlib.sha256(candidate.key.encode()).hexdigest()[:16]
    return Path(request.out) / "unfinished" / f"{digest}-{seed}"


def train_candidate(
    candidate: CapacityCandidate, seed: int, request: CapacityRequest, captured: CapturedNetwork
) -> FinishedTraining:
    """Train one variant with one seed."""
    from nnstretch.train import fit
    from nnstretch.train.branched_start import initialize_network
    from nnstretch.train.training_folder import STATE_FILE

    folder = training_folder(candidate, seed, request)
    # One process: others would each go through the whole study.
    settings = replace(request.recipe.trainer, tensorboard=False, devices=1, nodes=1)
    recipe = replace(request.recipe, seed=seed, trainer=settings)
    module = make_candidate_module(candidate, seed, captured, request.weights is not None)
    if request.weights is None:
        initialize_network(module, recipe)
    resume = (folder / STATE_FILE).is_file()
    result = fit(module, recipe, folder, resume=resume, progress=False)
    seconds = round(sum(epoch.seconds for epoch in result.history), 3)
    return FinishedTraining(candidate.key, seed, result.val_accuracy, result.epochs, seconds)


def make_candidate_module(
    candidate: CapacityCandidate, seed: int, captured: CapturedNetwork, inherit: bool
) -> nn.Module:
    """Build the network, with weights of the original or drawn by the seed."""
    import torch

    from nnstretch.stretch.weights.branched_module import build_module

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_module(candidate.stretched, captured.weights, inherit)


def summarize_trainings(
    request: CapacityRequest,
    candidates: Sequence[CapacityCandidate],
    journal: CapacityJournal,
    reused: int,
) -> CapacityResult:
    """Return rows, margin and bounds from the trainings of a journal, the original's first."""
    rows: list[CapacityRow] = []
    for candidate in candidates:
        runs = [journal.trainings[candidate.key, seed] for seed in training_seeds(request)]
        rows.append(make_capacity_row(candidate, runs))
    original, *variants = rows
    margin = rules.accuracy_margin(request.tolerance, [row.spread for row in rows], request.seeds)
    points: list[rules.CapacityPoint] = []
    for row in variants:
        if (shape := row.candidate.shape) is not None:
            holds = rules.is_within_margin(row.accuracy, original.accuracy, margin)
            points.append(rules.CapacityPoint(shape.depth, shape.width, holds))
    bounds = rules.lower_bounds(points)
    return CapacityResult(request, original, tuple(variants), margin, bounds, reused, journal.path)


def make_capacity_row(
    candidate: CapacityCandidate, runs: Sequence[FinishedTraining]
) -> CapacityRow:
    """Return the row of a variant over its trainings."""
    accuracies = tuple(run.accuracy for run in runs)
    return CapacityRow(candidate, accuracies, runs[0].epochs, sum(run.seconds for run in runs))
