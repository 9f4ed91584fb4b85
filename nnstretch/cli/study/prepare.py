"""The recipe, settings and worker of the study that the arguments ask for."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.cli.arguments import quantity
from nnstretch.cli.loaded_model import LoadedModel
from nnstretch.cli.search.request import default_processors, segment_limits
from nnstretch.cli.study.arguments import EPOCHS, RECIPE, REPEAT
from nnstretch.errors import BadInput
from nnstretch.files.read import file_sha256
from nnstretch.graph import InputShape

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage

    from nnstretch.soc import Soc
    from nnstretch.stretch.search.search_result import SearchResult
    from nnstretch.study.config import StudyConfig
    from nnstretch.study.parameters import PlanSpace
    from nnstretch.study.worker import StudyWorker
    from nnstretch.train.recipe import Recipe


def recipe_of(args: argparse.Namespace) -> Recipe | None:
    """Return the resolved recipe where accuracy is an objective.

    Raises BadInput when the number of epochs is given twice, or options are about what no trial
    does, and what reading the recipe raises.
    """
    if args.objective != "measured" and args.repeat is not None:
        raise BadInput(
            f"--repeat {args.repeat} with --objective {args.objective}, command line, it measures"
            " nothing, --objective measured does"
        )
    if args.objective not in ("accuracy", "both"):
        refuse_training(args)
        return None
    from nnstretch.train import load_recipe
    from nnstretch.train.recipe_loader import split_overrides

    if args.epochs is not None and "trainer.max_epochs" in dict(split_overrides(args.set)):
        raise BadInput(
            f"--epochs is {args.epochs}, command line, --set trainer.max_epochs is given, too,"
            " leave one out"
        )
    epochs = EPOCHS if args.epochs is None else args.epochs
    settings = [f"model={args.model}", f"trainer.max_epochs={epochs}", *args.set]
    recipe = load_recipe(RECIPE if args.recipe is None else args.recipe, settings)
    refuse_unheeded(recipe)
    return recipe


def refuse_training(args: argparse.Namespace) -> None:
    """Refuse options of a training where no trial is trained. Raises BadInput."""
    settings = [("--recipe", args.recipe), ("--epochs", args.epochs)]
    settings += [("--set", setting) for setting in args.set]
    settings += [("--weights", args.weights), ("--no-prune", "" if args.no_prune else None)]
    for option, value in settings:
        if value is not None:
            raise BadInput(
                f"{option}{value and f' {value}'} with --objective {args.objective}, command line,"
                " it trains nothing, --objective accuracy or both does"
            )


def refuse_unheeded(recipe: Recipe) -> None:
    """Refuse recipe settings that trials ignore. Raises BadInput.

    Trials inherit the model's own weights and learn from labels alone.
    """
    from nnstretch.train.recipe_loader import flatten_keys

    fixed = {
        "loss.distill": 0.0,
        "loss.features": 0.0,
        "branched.inherit": "weights",
        "branched.drop": 0.0,
        "start": "own",
    }
    asked = flatten_keys(asdict(recipe))
    for key, only in fixed.items():
        if asked[key] != only:
            raise BadInput(
                f"{key} is {asked[key]}, study, its trials know only {only}, give --set"
                f" {key}={only}"
            )


def input_of(recipe: Recipe | None) -> tuple[InputShape, ...]:
    """Return the input of the recipe's images, NCHW; none without a recipe."""
    if recipe is None:
        return ()
    return (InputShape((1, 3, recipe.data.image_px, recipe.data.image_px)),)


