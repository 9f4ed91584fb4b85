"""Objectives of a trial: predicted or measured latency, and accuracy after a short training."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from nnstretch.study.evaluate import Evaluation

if TYPE_CHECKING:
    import torch
    from torch import nn

    from nnstretch.stretch.weights.branched_module import StretchedNetwork
    from nnstretch.train.recipe import Recipe

AccuracyCallback = Callable[[int, float], None]
"""Called with epoch (from 1) and held-out accuracy; raises Pruned to stop the training."""
MIN_RIVALS = 4
"""Number of other trials below which none is pruned."""
WARM_UP_RUNS = 3


class Pruned(Exception):
    """A training that is not worth going on with."""


@dataclass
class Objectives:
    """Objectives of one study."""

    objective: str
    module: nn.Module
    """The original, with the weights that branches inherit."""
    recipe: Recipe | None = None
    repeat: int = 20
    prune: bool = True
    """Whether a training that is behind may be stopped."""
    weights: dict[tuple[int, ...], Mapping[str, torch.Tensor]] = field(default_factory=dict)
    """Weights of the original, by the input shape of its capture."""

    def measure_objectives(
        self, evaluation: Evaluation, report: AccuracyCallback
    ) -> dict[str, float]:
        """Return objectives by metric: `latency_ms`, `measured_ms`, `accuracy`. Raises Pruned."""
        assert evaluation.trial is not None
        predicted = {"latency_ms": evaluation.trial.latency_us / 1000}
        if self.objective == "measured":
            return {"measured_ms": self.measure_latency_ms(evaluation)}
        if self.objective == "latency":
            return predicted
        accuracy = {"accuracy": self.train_and_validate(evaluation, report)}
        return accuracy if self.objective == "accuracy" else predicted | accuracy

    def build_network(self, evaluation: Evaluation) -> StretchedNetwork:
        """Build the branched network, with the original's weights."""
        import torch

        from nnstretch.capture import trace
        from nnstretch.stretch.weights.branched_module import build_module

        assert evaluation.lowered is not None
        shape = evaluation.plan.input_shape
        if shape not in self.weights:
            self.weights[shape] = trace(
                self.module, torch.zeros(shape), evaluation.plan.model
            ).weights
        return build_module(evaluation.lowered, self.weights[shape])

    def measure_latency_ms(self, evaluation: Evaluation) -> float:
        """Return the median latency of the exported bundle on this machine, over `repeat` runs."""
        from nnstretch.export import export
        from nnstretch.run import Session

        with tempfile.TemporaryDirectory() as folder:
            bundle = Path(folder) / "trial.nns"
            export(self.build_network(evaluation), evaluation.plan, bundle)
            with Session(bundle, clock="real") as session:
                inputs = session.network.random_inputs(seed=0)
                times_us: list[float] = []
                for _ in range(WARM_UP_RUNS + self.repeat):
                    session.run(inputs)
                    times_us.append(session.latency_us)
        return median(times_us[WARM_UP_RUNS:]) / 1000

    def train_and_validate(self, evaluation: Evaluation, report: AccuracyCallback) -> float:
        """Train by the recipe from inherited weights; return the share of held-out images right."""
        from nnstretch.study.short_training import train_with_reports

        assert self.recipe is not None
        with tempfile.TemporaryDirectory() as folder:
            network = self.build_network(evaluation)
            return train_with_reports(network, self.recipe, Path(folder), report)


def should_prune_training(
    accuracy: float, epoch: int, latency_ms: float, rivals: Sequence[tuple[float, Sequence[float]]]
) -> bool:
    """Return whether most trials that are as fast were more accurate at this epoch.

    `rivals` are (latency_ms, accuracy by epoch) of other trials.
    """
    faster = [curve for rival_ms, curve in rivals if rival_ms <= latency_ms]
    accuracies = [curve[epoch - 1] for curve in faster if len(curve) >= epoch]
    return len(accuracies) >= MIN_RIVALS and accuracy < median(accuracies)
