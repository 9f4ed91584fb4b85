"""Claims: exactly the wanted trials finish, in whatever order workers look, ask, die and are found.

Storages that keep them.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from unittest.mock import Mock

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import OperationalError
from support.study_toys import memory, states, worker

from nnstretch.errors import BadInput, UnknownName
from nnstretch.study import trial_leases as claims
from nnstretch.study.storage import open_storage, redact_password
from nnstretch.study.trial_leases import (
    RETRY_HISTORY_KEY,
    LeaseMonitor,
    abandoned_trials,
    can_start_trial,
    finished_trials,
    mark_trial_failed,
    requeue_lost,
    withdrawal_reason,
)

# Claims


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    wanted=st.integers(1, 8),
    queued=st.integers(0, 6),
    workers=st.integers(1, 4),
)
def test_whatever_the_order_of_events_exactly_the_wanted_trials_finish(
    seed: int, wanted: int, queued: int, workers: int
) -> None:
    """Workers look, ask, check, finish, die and are found dead in any order.

    What each saw may be old by the time it acts.
    """
    rng, storage = random.Random(seed), memory()
    study = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler(seed=0))
    for rank in range(queued):
        study.add_trial(claims.warm_start_trial({"x": float(rank)}, rank))
    doing: dict[int, str | optuna.Trial] = dict.fromkeys(range(workers), "idle")
    running: set[int] = set()
    dead: list[int] = []
    noticed: list[FrozenTrial] = []  # by several workers at once, perhaps
    deaths: Counter[float] = Counter()
    for _ in range(3000):
        who = rng.randrange(workers)
        at = doing[who]
        if at == "idle":
            doing[who] = "asking" if can_start_trial(study.trials, wanted) else "idle"
        elif at == "asking":
            trial = study.ask()
            trial.suggest_float("x", 0, 100)
            doing[who] = trial
        elif isinstance(at, optuna.Trial) and at.number not in running:
            reason = withdrawal_reason(at.number, study.trials, wanted)
            if reason is None:
                running.add(at.number)
            else:
                mark_trial_failed(storage, at._trial_id, claims.WITHDRAWN_KEY, reason)
                doing[who] = "idle"
        elif isinstance(at, optuna.Trial):
            if rng.random() < 0.3 and deaths[at.params["x"]] < claims.MAX_FAILED_ATTEMPTS - 1:
                deaths[at.params["x"]] += 1
                dead.append(at._trial_id)
            else:
                study.tell(at, 1.0, skip_if_finished=True)
            doing[who] = "idle"
        if dead and rng.random() < 0.3:
            mark_trial_failed(storage, dead.pop())
        if rng.random() < 0.3:
            noticed += claims.orphaned_trials(study.trials)
        if noticed and rng.random() < 0.3:
            study.add_trial(claims.repeat_trial(noticed.pop()))
        assert len(finished_trials(study.trials)) <= wanted
        if (
            len(finished_trials(study.trials)) == wanted
            and not dead
            and all(at == "idle" for at in doing.values())
        ):
            break
    told = [t.params["x"] for t in finished_trials(study.trials)]
    assert len(told) == wanted
    assert len(set(told)) == wanted, "a trial was counted twice"
    assert queued > wanted or set(told) >= {float(rank) for rank in range(queued)}, (
        "a trial was lost"
    )


def numbered(*trials: FrozenTrial) -> list[FrozenTrial]:
    study = optuna.create_study()
    study.add_trials(trials)
    return study.trials


def made(state: TrialState, **attrs: object) -> FrozenTrial:
    value = 1.0 if state == TrialState.COMPLETE else None
    return create_trial(state=state, value=value, system_attrs=attrs)


def test_a_trial_runs_only_if_fewer_below_it_can_still_count() -> None:
    withdrawn = {claims.WITHDRAWN_KEY: "full"}
    done, failed, waiting = (
        made(TrialState.COMPLETE),
        made(TrialState.FAIL, **withdrawn),
        made(TrialState.WAITING),
    )
    trials = numbered(done, failed, waiting, made(TrialState.RUNNING))
    assert withdrawal_reason(3, trials, 3) is None
    assert withdrawal_reason(3, trials, 2) == "full"
    assert not can_start_trial(trials, 2)
    assert can_start_trial(trials, 3)
    lost = numbered(done, made(TrialState.FAIL), made(TrialState.RUNNING))
    assert withdrawal_reason(2, lost, 2) == "full", "the lost one will be enqueued again"
    assert not can_start_trial(lost, 3)


def test_of_two_repeats_the_later_one_withdraws() -> None:
    trials = numbered(
        made(TrialState.FAIL),
        made(TrialState.RUNNING, retry_history=[0]),
        made(TrialState.RUNNING, retry_history=[0]),
    )
    assert withdrawal_reason(1, trials, 9) is None
    assert withdrawal_reason(2, trials, 9) == "double"


def test_what_kills_its_worker_every_time_is_given_up() -> None:
    study = optuna.create_study()
    study.enqueue_trial({"x": 1})
    for _ in range(claims.MAX_FAILED_ATTEMPTS):
        mark_trial_failed(study._storage, study.ask()._trial_id)
        requeue_lost(study)
    assert not [t for t in study.trials if t.state == TrialState.WAITING]
    assert [t.number for t in abandoned_trials(study.trials)] == [claims.MAX_FAILED_ATTEMPTS - 1]
    assert study.trials[-1].system_attrs[RETRY_HISTORY_KEY] == list(
        range(claims.MAX_FAILED_ATTEMPTS - 1)
    )


def test_a_repeat_keeps_parameters_and_forgets_what_the_first_run_wrote() -> None:
    study = optuna.create_study()
    trial = study.ask()
    x = trial.suggest_float("x", 0, 1)
    trial.set_constraint("c", 1.0)
    mark_trial_failed(study._storage, trial._trial_id)
    requeue_lost(study)
    requeue_lost(study)
    assert states(study) == {"FAIL": 1, "WAITING": 1}
    repeat = study.ask()
    assert repeat.suggest_float("x", 0, 1) == x
    assert not repeat.constraints


def test_only_a_beat_that_stands_still_for_a_lease_is_stale() -> None:
    now = [0.0]
    watch = LeaseMonitor(10.0, lambda: now[0])

    def seen(at: float, beat: int) -> bool:
        now[0] = at
        return bool(
            watch.stale_trials(numbered(made(TrialState.RUNNING, **{claims.HEARTBEAT_KEY: beat})))
        )

    assert [seen(0, 0), seen(9, 0), seen(11, 1), seen(20, 1), seen(21.5, 1)] == [
        False,
        False,
        False,
        False,
        True,
    ]


# Storages


def test_a_half_written_line_is_cut_off(tmp_path: Path) -> None:
    journal = tmp_path / "study.journal"
    worker(str(journal), 2).run()
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "worker')
    one = worker(str(journal), 4, seed=1)
    one.run()
    assert states(one.study) == {"COMPLETE": 4}
    assert all(json.loads(line) for line in journal.read_text().splitlines())


@pytest.mark.slow
def test_a_database_keeps_a_study_as_well(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    worker(url, 3).run()
    one = worker(url, 5, seed=1)
    one.run()
    assert states(one.study) == {"COMPLETE": 5}


@pytest.mark.slow
def test_workers_that_make_one_database_at_once_all_open_it(tmp_path: Path) -> None:
    for number in range(5):
        url = f"sqlite:///{tmp_path / f'study{number}.db'}"
        start = Barrier(4)

        def opened(name: str, url: str = url, start: Barrier = start) -> str:
            start.wait()
            return optuna.create_study(study_name=name, storage=open_storage(url)).study_name

        with ThreadPoolExecutor(4) as pool:
            names = list(pool.map(opened, "abcd"))
        assert sorted(optuna.get_all_study_names(url)) == sorted(names)


def test_a_database_whose_tables_are_never_made_is_refused_without_sql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OperationalError("CREATE TABLE studies", {}, Exception("table studies already exists"))
    monkeypatch.setattr("optuna.storages.RDBStorage", Mock(side_effect=error))
    monkeypatch.setattr("nnstretch.study.storage.OPENING_PAUSE_S", 0.0)
    with pytest.raises(BadInput, match=r"study\.db, table studies already exists$"):
        open_storage(f"sqlite:///{tmp_path / 'study.db'}")


@pytest.mark.slow
def test_a_grpc_proxy_keeps_a_study_as_well(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    from optuna.storages._grpc.server import make_server

    with __import__("socket").socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    server = make_server(open_storage(f"sqlite:///{tmp_path / 'study.db'}"), "localhost", port)
    server.start()
    try:
        one = worker(f"grpc://localhost:{port}", 4)
        one.run()
        assert states(one.study) == {"COMPLETE": 4}
    finally:
        server.stop(None)


@pytest.mark.parametrize("where", ["grpc://host", "nosuch://x", "sqlite:////no/such/folder/x.db"])
def test_a_storage_that_is_none_is_refused_by_name(where: str) -> None:
    with pytest.raises((BadInput, UnknownName), match=where.partition(":")[0]):
        open_storage(where)


def test_a_file_that_is_no_journal_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    path.write_text("hello\nworld\n")
    with pytest.raises(BadInput, match=r"study\.journal"):
        open_storage(str(path))


def test_messages_hide_passwords() -> None:
    assert redact_password("mysql://me:secret@host/db") == "mysql://me@host/db"


def test_a_told_trial_cannot_be_failed() -> None:
    study = optuna.create_study()
    trial = study.ask()
    study.tell(trial, 1.0)
    assert not mark_trial_failed(study._storage, trial._trial_id)
    with pytest.raises(UpdateFinishedTrialError):
        study._storage.set_trial_system_attr(trial._trial_id, "x", 1)
