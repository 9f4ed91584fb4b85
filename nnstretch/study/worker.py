"""A worker: run trials of a study until it has all of them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
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
INFEASIBLE_PLAN_ERRORS = (BadPlan, CannotCapture, Diverged, Mismatch, UnsupportedOp)
"""Errors of a plan, not of the study."""
POLL_S = 0.2
TOLD_AFTER_POLLS = 10


@dataclass
class StudyWorker:
    """One of any number of workers of a study, on any machines."""

    study: Study
    storage: BaseStorage
    config: StudyConfig
    space: PlanSpace
    evaluator: PlanEvaluator
    objectives: Objectives
    target_trials: int
    """Finished trials of the whole study, by all workers."""
    lease_s: float = 60.0
    """A trial without a heartbeat for so long is run again."""
    artifact_writer: ArtifactWriter | None = None
    progress: StudyProgress | None = None
    tell_waiting: Callable[[int], None] | None = None
    """Told once that so many trials of other workers, perhaps dead ones, are waited for."""
    lease_monitor: LeaseMonitor = field(init=False)

    def __post_init__(self) -> None:
        self.lease_monitor = LeaseMonitor(self.lease_s)
        self._waits = 0

    def run(self) -> None:
        """Run trials until the study has all. Raises KeyboardInterrupt when interrupted."""
        requeue_lost(self.study)
        while True:
            trials = self.study.get_trials(deepcopy=False)
            finished = len(finished_trials(trials))
            if self.progress:
                self.progress(finished, self.target_trials)
            if finished >= self.target_trials:
                return
            if self.fail_stale_trials(trials) or requeue_lost(self.study):
                continue
            if can_start_trial(trials, self.target_trials):
                self.run_trial()
            else:
                self.wait_for_others(trials)

    def wait_for_others(self, trials: list[FrozenTrial]) -> None:
        """Wait a moment, since trials of other workers are all that is missing."""
        self._waits += 1
        if self._waits == TOLD_AFTER_POLLS and self.tell_waiting:
            self.tell_waiting(sum(trial.state == TrialState.RUNNING for trial in trials))
        time.sleep(POLL_S)

    def fail_stale_trials(self, trials: list[FrozenTrial]) -> int:
        """Fail the trials of dead workers, and return their number."""
        stale = self.lease_monitor.stale_trials(trials)
        return sum(mark_trial_failed(self.storage, trial._trial_id) for trial in stale)

    def run_trial(self) -> None:
        """Take a trial, evaluate it and store its values."""
        trial: Trial | None = None
        try:
            with defer_interrupt():
                trial = self.study.ask()
            trials = self.study.get_trials(deepcopy=False)
            reason = withdrawal_reason(trial.number, trials, self.target_trials)
            if reason is not None:
                mark_trial_failed(self.storage, trial._trial_id, WITHDRAWN_KEY, reason)
                return
            with Heartbeat(self.storage, trial._trial_id, self.lease_s):
                self.evaluate_trial(trial)
        except UpdateFinishedTrialError:
            # Another worker took this one for dead and ran the trial again: its result counts.
            return
        except BaseException as error:
            if trial is not None:
                self.fail_trial(trial, isinstance(error, KeyboardInterrupt))
            raise

    def fail_trial(self, trial: Trial, interrupted: bool) -> None:
        """Fail a trial, and enqueue it again."""
        if interrupted:
            mark_trial_failed(self.storage, trial._trial_id, INTERRUPTED_KEY, "by its user")
        else:
            mark_trial_failed(self.storage, trial._trial_id)
        requeue_lost(self.study)

    def evaluate_trial(self, trial: Trial) -> None:
        """Evaluate a trial and tell the study."""
        parameters = suggest_parameters(trial, self.space.distributions)
        evaluation = self.evaluator.evaluate(plan_from_parameters(self.space, parameters))
        for name, value in evaluation.limits.items():
            trial.set_constraint(name, value)
        record_plan(trial, evaluation)
        is_refused = not evaluation.feasible and self.config.objective != "latency"
        if evaluation.trial is None or is_refused:
            trial.set_user_attr("refused", evaluation.reason or "limits")
            self.tell_pruned(trial)
            return
        try:
            values = self.reuse_objectives(trial) or self.measure_trial(trial, evaluation)
        except Pruned:
            self.tell_pruned(trial)
            return
        except INFEASIBLE_PLAN_ERRORS as refusal:
            trial.set_constraint(BUILDABLE_CONSTRAINT, 1.0)
            trial.set_user_attr("refused", " ".join(str(refusal).split()))
            self.tell_pruned(trial)
            return
        if self.artifact_writer is not None and evaluation.feasible:
            self.artifact_writer.write_if_best(self.study, trial, evaluation, values)
        self.study.tell(trial, values, skip_if_finished=True)

    def tell_pruned(self, trial: Trial) -> None:
        """Finish a trial without values."""
        self.study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)

    def measure_trial(self, trial: Trial, evaluation: Evaluation) -> list[float]:
        """Return the values of the objective, training where it asks for accuracy."""
        report = partial(self.report_epoch, trial, evaluation)
        values = self.objectives.measure_objectives(evaluation, report)
        for name in values.keys() - {"latency_ms"}:
            trial.set_user_attr(name, values[name])
        return [values[name] for name in METRICS[self.config.objective]]

    def reuse_objectives(self, trial: Trial) -> list[float] | None:
        """Return the objectives of an equal plan of other parameters; None where there is none."""
        if self.config.objective == "latency":
            return None
        for complete in self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            if complete.user_attrs.get("plan") == trial.user_attrs["plan"]:
                for name in {"accuracy", "measured_ms"} & complete.user_attrs.keys():
                    trial.set_user_attr(name, complete.user_attrs[name])
                trial.set_user_attr("same_as", complete.number)
                return list(complete.values)
        return None

    def report_epoch(
        self, trial: Trial, evaluation: Evaluation, epoch: int, accuracy: float
    ) -> None:
        """Store the accuracy of an epoch. Raises Pruned where the trial is behind the others."""
        curve = [*trial.user_attrs.get(ACCURACY_CURVE_KEY, []), accuracy]
        trial.set_user_attr(ACCURACY_CURVE_KEY, curve)
        assert evaluation.trial is not None
        # Optuna prunes where there is one objective only.
        if self.config.objective == "accuracy":
            trial.report(accuracy, epoch)
            if trial.should_prune():
                raise Pruned
            return
        if not self.objectives.prune:
            return
        finished = finished_trials(self.study.get_trials(deepcopy=False))
        attributes = [t.user_attrs for t in finished if ACCURACY_CURVE_KEY in t.user_attrs]
        rivals = [(known["latency_ms"], known[ACCURACY_CURVE_KEY]) for known in attributes]
        if should_prune_training(accuracy, epoch, evaluation.trial.latency_us / 1000, rivals):
            raise Pruned


def suggest_parameters(
    trial: Trial, distributions: dict[str, BaseDistribution]
) -> dict[str, ParameterValue]:
    """Draw every parameter of a trial."""
    return {name: suggest_value(trial, name, choices) for name, choices in distributions.items()}


def suggest_value(trial: Trial, name: str, distribution: Any) -> ParameterValue:
    """Draw one parameter of a trial."""
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)  # type: ignore[return-value]
    return trial.suggest_float(name, distribution.low, distribution.high)


def record_plan(trial: Trial, evaluation: Evaluation) -> None:
    """Store plan, latency and sizes with a trial."""
    trial.set_user_attr("plan", plan_text(evaluation.plan))
    if evaluation.trial is not None:
        trial.set_user_attr("latency_ms", evaluation.trial.latency_us / 1000)
        trial.set_user_attr("macs", evaluation.trial.macs)
        trial.set_user_attr("params", evaluation.trial.params)


@contextmanager
def defer_interrupt() -> Iterator[None]:
    """Defer Ctrl+C while a trial is created, so that it can be failed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts:
        signal.raise_signal(signal.SIGINT)
