"""What the verbs have in common.

MODEL, SOC, shapes, quantities and progress on the command line.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.errors import BadInput, BadPlan
from nnstretch.files.plan_yaml import read_predicted_plan

if TYPE_CHECKING:
    from torch import nn

    from nnstretch.capture.torch_export import CapturedNetwork
    from nnstretch.files.plan_prediction import PlanPrediction
    from nnstretch.graph import Graph
    from nnstretch.plan import Plan
    from nnstretch.soc import Soc
    from nnstretch.stretch import LoweredNetwork, NetworkAnalysis
    from nnstretch.stretch.weights.branched_module import StretchedNetwork
    from nnstretch.trial import Trial

MODEL_HELP = (
    "torchvision:NAME, timm:NAME, FILE.py:FACTORY (each may end in ?key=value&...), FILE.pt2,"
    " FILE.onnx, or a plan FILE.yaml"
)
CALIBRATION_IMAGES = 64
SOC_HELP = "a chip: a name under latency_predictors/ (mi9) or a folder of that form"


@dataclass(frozen=True)
class LoadedModel:
    """A network named on the command line; with its plan, if a plan was named."""

    spec: str
    module: nn.Module
    """The original, also where a plan was named."""
    captured: CapturedNetwork
    plan: Plan | None
    predicted: PlanPrediction | None = None
    """What the plan's file remembers of its trial."""

    @property
    def graph(self) -> Graph:
        """Return the captured graph of the original."""
        return self.captured.graph

    @property
    def analysis(self) -> NetworkAnalysis:
        """Return the analysis of the network's structure."""
        from nnstretch.stretch import NetworkAnalysis

        return NetworkAnalysis(self.graph)

    def estimate(self, lowered: LoweredNetwork, soc: Soc, soc_name: str) -> Trial:
        """Predict a lowered plan, also on the processors it may move to.

        What its file remembers is not computed again, unless network, plan or chip have changed.
        """
        from nnstretch.predict.load_soc import soc_sha256
        from nnstretch.stretch.cost.cost_model import estimate_plan
        from nnstretch.stretch.cost.failover_costs import with_alternatives

        if self.predicted is not None:
            trial = self.predicted.trial(lowered.plan, self.graph, soc_sha256(soc_name))
            if trial is not None:
                return trial
        return with_alternatives(estimate_plan(lowered, soc), lowered, soc)

    def build_stretched(self, lowered: LoweredNetwork, weights: str | None) -> StretchedNetwork:
        """Build a lowered plan of this network with a file's weights, or those it starts with.

        A named plan's weights are its own; others are the original's, which it inherits.
        """
        from nnstretch.stretch.weights.branched_module import build_module, stretch
        from nnstretch.train import load_weights

        if weights is None:
            return build_module(lowered, self.captured.weights)
        if self.plan is None:
            load_weights(self.module, weights)
            return stretch(self.module, lowered.plan)  # what was captured had other weights
        module = build_module(lowered)
        load_weights(module, weights)
        return module


def is_plan(spec: str) -> bool:
    """Return whether an argument names a plan file."""
    return spec.endswith((".yaml", ".yml"))


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause the collector while torch is imported and a network captured.

    It would walk their millions of objects again and again: a sixth of the time of `inspect`.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@pause_garbage_collection()
def load_model_argument(spec: str, input_shape: tuple[int, ...] | None = None) -> LoadedModel:
    """Load the network that MODEL names. Raises UnknownName, BrokenFile, BadInput, BadPlan or
    CannotCapture.
    """
    import torch

    from nnstretch.capture import default_input, load_model
    from nnstretch.capture.torch_export import trace

    plan, predicted = read_predicted_plan(spec) if is_plan(spec) else (None, None)
    if plan is not None and is_plan(plan.model):
        raise BadPlan(f"plan {spec} stretches {plan.model}, another plan, it must name a network")
    model = plan.model if plan else spec
    module = load_model(model)
    shape = plan.input_shape if plan else input_shape or default_input(model, module)
    try:
        example = torch.zeros(shape)
    except RuntimeError as error:
        raise BadInput(
            f"input {'x'.join(map(str, shape))} is too large, {spec},"
            f" {str(error).splitlines()[0][:120]}"
        ) from error
    return LoadedModel(spec, module, trace(module, example, model), plan, predicted)


