"""A small residual network, a made-up chip, and workers whose trials cost nothing.

Also a worker as a process of its own.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.storages import BaseStorage
from support.toy_network import residual

from nnstretch.kernel import Kernel
from nnstretch.predictor import Estimate
from nnstretch.soc import Link, Processor, Soc
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.constraints import NetworkLimits, SegmentLimits
from nnstretch.study.config import StudyConfig, open_study
from nnstretch.study.evaluate import Evaluation, PlanEvaluator
from nnstretch.study.parameters import PlanSpace
from nnstretch.study.storage import open_storage
from nnstretch.study.worker import StudyWorker

LOOSE = SegmentLimits(
    alpha=2.0, beta=1.5, main_macs=0.2, segment_macs=0.5, min_depth=0.3, min_width=0.2
)
optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


@dataclass(frozen=True)
class Rate:
    """A predictor of one number a processor: MACs per microsecond."""

    macs_per_us: float

    def estimate(self, kernel: Kernel, /) -> Estimate:
        us = (
            1.0
            + kernel.macs / self.macs_per_us
            + (kernel.read_elements + kernel.write_elements) / 50_000
        )
        return Estimate(us, us / 10)


def chip(memory_bytes: int | None = None) -> Soc:
    link = Link(1.0, 0.02)
    cpu = Processor("cpu", "cpu", 1, memory_bytes=memory_bytes)
    gpu, dsp = (Processor(name, name, 2, link, link, sync_us=2.0) for name in ("gpu", "dsp"))
    rates = {"cpu": Rate(20_000.0), "gpu": Rate(15_000.0), "dsp": Rate(24_000.0)}
    return Soc(
        "toy", (cpu, gpu, dsp), "int8", rates, Link(1.0, 0.02), {frozenset({"cpu", "dsp"}): 1.1}
    )


BLOCKS = ((32, 3), (64, 2))
STRETCHER = NetworkAnalysis(residual(BLOCKS))


def memory() -> optuna.storages.BaseStorage:
    return optuna.storages.InMemoryStorage()


def states(study: optuna.Study) -> Counter[str]:
    return Counter(t.state.name for t in study.trials)


@dataclass
class Told:
    """Objectives from a function of the evaluation, in place of training."""

    what: Callable[[Evaluation], dict[str, float]]
    prune: bool = True

    def measure_objectives(
        self, evaluation: Evaluation, report: Callable[[int, float], None]
    ) -> dict[str, float]:
        return self.what(evaluation)


def latency_ms(evaluation: Evaluation) -> dict[str, float]:
    assert evaluation.trial is not None
    return {"latency_ms": evaluation.trial.latency_us / 1000}


def setting(objective: str = "latency", **changed: object) -> StudyConfig:
    fields = {
        "model": "toy",
        "input_shape": (1, 3, 16, 16),
        "soc": "toy",
        "processors": ("cpu", "dsp"),
        "limits": LOOSE,
    }
    return StudyConfig(**{**fields, "objective": objective, "bounds": NetworkLimits(), **changed})  # type: ignore[arg-type]


def worker(
    storage: BaseStorage | str,
    wanted: int,
    what: Callable[[Evaluation], dict[str, float]] = latency_ms,
    lease_s: float = 60.0,
    seed: int = 0,
    objective: str = "latency",
) -> StudyWorker:
    opened = open_storage(storage) if isinstance(storage, str) else storage
    chosen, soc = setting(objective), chip()
    study = open_study(opened, "toy", chosen, optuna.samplers.RandomSampler(seed=seed))
    space = PlanSpace(STRETCHER, chosen.processors, chosen.limits, "toy")
    judge = PlanEvaluator(
        STRETCHER, CostModel(soc), chosen.processors, chosen.limits, chosen.bounds
    )
    return StudyWorker(study, opened, chosen, space, judge, Told(what), wanted, lease_s)  # type: ignore[arg-type]


def sleeper(journal: str, marker: str, wanted: str) -> None:
    """A process that runs two trials, then hangs in the middle of its third."""
    ran: list[Evaluation] = []

    def hang(evaluation: Evaluation) -> dict[str, float]:
        ran.append(evaluation)
        if len(ran) == 3:
            Path(marker).write_text("in mid-trial")
            time.sleep(600)
        time.sleep(0.02)
        return latency_ms(evaluation)

    worker(journal, int(wanted), hang, lease_s=1.5, seed=1).run()


if __name__ == "__main__":
    sleeper(*sys.argv[1:])
