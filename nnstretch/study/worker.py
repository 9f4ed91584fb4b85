"""One worker: ask for a trial, judge its plan, tell what it is worth, until the study has all its trials."""

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
from nnstretch.planfile import plan_text
from nnstretch.study.claims import INTERRUPTED, WITHDRAWN, Beating, Watch, adopt, fail, finished, has_room, why_not
from nnstretch.study.judge import BUILDABLE, Judge, Verdict
from nnstretch.study.objective import Behind, Worth, is_behind
from nnstretch.study.setting import METRICS, Setting
from nnstretch.study.space import PlanSpace, Value, plan_of

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

    from nnstretch.study.artifacts import Keeper

Progress = Callable[[int, int], None]
CURVE = "accuracy_by_epoch"
REFUSALS = (BadPlan, CannotCapture, Mismatch, UnsupportedOp)
"""What says that this plan cannot be had, rather than that the study is set up wrongly."""
POLL_S = 0.2


@dataclass
class Worker:
    """Shares a study with any number of others, on this machine or elsewhere."""

    study: Study
    storage: BaseStorage
    setting: Setting
    space: PlanSpace
    judge: Judge
    worth: Worth
    wanted: int
    """Finished trials of the whole study, whoever runs them."""
    lease_s: float = 60.0
    """A trial whose worker gives no sign of life for so long is run again."""
    keeper: Keeper | None = None
    progress: Progress | None = None
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = Watch(self.lease_s)

    def run(self) -> None:
        """Raises KeyboardInterrupt when interrupted, with the trial in progress enqueued again."""
        adopt(self.study)
        while True:
            trials = self.study.get_trials(deepcopy=False)
            if self.progress:
                self.progress(len(finished(trials)), self.wanted)
            if len(finished(trials)) >= self.wanted:
                return
            if self.reaped(trials) or adopt(self.study):
                continue
            if has_room(trials, self.wanted):
                self.one()
            else:
                time.sleep(POLL_S)

    def reaped(self, trials: list[FrozenTrial]) -> int:
        """Tell trials of dead workers; the next round enqueues them again."""
        return sum(fail(self.storage, trial._trial_id) for trial in self.watch.stale(trials))

    def one(self) -> None:
        trial: Trial | None = None
        try:
            with uninterrupted():
                trial = self.study.ask()
            reason = why_not(trial.number, self.study.get_trials(deepcopy=False), self.wanted)
            if reason is not None:
                fail(self.storage, trial._trial_id, WITHDRAWN, reason)
                return
            with Beating(self.storage, trial._trial_id, self.lease_s):
                self.judged(trial)
        except UpdateFinishedTrialError:
            return  # somebody took this worker for dead and ran the trial again: theirs counts
        except BaseException as error:
            if trial is not None:
                fail(self.storage, trial._trial_id, *((INTERRUPTED, "by its user") if isinstance(error, KeyboardInterrupt) else ()))
                adopt(self.study)
            raise

    def judged(self, trial: Trial) -> None:
        verdict = self.judge.verdict(plan_of(self.space, suggested(trial, self.space.distributions)))
        for name, value in verdict.limits.items():
            trial.set_constraint(name, value)
        describe(trial, verdict)
        if verdict.trial is None or (not verdict.feasible and self.setting.objective != "latency"):
            trial.set_user_attr("refused", verdict.reason or "limits")
            self.study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
            return
        try:
            told = self.known(trial) or self.valued(trial, verdict)
        except Behind:
            self.study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
            return
        except (Diverged, *REFUSALS) as refusal:  # a plan on which this recipe diverges is no other plan's concern
            trial.set_constraint(BUILDABLE, 1.0)
            trial.set_user_attr("refused", " ".join(str(refusal).split()))
            self.study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
            return
        if self.keeper is not None and verdict.feasible:
            self.keeper.keep(self.study, trial, verdict, told)
        self.study.tell(trial, told, skip_if_finished=True)

    def valued(self, trial: Trial, verdict: Verdict) -> list[float]:
        values = self.worth.values(verdict, lambda epoch, accuracy: self.report(trial, verdict, epoch, accuracy))
        for name in values.keys() - {"latency_ms"}:
            trial.set_user_attr(name, values[name])
        return [values[name] for name in METRICS[self.setting.objective]]

    def known(self, trial: Trial) -> list[float] | None:
        """What the same plan was worth before: many parameters spell one plan, and training it twice would teach nothing."""
        if self.setting.objective == "latency":
            return None
        for other in self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            if other.user_attrs.get("plan") == trial.user_attrs["plan"]:
                for name in {"accuracy", "measured_ms"} & other.user_attrs.keys():
                    trial.set_user_attr(name, other.user_attrs[name])
                trial.set_user_attr("same_as", other.number)
                return list(other.values)
        return None

    def report(self, trial: Trial, verdict: Verdict, epoch: int, accuracy: float) -> None:
        """After an epoch: keep its accuracy, stop where the trial is behind the others."""
        curve = [*trial.user_attrs.get(CURVE, []), accuracy]
        trial.set_user_attr(CURVE, curve)
        assert verdict.trial is not None
        if self.setting.objective == "accuracy":  # Optuna reports and prunes where there is one objective only
            trial.report(accuracy, epoch)
            if trial.should_prune():
                raise Behind
            return
        if not self.worth.prune:
            return
        others = [t for t in finished(self.study.get_trials(deepcopy=False)) if CURVE in t.user_attrs]
        rivals = [(t.user_attrs["latency_ms"], t.user_attrs[CURVE]) for t in others]
        if is_behind(accuracy, epoch, verdict.trial.latency_us / 1000, rivals):
            raise Behind


def suggested(trial: Trial, distributions: dict[str, BaseDistribution]) -> dict[str, Value]:
    return {name: suggest(trial, name, one) for name, one in distributions.items()}


def suggest(trial: Trial, name: str, one: Any) -> Value:
    if isinstance(one, CategoricalDistribution):
        return trial.suggest_categorical(name, one.choices)  # type: ignore[return-value]
    return trial.suggest_float(name, one.low, one.high)


def describe(trial: Trial, verdict: Verdict) -> None:
    trial.set_user_attr("plan", plan_text(verdict.plan))
    if verdict.trial is not None:
        trial.set_user_attr("latency_ms", verdict.trial.latency_us / 1000)
        trial.set_user_attr("macs", verdict.trial.macs)
        trial.set_user_attr("params", verdict.trial.params)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until a trial that is being created has a name."""
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
