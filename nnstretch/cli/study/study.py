"""Study a network in many trials: predicted, measured on this machine, or trained.

With any number of workers.

Optuna proposes plans from the space of the exact search, starts from its best ones, and says how
far its own best is from the proven optimum. The same command again goes on where it stopped; run in
a second terminal, or on a second machine with the same --storage URL, it helps. --trials counts the
whole study's trials, whoever ran them.

  nnstretch study torchvision:resnet18 --soc mi9 --processors cpu,dsp --trials 100
  nnstretch study 'torchvision:resnet18?num_classes=10' --soc mi9 --trials 20 --objective both
  --epochs 2
  nnstretch study torchvision:resnet18 --soc mi9 --trials 30 --objective measured --storage
  sqlite:///study.db --name cut
  nnstretch study capacity MODEL                       # how narrow and shallow branches may be: has
                                                       its own --help

The folder receives study.journal (unless --storage says otherwise), study.json, best.yaml and
artifacts: look at it with optuna-dashboard FOLDER/study.journal --artifact-dir FOLDER/artifacts
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.arguments import SOC_HELP, add_fallback, add_model, names_of, quantity, shape_of
from nnstretch.cli.loaded_model import LoadedModel, load_model_argument, load_soc_of
from nnstretch.cli.progress import progress, warn_uncalibrated
from nnstretch.cli.search.search import default_processors
from nnstretch.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from optuna.study import Study

    from nnstretch.soc import Soc
    from nnstretch.study.config import StudyConfig
    from nnstretch.study.worker import StudyWorker
    from nnstretch.train.recipe import Recipe

SUMMARY = "many trials, predicted, measured or trained, with many workers"
OBJECTIVES = ("latency", "measured", "accuracy", "both")
SAMPLERS = ("tpe", "nsga2", "gp", "random")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add_model(parser)
    parser.add_argument("--soc", required=True, help=SOC_HELP)
    parser.add_argument(
        "--processors", type=names_of, default=None, help="default cpu,dsp, or the chip's first two"
    )
    parser.add_argument(
        "--trials",
        type=positive_integer,
        default=100,
        metavar="N",
        help="finished trials of the whole study (default 100)",
    )
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default="latency",
        help="both: predicted latency and accuracy (default latency)",
    )
    parser.add_argument(
        "--storage",
        default=None,
        metavar="URL",
        help="sqlite:///..., mysql://..., grpc://HOST:PORT or a journal FILE",
    )
    parser.add_argument(
        "--name", default=None, help="of the study (default: model, chip and objective)"
    )
    parser.add_argument(
        "--out", type=Path, default=None, metavar="FOLDER", help="default studies/NAME"
    )
    parser.add_argument(
        "--sampler", choices=SAMPLERS, default="tpe", help="who proposes trials (default tpe)"
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="of the sampler; give every worker its own"
    )
    parser.add_argument(
        "--warm",
        type=int,
        default=5,
        metavar="K",
        help="start from the K best plans of the exact search (default 5)",
    )
    parser.add_argument(
        "--input",
        type=shape_of,
        default=None,
        help="input shape, NCHW (default: the recipe's where it trains)",
    )
    add_limits(parser)
    add_fallback(parser)
    parser.add_argument(
        "--repeat",
        type=positive_integer,
        default=20,
        help="runs behind one measured latency (default 20)",
    )
    parser.add_argument(
        "--recipe", default="digits", help="training recipe, for accuracy (default digits)"
    )
    parser.add_argument(
        "--epochs",
        type=positive_integer,
        default=2,
        help="epochs of one trial's training (default 2)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another key of the recipe, dotted",
    )
    parser.add_argument(
        "--weights",
        default=None,
        metavar="CKPT",
        help="the original's weights, which branches inherit",
    )
    parser.add_argument(
        "--no-prune", action="store_true", help="train every trial to its last epoch"
    )
    parser.add_argument(
        "--lease-s",
        type=float,
        default=60.0,
        metavar="S",
        help="run a trial again when its worker is silent for S (default 60)",
    )


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the limits that `search` has."""
    for name, value, what in (
        ("alpha", 0.5, "communication of a segment over its original latency, at most"),
        ("beta", 0.8, "latency of a branch over the original segment's, at most"),
        ("min-depth", 0.3, "share of blocks that a branch keeps, at least"),
        ("min-width", 0.2, "share of channels that a branch keeps, at least"),
    ):
        parser.add_argument(
            f"--{name}", type=float, default=value, help=f"{what} (default {value})"
        )
    for name in ("min-macs", "max-macs", "min-params"):
        parser.add_argument(
            f"--{name}",
            default=None,
            metavar="N|Rx",
            help="of the whole plan, absolute or as 0.885x",
        )


