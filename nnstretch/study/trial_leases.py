"""Who runs which trial: exactly N of them, whatever dies in between.

- *Never more than N.* Storages number trials one after another, and FAIL is final. A trial that
  repeats
  another has the place of the first one. A worker keeps the trial it was given only if fewer than N
  trials
  in front of it can still count (finished, running, waiting, or lost and not yet enqueued again);
  otherwise
  it withdraws. Of any finished trials, the last in that order saw at most N - 1 in front of it, so
  no more
  than N ever finish, without any lock of our own.
- *None is lost.* A running trial carries a beat, a number that its worker raises. Whoever sees a
  beat stand
  still for a lease, by its own clock, tells the trial FAIL; the storage lets one worker do so. A
  FAIL without a successor is enqueued again, by whoever notices first.
- *None is counted twice.* Should two notice at once, the successor with the lower number counts and
  the
  other withdraws. A worker that was only slow finds its trial told when it comes back, and drops
  its result.

Journal files and gRPC proxies have no heartbeats in Optuna, so these are ours, and the same on
every storage.
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

HEARTBEAT_KEY, RETRY_HISTORY_KEY, FAILED_TRIAL_KEY = (
    "nnstretch:beat",
    "retry_history",
    "failed_trial",
)
"""The last two are Optuna's own names for a trial that repeats another."""
WITHDRAWN_KEY, INTERRUPTED_KEY, WARM_START_KEY = (
    "nnstretch:withdrawn",
    "nnstretch:interrupted",
    "nnstretch:warm",
)
MAX_FAILED_ATTEMPTS = 3
"""A trial that killed this many workers is given up; another one takes its place."""
HEARTBEATS_PER_LEASE = 6
UNREPEATED_ATTRIBUTES = (
    "constraints",
    "artifacts:",
    "nnstretch:beat",
    "nnstretch:withdrawn",
    "nnstretch:interrupted",
    RETRY_HISTORY_KEY,
    FAILED_TRIAL_KEY,
)
"""What belongs to one run of a trial and is not repeated with it."""


