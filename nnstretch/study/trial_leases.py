"""Exactly N trials by any number of workers, some of which may die.

- *Never more than N.* Storages number trials one after another, and FAIL is final. A trial that
  repeats another has the place of the first one. A worker keeps its trial only if fewer than N
  trials before it can still count (finished, running, waiting, or lost and not yet enqueued again);
  otherwise it withdraws. Of any finished trials, the last in that order saw at most N - 1 before
  it, so no more than N ever finish, without any lock.
- *None is lost.* A running trial carries a heartbeat, a number that its worker raises. A worker
  that sees it stand still for a lease, by its own clock, fails the trial; the storage lets only one
  do so. A failed trial without a successor is enqueued again by the first worker to notice.
- *None is counted twice.* Should two notice at once, the successor with the lower number counts and
  the other withdraws. A worker that was only slow finds its trial failed, and drops its result.

Optuna has no heartbeats for journal files and gRPC proxies; these are the same on every storage.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.study import Study

HEARTBEAT_KEY = "nnstretch:beat"
WITHDRAWN_KEY = "nnstretch:withdrawn"
INTERRUPTED_KEY = "nnstretch:interrupted"
WARM_START_KEY = "nnstretch:warm"
RETRY_HISTORY_KEY = "retry_history"
"""Optuna's attribute of the trials that a trial repeats."""
FAILED_TRIAL_KEY = "failed_trial"
"""Optuna's attribute of the first trial that a trial repeats."""
MAX_FAILED_ATTEMPTS = 3
"""Attempts after which a trial is abandoned, and another one takes its place."""
HEARTBEATS_PER_LEASE = 6
UNREPEATED_ATTRIBUTES = (
    "constraints",
    "artifacts:",
    HEARTBEAT_KEY,
    WITHDRAWN_KEY,
    INTERRUPTED_KEY,
    RETRY_HISTORY_KEY,
    FAILED_TRIAL_KEY,
)
"""Prefixes of attributes that belong to one attempt and are not repeated."""


