"""One worker: ask for a trial, judge its plan, tell what it is worth, until the study has all its
trials.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from nnstretch.errors import BadPlan, CannotCapture, Diverged, Mismatch, UnsupportedOp
from nnstretch.files.plan_yaml import plan_text
from nnstretch.study.config import METRICS, StudyConfig
from nnstretch.study.evaluate import BUILDABLE_CONSTRAINT, Evaluation, PlanEvaluator
from nnstretch.study.objective import Objectives, Pruned, should_prune_training
from nnstretch.study.parameters import ParameterValue, PlanSpace, plan_from_parameters
from nnstretch.study.trial_leases import (
    INTERRUPTED_KEY,
    WITHDRAWN_KEY,
    Heartbeat,
    LeaseMonitor,
    can_start_trial,
    finished_trials,
    mark_trial_failed,
    requeue_lost,
    withdrawal_reason,
)

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

    from nnstretch.study.artifacts import ArtifactWriter

StudyProgress = Callable[[int, int], None]
ACCURACY_CURVE_KEY = "accuracy_by_epoch"
INFEASIBLE_PLAN_ERRORS = (BadPlan, CannotCapture, Mismatch, UnsupportedOp)
"""What says that this plan cannot be had, rather than that the study is set up wrongly."""
POLL_S = 0.2


@dataclass
class StudyWorker:
    """Shares a study with any number of others, on this machine or elsewhere."""

    study: Study
    storage: BaseStorage
    config: StudyConfig
    space: PlanSpace
    evaluator: PlanEvaluator
    objectives: Objectives
    target_trials: int
    """Finished trials of the whole study, whoever runs them."""
    lease_s: float = 60.0
    """A trial whose worker gives no sign of life for so long is run again."""
    artifact_writer: ArtifactWriter | None = None
    progress: StudyProgress | None = None
    lease_monitor: LeaseMonitor = field(init=False)

    def __post_init__(self) -> None:
        self.lease_monitor = LeaseMonitor(self.lease_s)

    def run(self) -> None:
        """Run trials. Raises KeyboardInterrupt when interrupted, with the trial in progress
        enqueued again.
        """
        requeue_lost(self.study)
        while True:
            trials = self.study.get_trials(deepcopy=False)
            if self.progress:
                self.progress(len(finished_trials(trials)), self.target_trials)
            if len(finished_trials(trials)) >= self.target_trials:
                return
            if self.fail_stale_trials(trials) or requeue_lost(self.study):
                continue
            if can_start_trial(trials, self.target_trials):
                self.run_trial()
            else:
                time.sleep(POLL_S)

    def fail_stale_trials(self, trials: list[FrozenTrial]) -> int:
        """Tell trials of dead workers; the next round enqueues them again."""
        return sum(
            mark_trial_failed(self.storage, trial._trial_id)
            for trial in self.lease_monitor.stale_trials(trials)
        )

    def run_trial(self) -> None:
        """Take a trial, evaluate it and store its values."""
        trial: Trial | None = None
        try:
            with defer_interrupt():
                trial = self.study.ask()
            reason = withdrawal_reason(
                trial.number, self.study.get_trials(deepcopy=False), self.target_trials
            )
            if reason is not None:
                mark_trial_failed(self.storage, trial._trial_id, WITHDRAWN_KEY, reason)
                return
            with Heartbeat(self.storage, trial._trial_id, self.lease_s):
                self.evaluate_trial(trial)
        except UpdateFinishedTrialError:
            return  # somebody took this worker for dead and ran the trial again: theirs counts
        except BaseException as error:
            if trial is not None:
                mark_trial_failed(
                    self.storage,
                    trial._trial_id,
                    *(
                        (INTERRUPTED_KEY, "by its user")
                        if isinstance(error, KeyboardInterrupt)
                        else ()
                    ),
                )
                requeue_lost(self.study)
            raise

    def evaluate_trial(self, trial: Trial) -> None:
        """Evaluate a trial and tell the study."""
        verdict = self.evaluator.evaluate(
            plan_from_parameters(self.space, suggest_parameters(trial, self.space.distributions))
        )
        for name, value in verdict.limits.items():
            trial.set_constraint(name, value)
        record_plan(trial, verdict)
        if verdict.trial is None or (not verdict.feasible and self.config.objective != "latency"):
            trial.set_user_attr("refused", verdict.reason or "limits")
            self.study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
            return
        try:
            told = self.reuse_objectives(trial) or self.measure_trial(trial, verdict)
        except Pruned:
            self.study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
            return
        except (
            Diverged,
            *INFEASIBLE_PLAN_ERRORS,
        ) as refusal:  # a plan on which this recipe diverges is no other plan's concern
            trial.set_constraint(BUILDABLE_CONSTRAINT, 1.0)
            trial.set_user_attr("refused", " ".join(str(refusal).split()))
            self.study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
            return
        if self.artifact_writer is not None and verdict.feasible:
            self.artifact_writer.write_if_best(self.study, trial, verdict, told)
        self.study.tell(trial, told, skip_if_finished=True)

    def measure_trial(self, trial: Trial, verdict: Evaluation) -> list[float]:
        """Return the values of the objective, training where it asks for accuracy."""
        values = self.objectives.measure_objectives(
            verdict, lambda epoch, accuracy: self.report_epoch(trial, verdict, epoch, accuracy)
        )
        for name in values.keys() - {"latency_ms"}:
            trial.set_user_attr(name, values[name])
        return [values[name] for name in METRICS[self.config.objective]]

    def reuse_objectives(self, trial: Trial) -> list[float] | None:
        """Return the objectives of the same plan measured before.

        Many parameters spell one plan, and training it twice would teach nothing.
        """
        if self.config.objective == "latency":
            return None
        for get_trial in self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            if get_trial.user_attrs.get("plan") == trial.user_attrs["plan"]:
                for name in {"accuracy", "measured_ms"} & get_trial.user_attrs.keys():
                    trial.set_user_attr(name, get_trial.user_attrs[name])
                trial.set_user_attr("same_as", get_trial.number)
                return list(get_trial.values)
        return None

    def report_epoch(self, trial: Trial, verdict: Evaluation, epoch: int, accuracy: float) -> None:
        """Keep the accuracy of an epoch, and stop where the trial is behind the others.

        Raises TrialPruned when it falls behind.
        """
        curve = [*trial.user_attrs.get(ACCURACY_CURVE_KEY, []), accuracy]
        trial.set_user_attr(ACCURACY_CURVE_KEY, curve)
        assert verdict.trial is not None
        if (
            self.config.objective == "accuracy"
        ):  # Optuna reports and prunes where there is one objective only
            trial.report(accuracy, epoch)
            if trial.should_prune():
                raise Pruned
            return
        if not self.objectives.prune:
            return
        others = [
            t
            for t in finished_trials(self.study.get_trials(deepcopy=False))
            if ACCURACY_CURVE_KEY in t.user_attrs
        ]
        rivals = [(t.user_attrs["latency_ms"], t.user_attrs[ACCURACY_CURVE_KEY]) for t in others]
        if should_prune_training(accuracy, epoch, verdict.trial.latency_us / 1000, rivals):
            raise Pruned


def suggest_parameters(
    trial: Trial, distributions: dict[str, BaseDistribution]
) -> dict[str, ParameterValue]:
    """Draw every parameter of a trial."""
    return {
        name: suggest_value(trial, name, distribution)
        for name, distribution in distributions.items()
    }


def suggest_value(trial: Trial, name: str, distribution: Any) -> ParameterValue:
    """Draw one parameter of a trial."""
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)  # type: ignore[return-value]
    return trial.suggest_float(name, distribution.low, distribution.high)


def record_plan(trial: Trial, verdict: Evaluation) -> None:
    """Store plan, latency and sizes with a trial."""
    trial.set_user_attr("plan", plan_text(verdict.plan))
    if verdict.trial is not None:
        trial.set_user_attr("latency_ms", verdict.trial.latency_us / 1000)
        trial.set_user_attr("macs", verdict.trial.macs)
        trial.set_user_attr("params", verdict.trial.params)


@contextmanager
def defer_interrupt() -> Iterator[None]:
    """Let Ctrl-C wait until a trial that is being created has a name."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)