def finished_trials(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Return trials that count: complete, or pruned."""
    return [t for t in trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]


def can_start_trial(trials: Sequence[FrozenTrial], wanted: int) -> bool:
    """Return whether another trial may start at all; waiting ones are asked for first."""
    busy = [t for t in trials if t.state == TrialState.RUNNING]
    return len(finished_trials(trials)) + len(busy) + len(orphaned_trials(trials)) < wanted


def repetition_key(trial: FrozenTrial) -> tuple[str, int] | None:
    """Return what two trials must not have in common.

    The trial they repeat, or the warm start they are.
    """
    if history := trial.system_attrs.get(RETRY_HISTORY_KEY):
        return ("repeats", int(history[-1]))
    if WARM_START_KEY in trial.system_attrs:
        return ("warm", int(trial.system_attrs[WARM_START_KEY]))
    return None


def first_trial_number(trial: FrozenTrial) -> int:
    """Return the number of the first trial that it repeats, or its own."""
    return int(trial.system_attrs.get(FAILED_TRIAL_KEY, trial.number))


def withdrawal_reason(number: int, trials: Sequence[FrozenTrial], wanted: int) -> str | None:
    """Return why the trial of this number must not run; None if it may."""
    mine, lost = (
        next(t for t in trials if t.number == number),
        {t.number for t in orphaned_trials(trials)},
    )
    key = repetition_key(mine)
    if key is not None and any(repetition_key(t) == key for t in trials if t.number < number):
        return "double"
    first = [
        t for t in trials if (first_trial_number(t), t.number) < (first_trial_number(mine), number)
    ]
    if sum(t.state != TrialState.FAIL or t.number in lost for t in first) >= wanted:
        return "full"
    return None


def orphaned_trials(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return failed trials that nobody repeats yet, though somebody must."""
    by_number = {t.number: t for t in trials}
    repeated = {key[1] for t in trials if (key := repetition_key(t)) and key[0] == "repeats"}
    return [
        t
        for t in trials
        if t.state == TrialState.FAIL and t.number not in repeated and must_repeat(t, by_number)
    ]


def must_repeat(trial: FrozenTrial, by_number: dict[int, FrozenTrial]) -> bool:
    """Return whether a trial failed and attempts remain."""
    if WITHDRAWN_KEY in trial.system_attrs:
        return trial.system_attrs[WITHDRAWN_KEY] == "full" and repetition_key(trial) is not None
    return count_failed_attempts(trial, by_number) < MAX_FAILED_ATTEMPTS


def count_failed_attempts(trial: FrozenTrial, by_number: dict[int, FrozenTrial]) -> int:
    """Return how often a trial was run to a bad end; being interrupted by its user is none."""
    chain = [
        *(by_number[n] for n in trial.system_attrs.get(RETRY_HISTORY_KEY, []) if n in by_number),
        trial,
    ]
    return sum(
        INTERRUPTED_KEY not in t.system_attrs and WITHDRAWN_KEY not in t.system_attrs for t in chain
    )


def abandoned_trials(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials whose attempts are used up."""
    by_number = {t.number: t for t in trials}
    failed = [
        t for t in trials if t.state == TrialState.FAIL and WITHDRAWN_KEY not in t.system_attrs
    ]
    return [t for t in failed if count_failed_attempts(t, by_number) >= MAX_FAILED_ATTEMPTS]


def repeat_trial(trial: FrozenTrial) -> FrozenTrial:
    """Add the trial again, waiting."""
    kept = {
        key: value
        for key, value in trial.system_attrs.items()
        if not key.startswith(UNREPEATED_ATTRIBUTES)
    }
    history = [*trial.system_attrs.get(RETRY_HISTORY_KEY, []), trial.number]
    return create_trial(
        state=TrialState.WAITING,
        params=trial.params,
        distributions=trial.distributions,
        system_attrs={**kept, FAILED_TRIAL_KEY: history[0], RETRY_HISTORY_KEY: history},
    )


def warm_start_trial(parameters: dict[str, Any], rank: int) -> FrozenTrial:
    """Return a plan of the exact search, waiting; `rank` counts from 0."""
    return create_trial(
        state=TrialState.WAITING, system_attrs={"fixed_params": parameters, WARM_START_KEY: rank}
    )


def requeue_lost(study: Study) -> int:
    """Enqueue what was lost again; return how many."""
    lost = orphaned_trials(study.get_trials(deepcopy=False))
    for trial in lost:
        study.add_trial(repeat_trial(trial))
    return len(lost)


def mark_trial_failed(
    storage: BaseStorage, trial_id: int, mark: str | None = None, value: str = ""
) -> bool:
    """Tell a trial FAIL; False if somebody told it before."""
    try:
        if mark is not None:
            storage.set_trial_system_attr(trial_id, mark, value)
        return bool(storage.set_trial_state_values(trial_id, TrialState.FAIL))
    except UpdateFinishedTrialError:
        return False


class LeaseMonitor:
    """Sees whose beat stands still.

    Only this process's clock is read: clocks of machines need not agree.
    """

    def __init__(self, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.lease_s = lease_s
        self._clock = clock
        self._seen: dict[int, tuple[int, float]] = {}

    def stale_trials(self, trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
        """Return running trials that have not moved for a lease since they were first seen so."""
        now, stale = self._clock(), []
        running = [t for t in trials if t.state == TrialState.RUNNING]
        for trial in running:
            beat = int(trial.system_attrs.get(HEARTBEAT_KEY, 0))
            seen, since = self._seen.get(trial.number, (-1, now))
            if seen != beat:
                self._seen[trial.number] = (beat, now)
            elif now - since > self.lease_s:
                stale.append(trial)
        return stale


class Heartbeat:
    """While a trial runs: raises its beat from a thread of its own, so that long work need not
    think of it.
    """

    def __init__(self, storage: BaseStorage, trial_id: int, lease_s: float) -> None:
        self._storage, self._trial_id, self._every_s = (
            storage,
            trial_id,
            lease_s / HEARTBEATS_PER_LEASE,
        )
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