def finished_trials(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Return complete and pruned trials, which are those that count."""
    return [t for t in trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]


def can_start_trial(trials: Sequence[FrozenTrial], wanted: int) -> bool:
    """Return whether another trial may start; waiting ones do first."""
    running = sum(t.state == TrialState.RUNNING for t in trials)
    return len(finished_trials(trials)) + running + len(orphaned_trials(trials)) < wanted


def repetition_key(trial: FrozenTrial) -> tuple[str, int] | None:
    """Return what only one trial may have: the trial it repeats, or its rank as a warm start."""
    if history := trial.system_attrs.get(RETRY_HISTORY_KEY):
        return ("repeats", int(history[-1]))
    if WARM_START_KEY in trial.system_attrs:
        return ("warm", int(trial.system_attrs[WARM_START_KEY]))
    return None


def first_trial_number(trial: FrozenTrial) -> int:
    """Return the number of the first attempt at a trial."""
    return int(trial.system_attrs.get(FAILED_TRIAL_KEY, trial.number))


def withdrawal_reason(number: int, trials: Sequence[FrozenTrial], wanted: int) -> str | None:
    """Return why the trial of this number must not run, `double` or `full`; None if it may."""
    trial = next(t for t in trials if t.number == number)
    key = repetition_key(trial)
    if key is not None and any(repetition_key(t) == key for t in trials if t.number < number):
        return "double"
    lost = {t.number for t in orphaned_trials(trials)}
    counting = [t for t in trials if t.state != TrialState.FAIL or t.number in lost]
    place = (first_trial_number(trial), number)
    before = [t for t in counting if (first_trial_number(t), t.number) < place]
    return "full" if len(before) >= wanted else None


def orphaned_trials(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return failed trials that must be repeated and are not yet."""
    by_number = {t.number: t for t in trials}
    repeated = {key[1] for t in trials if (key := repetition_key(t)) and key[0] == "repeats"}
    failed = [t for t in trials if t.state == TrialState.FAIL and t.number not in repeated]
    return [t for t in failed if must_repeat(t, by_number)]


def must_repeat(trial: FrozenTrial, by_number: dict[int, FrozenTrial]) -> bool:
    """Return whether a failed trial must be repeated, for which attempts remain."""
    if WITHDRAWN_KEY in trial.system_attrs:
        return trial.system_attrs[WITHDRAWN_KEY] == "full" and repetition_key(trial) is not None
    return count_failed_attempts(trial, by_number) < MAX_FAILED_ATTEMPTS


def count_failed_attempts(trial: FrozenTrial, by_number: dict[int, FrozenTrial]) -> int:
    """Return how often a trial failed, by neither interruption nor withdrawal."""
    history = trial.system_attrs.get(RETRY_HISTORY_KEY, [])
    attempts = [*(by_number[number] for number in history if number in by_number), trial]
    harmless = {INTERRUPTED_KEY, WITHDRAWN_KEY}
    return sum(not harmless & attempt.system_attrs.keys() for attempt in attempts)


def abandoned_trials(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials whose attempts are used up."""
    by_number = {t.number: t for t in trials}
    failed = [t for t in trials if t.state == TrialState.FAIL]
    tried = [t for t in failed if WITHDRAWN_KEY not in t.system_attrs]
    return [t for t in tried if count_failed_attempts(t, by_number) >= MAX_FAILED_ATTEMPTS]


def repeat_trial(trial: FrozenTrial) -> FrozenTrial:
    """Return a waiting trial that repeats a failed one."""
    attributes: dict[str, Any] = {}
    for key, value in trial.system_attrs.items():
        if not key.startswith(UNREPEATED_ATTRIBUTES):
            attributes[key] = value
    history = [*trial.system_attrs.get(RETRY_HISTORY_KEY, []), trial.number]
    attributes[FAILED_TRIAL_KEY] = history[0]
    attributes[RETRY_HISTORY_KEY] = history
    return create_trial(
        state=TrialState.WAITING,
        params=trial.params,
        distributions=trial.distributions,
        system_attrs=attributes,
    )


def warm_start_trial(parameters: dict[str, Any], rank: int) -> FrozenTrial:
    """Return a waiting trial of the plan of this rank (from 0) in the exact search."""
    return create_trial(
        state=TrialState.WAITING, system_attrs={"fixed_params": parameters, WARM_START_KEY: rank}
    )


def requeue_lost(study: Study) -> int:
    """Enqueue lost trials again, and return their number."""
    lost = orphaned_trials(study.get_trials(deepcopy=False))
    for trial in lost:
        study.add_trial(repeat_trial(trial))
    return len(lost)


def mark_trial_failed(
    storage: BaseStorage, trial_id: int, key: str | None = None, value: str = ""
) -> bool:
    """Fail a trial, with an attribute if asked; return False if it was finished before."""
    try:
        if key is not None:
            storage.set_trial_system_attr(trial_id, key, value)
        return bool(storage.set_trial_state_values(trial_id, TrialState.FAIL))
    except UpdateFinishedTrialError:
        return False


class LeaseMonitor:
    """Finder of trials whose heartbeat stands still, by this process's clock alone."""

    def __init__(self, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.lease_s = lease_s
        self._clock = clock
        self._seen: dict[int, tuple[int, float]] = {}

    def stale_trials(self, trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
        """Return running trials whose heartbeat has stood still for a lease."""
        now = self._clock()
        stale: list[FrozenTrial] = []
        for trial in trials:
            if trial.state != TrialState.RUNNING:
                continue
            beat = int(trial.system_attrs.get(HEARTBEAT_KEY, 0))
            seen, since = self._seen.get(trial.number, (-1, now))
            if seen != beat:
                self._seen[trial.number] = (beat, now)
            elif now - since > self.lease_s:
                stale.append(trial)
        return stale


class Heartbeat:
    """Heartbeat of a running trial, raised from a thread of its own."""

    def __init__(self, storage: BaseStorage, trial_id: int, lease_s: float) -> None:
        self._storage = storage
        self._trial_id = trial_id
        self._every_s = lease_s / HEARTBEATS_PER_LEASE
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send_heartbeats, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _send_heartbeats(self) -> None:
        beat = 0
        while not self._stop.wait(self._every_s):
            beat += 1
            try:
                self._storage.set_trial_system_attr(self._trial_id, HEARTBEAT_KEY, beat)
            except UpdateFinishedTrialError:
                return