def positive_integer(text: str) -> int:
    """Parse a positive whole number. Raises ArgumentTypeError when it is none."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 10_000_000):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no count, write a whole number of at least 1"
        )
    return int(text)


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data. Raises BadInput when MODEL is a plan."""
    check(args)
    quiet_optuna()
    name = args.name or f"{slug(args.model)}-{slug(Path(args.soc).name)}-{args.objective}"
    out = folder_of(args.out, name)
    soc, recipe = load_soc_of(args.soc), recipe_of(args)
    subject = load_model_argument(args.model, args.input or input_of(recipe))
    if subject.plan is not None:
        raise BadInput(
            f"cannot study {args.model}, it is a plan already, name its network"
            f" {subject.plan.model}"
        )
    worker = worker_of(args, subject, soc, recipe, name, out)
    try:
        with progress("trials") as tick:
            worker.progress = tick
            worker.run()
    except KeyboardInterrupt:
        tell_interrupted(save_result(worker, soc, args.model, name, out))
        raise
    return save_result(worker, soc, args.model, name, out)


def check(args: argparse.Namespace) -> None:
    """Check the arguments. Raises BadInput when they contradict each other."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise UnknownName("no optuna, nnstretch study, install nnstretch[study]") from None
    if args.warm < 0 or not 0.5 <= args.lease_s <= 86_400:
        raise BadInput(
            f"warm is {args.warm} and lease-s {args.lease_s}, study, they must be at least 0 and"
            " 0.5 to 86400"
        )
    if args.name is not None and not re.fullmatch(r"[\w.+-]{1,120}", args.name):
        raise BadInput(f"name is {args.name!r}, study, write letters, digits, and . _ + -")


def quiet_optuna() -> None:
    """Silence Optuna's notes on experimental features."""
    import warnings

    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


def slug(text: str) -> str:
    """Return text as a file name of at most 60 characters."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.")[:60] or "study"


def folder_of(out: Path | None, name: str) -> Path:
    """Create the study's folder. Raises BadInput when it cannot be written."""
    folder = out if out is not None else Path("studies") / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot keep a study in {folder}, {error.strerror or error}, name another folder"
        ) from None
    return folder


def recipe_of(args: argparse.Namespace) -> Recipe | None:
    """Return the resolved recipe where accuracy is an objective. Raises what reading it raises."""
    if args.objective not in ("accuracy", "both"):
        return None
    from nnstretch.train import load_recipe

    recipe = load_recipe(
        args.recipe, [f"model={args.model}", f"trainer.max_epochs={args.epochs}", *args.set]
    )
    refuse_unheeded(recipe)
    return recipe


def refuse_unheeded(recipe: Recipe) -> None:
    """Refuse settings that trials would not heed. Raises BadInput.

    They inherit as `weights` does, of what the model brings, and learn from labels.
    """
    from nnstretch.train.recipe_loader import flatten_keys

    heeded = {
        "loss.distill": 0.0,
        "loss.features": 0.0,
        "branched.inherit": "weights",
        "branched.drop": 0.0,
        "start": "own",
    }
    asked = flatten_keys(asdict(recipe))
    for key, only in heeded.items():
        if asked[key] != only:
            raise BadInput(
                f"{key} is {asked[key]}, study, its trials know only {only}, give --set"
                f" {key}={only}"
            )


def input_of(recipe: Recipe | None) -> tuple[int, ...] | None:
    """Return the input shape of the recipe's images, NCHW, None without a recipe."""
    return (1, 3, recipe.data.image_px, recipe.data.image_px) if recipe is not None else None