def setting_of(
    args: argparse.Namespace,
    subject: LoadedModel,
    soc: Soc,
    recipe: Recipe | None,
    repeat: int,
) -> StudyConfig:
    """Return everything that the study depends on.

    Raises BadInput when a processor is named twice.
    """
    from nnstretch.files.plan_prediction import graph_sha256
    from nnstretch.predict.load_soc import soc_sha256
    from nnstretch.stretch.search.constraints import NetworkLimits
    from nnstretch.study.config import StudyConfig

    graph = subject.graph
    processors = args.processors or default_processors(soc)
    for processor in processors:
        soc.processor(processor)
    if len(set(processors)) != len(processors):
        raise BadInput(
            f"processors are {', '.join(processors)}, study on {soc.name}, name each once"
        )
    bounds = NetworkLimits(
        quantity(args.min_macs, graph.macs, "--min-macs", 0.0),
        quantity(args.max_macs, graph.macs, "--max-macs", math.inf),
        quantity(args.min_params, graph.params, "--min-params", 0.0),
        min_meetings=args.min_meetings,
    )
    return StudyConfig(
        model=args.model,
        input_shape=graph.inputs[0].spec.shape,
        soc=soc.name,
        processors=processors,
        objective=args.objective,
        limits=segment_limits(args, graph),
        bounds=bounds,
        fallback=args.fallback,
        recipe=asdict(recipe) if recipe is not None else None,
        weights=weights_sha256(args.weights),
        repeat=repeat if args.objective == "measured" else None,
        soc_sha256=soc_sha256(args.soc),
        network_sha256=graph_sha256(graph),
    )


def weights_sha256(file: str | None) -> str | None:
    """Return the hash of a weights file, None without one."""
    return file_sha256(Path(file), "weights") if file else None


def worker_of(
    args: argparse.Namespace,
    subject: LoadedModel,
    soc: Soc,
    recipe: Recipe | None,
    name: str,
    out: Path,
) -> StudyWorker:
    """Return the worker that runs the study's trials."""
    from nnstretch.stretch.cost.cost_model import CostModel
    from nnstretch.study.artifacts import ArtifactWriter
    from nnstretch.study.config import search_optimum
    from nnstretch.study.evaluate import PlanEvaluator
    from nnstretch.study.objective import Objectives
    from nnstretch.study.parameters import PlanSpace
    from nnstretch.study.worker import StudyWorker

    if args.weights:
        from nnstretch.stretch.weights.weights_file import load_weights

        load_weights(subject.module, args.weights)
    repeat = args.repeat or REPEAT
    setting = setting_of(args, subject, soc, recipe, repeat)
    analysis = subject.analysis
    space = PlanSpace(analysis, setting.processors, setting.limits, soc.name)
    where = args.storage or str(out / "study.journal")
    search = partial(search_optimum, setting, analysis, soc, args.warm)
    study, storage = stored_study(args, where, name, setting, space, search)
    cost_model = CostModel(soc, args.fallback)
    evaluator = PlanEvaluator(
        *(analysis, cost_model, setting.processors, setting.limits, setting.bounds),
        soc_sha256=setting.soc_sha256,
    )
    prune = not args.no_prune
    objectives = Objectives(args.objective, subject.module, recipe, repeat, prune=prune)
    artifacts = ArtifactWriter(out / "artifacts", evaluator)
    parts = (study, storage, setting, space, evaluator, objectives)
    return StudyWorker(*parts, args.trials, args.lease_s, artifacts)


def stored_study(
    args: argparse.Namespace,
    where: str,
    name: str,
    setting: StudyConfig,
    space: PlanSpace,
    search: Callable[[], SearchResult | None],
) -> tuple[Study, BaseStorage]:
    """Open a study and its storage, made where they are new; a new study holds the exact optimum.

    It is refused for its bounds before anything of it is written.
    """
    from nnstretch.study.config import lacks_optimum, open_study, store_exact_optimum
    from nnstretch.study.samplers import make_pruner, make_sampler
    from nnstretch.study.storage import has_study, open_storage

    best = None if has_study(where, name) else search()
    storage = open_storage(where)
    sampler = make_sampler(args.sampler, args.seed)
    pruner = make_pruner("none" if args.no_prune else "median")
    study = open_study(storage, name, setting, sampler, pruner)
    if lacks_optimum(study):
        store_exact_optimum(study, space, best or search(), args.warm)
    return study, storage
