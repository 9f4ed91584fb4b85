"""Study a network in many trials: predicted, measured on this machine, or trained.

Any number of workers may take part.

Optuna proposes plans whose merges concatenate (`nnstretch search` projects, too, so its plan may be
faster). It starts from the best of them that the exact search proves, and says how far its own best
is from their optimum. The same command again goes on where it stopped; run in a second terminal, or
on a second machine with the same --storage URL, it helps. --trials counts the whole study's trials,
whoever ran them.

  nnstretch study torchvision:resnet18 --soc mi9 --processors cpu,dsp --trials 100
  nnstretch study net.py:make --soc mi9 --trials 20 --objective both --epochs 2
  nnstretch study net.py:make --soc mi9 --objective measured --storage sqlite:///study.db --name cut
  nnstretch study capacity MODEL    # how narrow and shallow branches may be: has its own --help

The folder receives study.journal (unless --storage says otherwise), study.json, best.yaml and
artifacts: look at it with optuna-dashboard FOLDER/study.journal --artifact-dir FOLDER/artifacts
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.loaded_model import is_plan, load_model_argument, load_soc_of
from nnstretch.cli.output_path import check_apart, check_folder
from nnstretch.cli.progress import progress
from nnstretch.cli.study.arguments import arguments as arguments
from nnstretch.cli.study.prepare import input_of, recipe_of, worker_of
from nnstretch.cli.study.show import show as show
from nnstretch.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from nnstretch.soc import Soc
    from nnstretch.study.worker import StudyWorker


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data. Raises BadInput when MODEL is a plan."""
    from nnstretch.capture.model_spec import spec_with

    check(args)
    quiet_optuna()
    if not is_plan(args.model):
        args.model = spec_with(args.model, args.input, args.outputs)
    name = args.name or f"{slug(args.model)}-{slug(Path(args.soc).name)}-{args.objective}"
    out = args.out if args.out is not None else Path("studies") / name
    check_folder(out, "--out")
    journal = None if "://" in (args.storage or "") else args.storage
    check_apart(out, out / "study.json", out / "best.yaml", journal)
    refuse_other_study(out, name)
    soc, recipe = load_soc_of(args.soc), recipe_of(args)
    inputs = args.input or (() if is_plan(args.model) else input_of(recipe))
    subject = load_model_argument(args.model, inputs, weights=args.weights)
    if subject.plan is not None:
        raise BadInput(
            f"cannot study {args.model}, it is a plan already, name its network"
            f" {subject.plan.model}"
        )
    with folder_of_study(out):
        worker = worker_of(args, subject, soc, recipe, name, out)
    try:
        with progress("trials") as tick:
            worker.progress = tick
            worker.tell_waiting = partial(tell_waiting, worker.lease_s)
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
        raise UnknownName("no optuna, nnstretch study, pip install 'nnstretch[study]'") from None
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


def refuse_other_study(folder: Path, name: str) -> None:
    """Refuse a folder with the results of another study, which would be replaced.

    Raises BadInput, and BrokenFile where they cannot be read.
    """
    from nnstretch.files.json_text import read_json

    results = folder / "study.json"
    known = read_json(results) if results.exists() else None
    kept = known.get("name") if isinstance(known, dict) else None
    if isinstance(kept, str) and kept != name:
        raise BadInput(
            f"{folder} has the results of study {kept[:120]}, --out, name another folder for {name}"
        )


@contextmanager
def folder_of_study(folder: Path) -> Iterator[None]:
    """Create the study's folder, which goes again where nothing was written into it.

    Raises BadInput when it cannot be written.
    """
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot keep a study in {folder}, {error.strerror or error}, name another folder"
        ) from None
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):  # Something was written: it stays.
                folder.rmdir()
        raise


def save_result(worker: StudyWorker, soc: Soc, model: str, name: str, out: Path) -> dict[str, Any]:
    """Write the result, also as study.json and best.yaml in the study's folder, and return it."""
    from nnstretch.files.atomic import write_text
    from nnstretch.study.result import result_json

    setting = worker.config
    head = {
        "model": model,
        "soc": soc.name,
        "calibrated": soc.calibrated,
        "noisy": soc.noisy,
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
        write_trial_plan(worker, result["best"][0]["trial"], out / "best.yaml")
    return result


def write_trial_plan(worker: StudyWorker, number: int, path: Path) -> None:
    """Write a trial's plan, with what it was predicted to cost and on which chip."""
    from nnstretch.files.plan_yaml import parse_plan, write_plan

    trial = worker.study.get_trials(deepcopy=False)[number]
    plan = parse_plan(trial.user_attrs["plan"], f"trial {number}")
    evaluator = worker.evaluator
    write_plan(path, plan, evaluator.prediction(evaluator.evaluate(plan)))


def tell_waiting(lease_s: float, running: int) -> None:
    """Say on standard error what a worker without a trial of its own waits for."""
    print(
        f"waiting for {running} trials that others began; one that gives no sign for {lease_s:g} s"
        " is run again",
        file=sys.stderr,
    )


def tell_interrupted(result: dict[str, Any]) -> None:
    """Print the best so far on standard error: standard output belongs to a finished study."""
    from nnstretch.cli.console import Terminal

    show(result, Terminal(file=sys.stderr))