def setting_of(
    args: argparse.Namespace, subject: LoadedModel, soc: Soc, recipe: Recipe | None
) -> StudyConfig:
    """Return everything that the study depends on.

    Raises BadInput when a processor is named twice.
    """
    from nnstretch.stretch.search.constraints import NetworkLimits, SegmentLimits
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
    )
    return StudyConfig(
        model=args.model,
        input_shape=graph.inputs[0].spec.shape,
        soc=soc.name,
        processors=processors,
        objective=args.objective,
        limits=SegmentLimits(args.alpha, args.beta, args.min_depth, args.min_width),
        bounds=bounds,
        fallback=args.fallback,
        recipe=asdict(recipe) if recipe is not None else None,
        weights=(
            hashlib.sha256(Path(args.weights).read_bytes()).hexdigest() if args.weights else None
        ),
        repeat=args.repeat if args.objective == "measured" else None,
    )


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
    from nnstretch.study.config import open_study, store_exact_optimum
    from nnstretch.study.evaluate import PlanEvaluator
    from nnstretch.study.objective import Objectives
    from nnstretch.study.parameters import PlanSpace
    from nnstretch.study.samplers import make_pruner, make_sampler
    from nnstretch.study.storage import open_storage
    from nnstretch.study.worker import StudyWorker

    if args.weights:
        from nnstretch.train import load_weights

        load_weights(subject.module, args.weights)
    setting, analysis = setting_of(args, subject, soc, recipe), subject.analysis
    storage = open_storage(args.storage or str(out / "study.journal"))
    study = open_study(
        storage,
        name,
        setting,
        make_sampler(args.sampler, args.seed),
        make_pruner("none" if args.no_prune else "median"),
    )
    space = PlanSpace(analysis, setting.processors, setting.limits, soc.name)
    store_exact_optimum(study, setting, analysis, soc, space, args.warm)
    judge = PlanEvaluator(
        analysis, CostModel(soc, args.fallback), setting.processors, setting.limits, setting.bounds
    )
    worth = Objectives(args.objective, subject.module, recipe, args.repeat, prune=not args.no_prune)
    return StudyWorker(
        study,
        storage,
        setting,
        space,
        judge,
        worth,
        args.trials,
        args.lease_s,
        ArtifactWriter(out / "artifacts", soc),
    )


def save_result(worker: StudyWorker, soc: Soc, model: str, name: str, out: Path) -> dict[str, Any]:
    """Write the result, also as study.json and best.yaml in the study's folder, and return it."""
    from nnstretch.files.atomic import write_text
    from nnstretch.study.result import result_json

    setting = worker.config
    head = {
        "model": model,
        "soc": soc.name,
        "calibrated": soc.calibrated,
        "processors": list(setting.processors),
    }
    result = {
        **head,
        "name": name,
        "objective": setting.objective,
        "folder": str(out),
        **result_json(worker.study, setting.uses_predicted_latency),
    }
    write_text(out / "study.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    if result["best"]:
        write_text(out / "best.yaml", plan_of_trial(worker.study, result["best"][0]["trial"]))
    return result


def plan_of_trial(study: Study, number: int) -> str:
    """Return the text of a trial's plan."""
    return str(study.get_trials(deepcopy=False)[number].user_attrs["plan"])


def tell_interrupted(result: dict[str, Any]) -> None:
    """Print the best so far on standard error: standard output belongs to a finished study."""
    from rich.console import Console

    show(result, Console(file=sys.stderr))


def show(result: dict[str, Any], console: Any) -> None:
    """Print the result for people."""
    from rich.table import Table

    console.print(
        f"[bold]{result['model']}[/bold] on {result['soc']}, study {result['name']} of"
        f" {result['objective']}"
    )
    console.print(
        f"{result['trials']} trials, {result['feasible']} feasible, {result['pruned']} pruned,"
        f" {result['repeated']} run again"
    )
    if result["given_up"]:
        console.print(
            f"[yellow]{result['given_up']} trials were given up: their workers died or failed again"
            " and again[/yellow]"
        )
    table = Table("trial", "predicted ms", "measured ms", "accuracy", "MACs", "parameters")
    for best in result["best"]:
        numbers = [
            f"{best[key]:.3f}" if key in best else "-" for key in ("latency_ms", "measured_ms")
        ]
        accuracy = f"{best['accuracy']:.2%}" if "accuracy" in best else "-"
        table.add_row(
            str(best["trial"]),
            *numbers,
            accuracy,
            f"{best['macs'] / 1e6:.0f} M",
            f"{best['params'] / 1e6:.2f} M",
        )
    console.print(table)
    for segment in result["best"][0]["segments"] if result["best"] else ():
        branches = " | ".join(
            f"{b['processor']} {b.get('depth', '=')} x {b.get('width', '=')}"
            for b in segment["branches"]
        )
        console.print(f"  {segment['start']} -> {segment['end']}  \\[{branches}]")
    if result["gap_to_optimum"] is not None:
        console.print(
            f"{result['gap_to_optimum']:.2%} above the proven optimum of"
            f" {result['optimum']['latency_ms']:.3f} ms"
        )
    warn_uncalibrated(result, console)
    console.print(f"kept in {result['folder']}", soft_wrap=True)
