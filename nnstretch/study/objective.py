"""What a trial is worth.

Its predicted latency, its latency measured here, its accuracy after a short training.
"""

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
"""Epoch, counted from 1, and held-out accuracy; raises Behind to stop the training."""
MIN_RIVALS = 4
"""Fewer say nothing about who is behind."""
WARM_UP_RUNS = 3


class Pruned(Exception):
    """A training is not worth going on with; nobody's error."""


@dataclass
class Objectives:
    """Objectives of one study. `module` is the original, with the weights that branches inherit."""

    objective: str
    module: nn.Module
    recipe: Recipe | None = None
    repeat: int = 20
    prune: bool = True
    """Whether a training that is behind may be stopped."""
    weights: dict[tuple[int, ...], Mapping[str, torch.Tensor]] = field(default_factory=dict)
    """Of the original, by the input shape it was captured at."""

    def measure_objectives(self, verdict: Evaluation, report: AccuracyCallback) -> dict[str, float]:
        """Measure the objectives, by metric: `latency_ms`, `measured_ms`, `accuracy`.

        Raises Behind, and what exporting or training raises.
        """
        assert verdict.trial is not None
        predicted = {"latency_ms": verdict.trial.latency_us / 1000}
        if self.objective == "measured":
            return {"measured_ms": self.measure_latency_ms(verdict)}
        if self.objective == "latency":
            return predicted
        accuracy = {"accuracy": self.train_and_validate(verdict, report)}
        return accuracy if self.objective == "accuracy" else predicted | accuracy

    def build_network(self, verdict: Evaluation) -> StretchedNetwork:
        """Build the branched network, with the original's weights."""
        import torch

        from nnstretch.capture import trace
        from nnstretch.stretch.weights.branched_module import build_module

        assert verdict.lowered is not None
        shape = verdict.plan.input_shape
        if shape not in self.weights:
            self.weights[shape] = trace(self.module, torch.zeros(shape), verdict.plan.model).weights
        return build_module(verdict.lowered, self.weights[shape])

    def measure_latency_ms(self, verdict: Evaluation) -> float:
        """Measure the median over `repeat` runs of the exported bundle on this machine, branches on
        threads, ms.
        """
        from nnstretch.export import export
        from nnstretch.run import Session

        with tempfile.TemporaryDirectory() as folder:
            bundle = Path(folder) / "trial.nns"
            export(self.build_network(verdict), verdict.plan, bundle)
            with Session(bundle, clock="real") as session:
                inputs = session.network.random_inputs(seed=0)
                times_us: list[float] = []
                for _ in range(WARM_UP_RUNS + self.repeat):
                    session.run(inputs)
                    times_us.append(session.latency_us)
        return median(times_us[WARM_UP_RUNS:]) / 1000

    def train_and_validate(self, verdict: Evaluation, report: AccuracyCallback) -> float:
        """Train for the recipe's epochs from inherited weights; return the share of held-out images
        that are right.
        """
        from nnstretch.study.short_training import train_with_reports

        assert self.recipe is not None
        with tempfile.TemporaryDirectory() as folder:
            return train_with_reports(
                self.build_network(verdict), self.recipe, Path(folder), report
            )


def should_prune_training(
    accuracy: float, epoch: int, latency_ms: float, rivals: Sequence[tuple[float, Sequence[float]]]
) -> bool:
    """Return whether a training of two objectives may stop.

    At this epoch, most trials that are as fast were more accurate.

    `rivals` are (latency_ms, accuracy by epoch) of other trials; slower ones say nothing.
    """
    same = [
        curve[epoch - 1]
        for their_ms, curve in rivals
        if their_ms <= latency_ms and len(curve) >= epoch
    ]
    return len(same) >= MIN_RIVALS and accuracy < median(same)