def load_soc_of(name: str) -> Soc:
    """Load a chip by name or folder."""
    from nnstretch.predict import load_soc

    return load_soc(name)


def warn_uncalibrated(result: dict[str, Any], console: Any) -> None:
    """Warn that nobody measured this chip, above every table of it."""
    if result.get("calibrated") is False:
        console.print(
            "[yellow]this chip is not calibrated: numbers derive from public"
            " specifications[/yellow]"
        )


def shape_of(text: str) -> tuple[int, ...]:
    """Parse `1,3,224,224`. Raises ArgumentTypeError when the text is no shape."""
    try:
        shape = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape, write 1,3,224,224") from None
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape, every size must be at least 1")
    return shape


def names_of(text: str) -> tuple[str, ...]:
    """Parse names separated by commas.

    Raises ArgumentTypeError when one is empty or given twice.
    """
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise argparse.ArgumentTypeError("name at least one processor, as in cpu,dsp")
    return names


def quantity(text: str | None, original: float, option: str, otherwise: float) -> float:
    """Parse a limit: `1.6e9` is absolute, `0.885x` a share of the original's. Raises BadInput."""
    if text is None:
        return otherwise
    try:
        value = float(text[:-1]) * original if text.endswith("x") else float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise BadInput(
            f"{option} is {text!r}, command line, write a number or a ratio such as 0.885x"
        )
    return value


def recipe_overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Return the recipe keys that were set on the command line."""
    settings = {key: value for key, value in vars(args).items() if key.startswith("set ")}
    return {k.removeprefix("set "): value for k, value in settings.items() if value is not None}


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the MODEL argument."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)


def add_fallback(parser: argparse.ArgumentParser) -> None:
    """Add --fallback."""
    from nnstretch.stretch.cost.cost_model import FALLBACKS

    parser.add_argument(
        "--fallback",
        choices=FALLBACKS,
        default=None,
        help=(
            "price kernels that were never measured as the nearest kind that was (default: refuse"
            " them)"
        ),
    )


def check_writable(path: str | Path | None, *sources: str | Path | None) -> Path | None:
    """Check that an output path can be written and is none of the command's inputs, before any long
    work. Raises BadInput.
    """
    if path is None:
        return None
    out = Path(path)
    if not out.parent.is_dir():
        raise BadInput(f"cannot write {out}, no folder {out.parent}, create it first")
    if out.is_dir():
        raise BadInput(f"cannot write {out}, it is a folder, name a file")
    if out.exists() and not out.is_file():
        raise BadInput(
            f"cannot write {out}, it is a device or a pipe that a file would take the place of,"
            " name a file"
        )
    if not os.access(out.parent, os.W_OK) or (out.exists() and not os.access(out, os.W_OK)):
        raise BadInput(f"cannot write {out}, no permission")
    for source in sources:
        if source is not None and out.exists() and is_same(out, str(source)):
            raise BadInput(
                f"cannot write {out}, it is the command's own input {source}, name another file"
            )
    return out


def is_same(out: Path, source: str) -> bool:
    """Return whether an input is the file itself, or a factory in it."""
    candidates = (Path(source.partition("?")[0]), Path(source.rpartition(":")[0] or source))
    return any(c.is_file() and out.samefile(c) for c in candidates)


@contextmanager
def progress_stages(ticking: bool = False) -> Iterator[Any]:
    """Show a bar on standard error, where that is a terminal, for work of several stages.

    Yields a function of (what, done, total).

    It is drawn only when it is told something, since a thread that redraws would disturb what is
    measured; `ticking` lets its clock run.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        *([TimeRemainingColumn()] if ticking else []),
    )
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        auto_refresh=ticking,
    ) as bar:
        task = bar.add_task("", total=1)

        def tell(what: str, done: float, total: float) -> None:
            bar.update(task, description=what, completed=done, total=max(total, 1e-9), refresh=True)

        yield tell


@contextmanager
def progress(label: str) -> Iterator[Any]:
    """Show a bar for work of one stage.

    Yields a function of (done, total), further arguments are ignored.
    """
    with progress_stages(ticking=True) as tell:
        tell(label, 0, 1)
        yield lambda done, total, *_: tell(label, done, total)
